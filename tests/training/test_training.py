"""The Lightning module around the method: the same numbers as the bare loop, records, saves, resume, divergence."""

import csv
import dataclasses
import math
import subprocess
import sys
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import pytorch_lightning as pl
import torch

import pipeline
from pipeline.errors import UserError
from pipeline.methods import ALGORITHMS
from pipeline.methods.client_weighting.common.weighting_context import WeightingContext
from pipeline.methods.client_weighting.primal_dual import PrimalDual
from pipeline.oracles import FusedOracle
from pipeline.params.resolve import resolve
from pipeline.training.callbacks import ToDisk
from pipeline.training.history import History
from pipeline.training.module import FederatedBilevel, NotFinite
from pipeline.training.resume import MATHEMATICS, ResumeFolder
from pipeline.training.run import build_module, run_fingerprint, train
from pipeline.training.saves import load_variables
from pipeline.training.setup import build_problem, device_for
from pipeline.training.tasks import image_task
from tests.registered import unnamed


def read_csv(path: Path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def fit(params, digits, partition, root: Path, **more):
    problem = build_problem(params, digits, partition, torch.device("cpu"))
    with ResumeFolder(root, "run") as folder:
        module, history = train(params, image_task(problem), folder, progress=False, **more)
        history.export(root / "results")
    return module, read_csv(root / "results" / "history.csv")


def test_a_save_is_not_built_in_memory_first(tmp_path):
    """40 MB of state cost Python next to nothing to write, and come back as they were."""
    state, path = {"w": torch.arange(10_000_000, dtype=torch.float32)}, tmp_path / "state.ckpt"
    tracemalloc.start()
    try:
        ToDisk().save_checkpoint(state, path)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert torch.equal(torch.load(path)["w"], state["w"])


def test_every_save_of_a_run_goes_that_way(params, digits, partition, tmp_path, monkeypatch):
    saved = []
    save = ToDisk.save_checkpoint
    monkeypatch.setattr(ToDisk, "save_checkpoint", lambda *given, **more: saved.append(save(*given, **more)))
    fit(params, digits, partition, tmp_path)
    assert len(saved) == 4  # at the start, after rounds 5 and 10, at the end


def test_after_training_the_module_is_where_the_data_are(params, digits, partition, tmp_path, monkeypatch):
    """Lightning's teardown takes it to the CPU; evaluation afterwards needs it where the data are."""
    moves = []
    cpu, to = FederatedBilevel.cpu, FederatedBilevel.to
    monkeypatch.setattr(FederatedBilevel, "cpu", lambda self: moves.append("cpu") or cpu(self))
    monkeypatch.setattr(FederatedBilevel, "to", lambda self, *where: moves.append(where) or to(self, *where))
    fit(params, digits, partition, tmp_path)
    assert "cpu" in moves
    assert moves[-1] == (torch.device("cpu"),)


def without_seconds(rows):
    return [{name: cell for name, cell in row.items() if name != "seconds"} for row in rows]


def bare_loop(params, digits, partition):
    """The same run without Lightning: plain steps, cosine factor, projections."""
    params = resolve(params)
    module = build_module(params, build_problem(params, digits, partition, torch.device("cpu")))
    algorithm, hyper, T = ALGORITHMS[params.algorithm], module.context.hyper, params.train.rounds
    state = algorithm.init(module.context)
    for t in range(1, T + 1):
        factor = 0.5 * (1 + math.cos(math.pi * (t - 1) / T)) if hyper.schedule == "cosine" else 1.0
        sizes = {name: factor * size for name, size in algorithm.step_sizes(hyper).items()}
        for k in range(1, algorithm.inner_steps(hyper) + 1):
            context = dataclasses.replace(module.context, round=t, inner=k, step_sizes=sizes, schedule=factor)
            step = algorithm.step(state, context)
            for name, direction in step.directions.items():
                value = state.variables[name] - sizes[name] * direction
                project = algorithm.projections.get(name)
                state.variables[name] = project(value, hyper) if project else value
    return state.variables


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_training_is_the_bare_loop(double, digits, partition, tmp_path, schedule):
    hyper = PrimalDual(schedule=schedule, inner_steps=2, estimator="memory", gamma_schedule="rising")
    params = replace(double, algorithms=replace(double.algorithms, primal_dual=hyper))
    module, _ = fit(params, digits, partition, tmp_path)
    for name, expected in bare_loop(params, digits, partition).items():
        torch.testing.assert_close(module.state.variables[name], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_server_optimizers_by_hand(double, digits, partition, tmp_path, optimizer):
    """Heavy ball: v <- 0.9 v + g, w <- w - eta v. Adam: bias-corrected means of g and g^2, w <- w - eta m / (sqrt(s) +
    eps). Only the model has an optimizer of its own; the weights take plain steps."""
    params = with_method(double, "average")
    hyper = replace(params.algorithms.average, optimizer=optimizer, eta_w=0.01, schedule="constant")
    params = replace(params, algorithms=replace(params.algorithms, average=hyper))
    module, _ = fit(params, digits, partition, tmp_path)
    fresh = build_module(params, build_problem(params, digits, partition, torch.device("cpu")))
    state = ALGORITHMS["average"].init(fresh.context)
    w = state.variables["w"]
    first, second = torch.zeros_like(w), torch.zeros_like(w)
    for t in range(1, params.train.rounds + 1):
        state.variables["w"] = w
        context = dataclasses.replace(fresh.context, round=t, inner=1, step_sizes={"w": 0.01})
        g = ALGORITHMS["average"].step(state, context).directions["w"]
        if optimizer == "momentum":
            first = 0.9 * first + g
            w = w - 0.01 * first
        else:
            first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
            w = w - 0.01 * (first / (1 - 0.9**t)) / ((second / (1 - 0.999**t)).sqrt() + 1e-8)
    torch.testing.assert_close(module.state.variables["w"], w, rtol=1e-9, atol=1e-11)


def test_the_dual_norm_in_a_row_is_that_of_its_state(params, digits, partition, tmp_path):
    module, rows = fit(params, digits, partition, tmp_path)
    assert float(rows[0]["dual_norm"]) == 0.0
    assert float(rows[-1]["dual_norm"]) == pytest.approx(float(module.state.variables["lambda"].norm()), rel=1e-6)


def test_l2_adds_its_gradient_and_curvature(double, digits, partition):
    """l2/2 ||w||^2 in every client's loss: gradients gain l2 w, products l2 lambda; the validation loss nothing."""
    plain = build_problem(double, digits, partition, torch.device("cpu"))
    heavy = replace(plain, l2=0.3)
    w = plain.initial(0)
    v = torch.linspace(-1, 1, len(w), dtype=w.dtype)
    B = plain.draw(1, torch.arange(3), 5)
    a, b = FusedOracle(plain), FusedOracle(heavy)
    torch.testing.assert_close(b.gradients(w, B), a.gradients(w, B) + 0.3 * w)
    torch.testing.assert_close(b.products(w, v, B), a.products(w, v, B) + 0.3 * v)
    server = plain.draw_validation(1)
    assert torch.equal(b.validation_gradient(w, server), a.validation_gradient(w, server))


@pytest.mark.parametrize("estimator", ["paper", "normalised", "memory"])
def test_loop_backend_gives_the_same_run(double, digits, partition, tmp_path, estimator):
    hyper = PrimalDual(estimator=estimator)
    params = replace(double, algorithms=replace(double.algorithms, primal_dual=hyper))
    loop = replace(params, train=replace(params.train, backend="loop"))
    (a, _), (b, _) = (
        fit(params, digits, partition, tmp_path / "a"),
        fit(loop, digits, partition, tmp_path / "b"),
    )
    for name, value in a.state.variables.items():
        torch.testing.assert_close(b.state.variables[name], value, rtol=1e-10, atol=1e-12)


def test_history_holds_every_round(params, digits, partition, tmp_path):
    module, rows = fit(params, digits, partition, tmp_path)
    assert [int(row["round"]) for row in rows] == list(range(13))
    evaluated = [int(row["round"]) for row in rows if row["test_accuracy"]]
    assert evaluated == [0, 4, 8, 12]
    assert evaluated == [int(row["round"]) for row in rows if row["validation_loss"]]
    header = ["round", "seconds", "communication_rounds", "floats_up", "floats_down", "gradients", "hvps"]
    header += ["validation_loss", "test_accuracy", "selection_accuracy"]
    header += [*(f"client_weight_{i}" for i in range(10)), "dual_norm", "weight_to_move", "settled", "answers_left_out"]
    assert list(rows[0]) == header
    weights = np.array([[float(row[f"client_weight_{i}"]) for i in range(10)] for row in rows])
    np.testing.assert_allclose(weights[0], 0.1, rtol=1e-6)
    np.testing.assert_allclose(weights.sum(1), 1.0, atol=1e-6)
    np.testing.assert_array_equal(weights[-1].astype(np.float32), module.state.variables["x"].numpy())
    d = 784 * 10 + 10
    active = [len(dataclasses.replace(module.context, round=t).active()) for t in range(1, 13)]
    assert int(rows[-1]["communication_rounds"]) == 12
    assert int(rows[-1]["gradients"]) == int(rows[-1]["hvps"]) == sum(active)
    assert int(rows[-1]["floats_up"]) == int(rows[-1]["floats_down"]) == 2 * d * sum(active)
    with np.load(tmp_path / "results" / "client_weights_history.npz") as saved:
        np.testing.assert_array_equal(saved["weights"], weights.astype(np.float32))


class Interrupt(Exception):
    pass


class StopAt(pl.Callback):
    """Interrupts the training after that round."""

    def __init__(self, round_: int) -> None:
        self.round = round_

    def on_train_batch_end(self, trainer, module, *args):
        if module.round == self.round:
            raise Interrupt


def check_resume(params, digits, partition, tmp_path, stop):
    """Interrupted after round `stop` and started again: every bit as an uninterrupted run."""
    whole, rows = fit(params, digits, partition, tmp_path / "whole")
    with pytest.raises(Interrupt):
        fit(params, digits, partition, tmp_path / "cut", callbacks=(StopAt(stop),))
    resumed, again = fit(params, digits, partition, tmp_path / "cut")
    for name, value in whole.state.variables.items():
        assert torch.equal(resumed.state.variables[name], value), name
    for name, value in whole.state.memory.items():
        assert torch.equal(resumed.state.memory[name], value), name
    assert resumed.cost == whole.cost
    assert without_seconds(again) == without_seconds(rows)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("stop", [1, 5, 7, 11])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(params, digits, partition, tmp_path, stop, optimizer):
    hyper = PrimalDual(estimator="memory", inner_steps=2, hypergradient_iterate="random", optimizer=optimizer)
    params = replace(params, algorithms=replace(params.algorithms, primal_dual=hyper))
    check_resume(params, digits, partition, tmp_path, stop)


METHODS_ON_IMAGES = {
    "rfho": {"inner_steps": 2},
    "rfho realtime": {"mode": "realtime"},
    "fednest": {"inner_steps": 2, "series": "randomised"},
    "sustain": {"series_products": 2},
    "afl": {},
    "validation_only": {"optimizer": "momentum"},
    "average": {"optimizer": "adam"},
    "oracle_weights": {},
}
# exact_gradient's dense Hessian is too large for any image model.
NAMED = {"primal_dual", "exact_gradient"} | {variant.split()[0] for variant in METHODS_ON_IMAGES}
METHODS_ON_IMAGES |= {name: {} for name in unnamed(WeightingContext, NAMED)}


def with_method(params, variant: str):
    name = variant.split()[0]
    hyper = replace(getattr(params.algorithms, name), **METHODS_ON_IMAGES[variant])
    return replace(params, algorithm=name, algorithms=replace(params.algorithms, **{name: hyper}))


@pytest.mark.parametrize("variant", METHODS_ON_IMAGES)
def test_every_method_resumes_bit_for_bit(params, digits, partition, tmp_path, variant):
    """Six rounds, a save after each third: stopped after the fourth, a run goes on from the third."""
    params = with_method(params, variant)
    params = replace(params, train=replace(params.train, rounds=6, eval_every=3, checkpoint_every=3))
    check_resume(params, digits, partition, tmp_path, stop=4)


@pytest.mark.parametrize("variant", METHODS_ON_IMAGES)
def test_every_method_reports_its_weights(params, digits, partition, tmp_path, variant):
    """Learned or fixed weights sum to 1 in every row of the record; training on the validation set alone gives 0."""
    params = with_method(params, variant)
    params = replace(params, train=replace(params.train, rounds=3))
    module, rows = fit(params, digits, partition, tmp_path)
    sums = [sum(float(row[f"client_weight_{i}"]) for i in range(10)) for row in rows]
    assert sums == pytest.approx([0.0 if variant == "validation_only" else 1.0] * 4, abs=1e-5)
    if variant == "oracle_weights":
        np.testing.assert_allclose(module.state.variables["x"], partition.oracle_weights(), rtol=1e-6)
    if variant == "average":
        np.testing.assert_allclose(module.state.variables["x"], 0.1, rtol=1e-6)


def test_the_step_size_in_force_reaches_the_method(double, digits, partition, tmp_path):
    """RFHO's hypergradient carries the scheduled step of w: the training equals the bare loop under cosine decay."""
    params = with_method(double, "rfho")
    module, _ = fit(params, digits, partition, tmp_path)
    for name, expected in bare_loop(params, digits, partition).items():
        torch.testing.assert_close(module.state.variables[name], expected, rtol=1e-9, atol=1e-9)


def test_exact_gradient_is_refused_for_a_network(params, digits, partition):
    problem = build_problem(params, digits, partition, torch.device("cpu"))
    with pytest.raises(UserError, match=r"exact_gradient needs a dense Hessian.*2000.*7850.*Fix"):
        build_module(replace(params, algorithm="exact_gradient"), problem)


def test_a_killed_process_resumes(tmp_path):
    """kill -9 in mid-round, then the same command again: the record equals an uninterrupted run's, and so does the
    model of round 10, the best one, which is served since the run is ruined later."""
    command, root = [sys.executable, "-m", "tests.training.killed"], Path(__file__).parents[2]

    def start(folder):
        return subprocess.Popen([*command, str(folder)], cwd=root, stdout=subprocess.PIPE, text=True)

    with start(tmp_path / "cut") as cut:
        for line in cut.stdout:
            if "round 17" in line:
                cut.kill()
                break
    assert cut.returncode == -9
    assert not (tmp_path / "cut" / "results" / "history.csv").exists()
    for folder in ("cut", "whole"):
        process = start(tmp_path / folder)
        output = process.communicate()[0]
        assert process.returncode == 0
        assert ("round 1\n" in output) == (folder == "whole")
    a, b = (read_csv(tmp_path / folder / "results" / "history.csv") for folder in ("cut", "whole"))
    assert len(b) == 31
    assert without_seconds(a) == without_seconds(b)
    ends = [load_variables(tmp_path / folder / "results" / "model of round 10.pt") for folder in ("cut", "whole")]
    assert set(ends[0]) == {"w", "lambda", "x"}
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[1])


def test_a_diverging_run_ends_at_once_with_its_record(params, digits, partition, tmp_path):
    hyper = PrimalDual(eta_w=1e38, curvature_limit=0.0)
    params = replace(params, algorithms=replace(params.algorithms, primal_dual=hyper))
    with pytest.raises(NotFinite, match=r"round \d+: the variable \w+ is no longer finite.*eta_w") as caught:
        fit(params, digits, partition, tmp_path)
    kept = Path(str(caught.value).rsplit("recorded is in ", 1)[1].rstrip("."))
    assert kept.read_text().startswith("round,seconds")
    assert len(kept.read_text().splitlines()) >= 2
    assert not (tmp_path / "run").exists()


def test_the_code_in_the_fingerprint_is_all_that_computes():
    """Every room of the library but those that only read parameters, choose runs or record what came out."""
    root = Path(pipeline.__file__).parent
    rooms = {folder.name for folder in root.iterdir() if (folder / "__init__.py").is_file()}
    assert set(MATHEMATICS) == rooms - {"config", "federation", "params", "report", "sweep", "tracking"}


def test_fingerprint_changes_with_everything_the_run_depends_on(params, digits, partition, cpu):
    task = image_task(build_problem(params, digits, partition, cpu), "abc", "def")

    def name(p=params, **changed):
        return run_fingerprint(p, replace(task, **changed))

    base = name()
    assert base == name()
    assert base == name(replace(params, train=replace(params.train, checkpoint_every=7)))
    assert base == name(replace(params, train=replace(params.train, replicates=7)))
    changed = [
        replace(params, seed=1),
        replace(params, model=replace(params.model, name="mlp")),
        replace(params, federation=replace(params.federation, participation=0.6)),
        replace(params, train=replace(params.train, rounds=13)),
        replace(params, algorithms=replace(params.algorithms, primal_dual=PrimalDual(gamma=1.0))),
    ]
    names = [name(p) for p in changed] + [name(data_hash="xyz"), name(partition_hash="xyz")]
    assert len({base, *names}) == len(names) + 1


def test_only_one_process_trains_in_a_folder(tmp_path):
    with ResumeFolder(tmp_path, "run"):
        start = time.monotonic()
        with (
            pytest.raises(UserError, match=r"process \d+ is training with the same parameters.*Fix"),
            ResumeFolder(tmp_path, "run", wait=0.3),
        ):
            pass
        assert time.monotonic() - start < 5


def test_the_folder_says_whether_a_run_goes_on(tmp_path):
    with ResumeFolder(tmp_path, "a") as folder:
        assert "starting afresh" in folder.story()
        folder.checkpoint.write_bytes(b"x")
        assert "going on" in folder.story()
    with ResumeFolder(tmp_path, "b") as folder:
        assert "other parameters" in folder.story()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_missing_gpu_is_named():
    with pytest.raises(UserError, match=r"train\.accelerator.*no CUDA device.*Fix"):
        device_for("gpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_the_gpu_gives_the_cpu_s_numbers(double, digits, partition, tmp_path):
    a, b = (build_module(double, build_problem(double, digits, partition, torch.device(d))) for d in ("cpu", "cuda"))
    for module in (a, b):
        context = dataclasses.replace(module.context, round=1)
        module.result = module.algorithm.step(module.state, context).directions["w"].cpu()
    torch.testing.assert_close(a.result, b.result, rtol=1e-9, atol=1e-12)


def test_history_of_many_clients_is_a_summary(tmp_path):
    clean = np.zeros(200, dtype=bool)
    clean[:100] = True
    history = History(tmp_path, clean, ("test_accuracy",), (), digits=9)
    history.start()
    weights = np.linspace(0, 1, 200) / 100
    history.append({"round": 0, "seconds": 0.0}, weights)
    history.flush()
    history.export(tmp_path / "out")
    (row,) = read_csv(tmp_path / "out" / "history.csv")
    assert float(row["client_weight_min"]) == 0.0
    assert float(row["client_weight_max"]) == pytest.approx(0.01)
    assert float(row["client_weight_q50"]) == pytest.approx(0.005)
    assert float(row["client_weight_clean"]) == pytest.approx(weights[:100].sum())
    with np.load(tmp_path / "out" / "client_weights_history.npz") as saved:
        assert saved["weights"].shape == (1, 200)
