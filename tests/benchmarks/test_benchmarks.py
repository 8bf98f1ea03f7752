"""What the benchmarks count and draw."""

import json
import time

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import memory, scaling
from benchmarks.round_cost import BareLoop
from benchmarks.timing import clock, equal_clients, interleaved, made_up, median_ratio, seconds_per_round


@pytest.fixture(scope="module")
def raw():
    return made_up(2_000)


def test_the_floor_counts_every_product_once(raw):
    """A linear network, 784 x 10: F = 2 n 7840 operations forward on the clients' n samples, F_0 on the server's m.
    Gradient and inner products: value, tangent, gradient by the weights: 3 F. Product: value and gradient, and the
    tangent of both: 4 F. The server's gradient: 2 F_0. Nothing differentiates by the images."""
    _, problem = equal_clients(raw, scaling.settings(clients=10) | {"model.name": "linear", "model.options": {}})
    F, F_0 = 2 * 10 * 8 * 7840, 2 * len(problem.data.validation_labels) * 7840
    assert BareLoop(problem, batch=8).flops() == 7 * F + 2 * F_0


def test_torch_counts_three_products_with_zeros_more(raw):
    """784-64-10 and LeNet-5, whose first layer are 6 kernels of 25 weights at 28 x 28 places; 80 samples."""
    for model, options, first in (("mlp", {"hidden": [64]}, 784 * 64), ("lenet5", {}, 6 * 25 * 28 * 28)):
        chosen = scaling.settings(clients=10) | {"model.name": model, "model.options": options}
        loop = BareLoop(equal_clients(raw, chosen)[1], batch=8)
        with FlopCounterMode(display=False) as counter:
            loop.round()
        assert counter.get_total_flops() == loop.flops() + 3 * 2 * 80 * first


def test_every_point_is_the_case_that_its_axis_says(raw):
    for curve, points in scaling.curves().items():
        x, chosen = next(iter(points.items()))
        params, problem = equal_clients(raw, chosen | {"train.rounds": 4})
        hyper = getattr(params.algorithms, params.algorithm)
        says = {
            "clients": problem.clients,
            "active": round(params.federation.participation * problem.clients),
            "dimension": problem.dimension,
            "inner": getattr(hyper, "inner_steps", None),
            "local": getattr(hyper, "local_steps", None),
            "duals": problem.clients,
            "reference": problem.clients,
        }
        assert says[curve] == x
        assert seconds_per_round((params, problem)) > 0


def test_points_are_measured_in_turn_and_the_first_turn_does_not_count():
    measured = []
    found = interleaved({x: lambda x=x: measured.append(x) or len(measured) for x in (7, 8)}, repetitions=2)
    assert measured == [7, 8] * 3
    assert found == {7: [3, 5], 8: [4, 6]}
    assert median_ratio([2.0, 9.0, 1.0], [1.0, 3.0, 1.0]) == 2.0


def test_charts_are_drawn_of_the_newest_records(tmp_path):
    charts = pytest.importorskip("benchmarks.charts")
    where = {"date": "2026-01-01", "commit": "abc", "processor": "P", "device": "cpu", "threads": 1}
    curves = {f"{c}_{x}_{kind}": float(x) for c in scaling.curves() for x in (1, 10) for kind in ("ms", "ratio")}
    kinds = {f"{c}_{x}_mib": float(x) for c in memory.curves() for x in (1, 10)}
    names = ("stage", "bare_fused_loop", "per_client_loop", "floor")
    figures = {"round": {f"{name}_ms": 1.0 for name in names}, "scaling": curves, "memory": kinds}
    figures["rivals"] = {"ours_s": 1.0, "pfl_s": 2.0}
    lines = [json.dumps({"benchmark": name, "figures": {}} | where) for name in figures]
    lines += [json.dumps({"benchmark": name, "figures": found} | where) for name, found in figures.items()]
    (tmp_path / "records.jsonl").write_text("\n".join(lines) + "\n")
    charts.draw_all(tmp_path / "records.jsonl", tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {f"{name}.png" for name in charts.CHARTS}
    assert all(path.stat().st_size > 5_000 for path in (tmp_path / "out").iterdir())


def test_one_thread_is_timed_by_the_processor():
    assert torch.get_num_threads() == 1
    start = clock()
    time.sleep(0.2)
    assert clock() - start < 0.1  # the processor did nothing


def test_rivals_do_not_inherit_what_our_libraries_set():
    from benchmarks.rivals import environment

    ours = {"PATH": "/bin", "PYTORCH_NVML_BASED_CUDA_CHECK": "1", "HOME": "/home/me"}
    assert environment(ours) == {"PATH": "/bin", "HOME": "/home/me"}
