"""Pictures come out whole, of the size meant, for few clients and for many."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from pipeline.report import figures, matrices
from pipeline.report.clients import Clients, default_names
from pipeline.text import short_labels
from tests.report.synthetic import KINDS, ORACLE, Synthetic


def of(kinds: list[str], weights: np.ndarray, oracle: np.ndarray | None = None) -> Clients:
    n = len(kinds)
    return Clients(default_names(n), kinds, [[0, 1]] * n, [1] * n, weights, oracle=oracle)


def png_size(path: Path) -> tuple[int, int]:
    return struct.unpack(">II", path.read_bytes()[16:24])


def check(figure: Figure, folder: Path) -> None:
    path = folder / "plots" / "figure.png"
    figures.save(figure, path)
    width, height = png_size(path)
    assert width >= 900
    assert height >= 400
    assert path.stat().st_size > 8000
    assert not list(path.parent.glob("*.partial"))


def test_every_picture_of_a_run(tmp_path: Path) -> None:
    Synthetic(tmp_path).plots(tmp_path)
    assert len(list(tmp_path.glob("*.png"))) == 5


@pytest.mark.parametrize("clients", [1, 30, 150])
def test_any_number_of_clients(tmp_path: Path, clients: int) -> None:
    kinds = ["clean" if i % 3 else "flipped" for i in range(clients)]
    weights = np.random.default_rng(0).dirichlet(np.ones(clients), size=20)
    oracle = np.full(clients, 1 / clients)
    ends = np.stack([weights.min(0), weights.max(0)])
    plain = of(kinds, weights[-1], oracle)
    with_ends = replace(plain, interval=ends)
    check(figures.weights_over_rounds(np.arange(20), weights, plain), tmp_path)
    check(figures.final_weights(plain), tmp_path)
    figure = figures.final_weights(with_ends)
    axes = figure.axes[0]
    bars = next(c for c in axes.containers if isinstance(c, ErrorbarContainer)).lines[2][0].get_segments()
    order = np.argsort(-weights[-1], kind="stable") if clients > 100 else np.arange(clients)
    np.testing.assert_allclose([[low[1], high[1]] for low, high in bars], ends.T[order])
    assert axes.get_ylim()[1] > ends.max()
    check(figure, tmp_path)
    check(matrices.partition_heatmap(np.arange(clients * 100).reshape(clients, 100), plain), tmp_path)


def test_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    """Neither a formula nor markup; unknown clients have colours and names of their own."""
    names = ["St. Mary & <b>", "Universitätsklinikum Köln", "$a_1$ and $b$", "東京", "a very long name of a hospital"]
    weights = np.random.default_rng(0).dirichlet(np.ones(5), size=20)
    clients = Clients(names, ["unknown"] * 5, [[0], [1], [0], [1], []], [5] * 5, weights[-1])
    figure = figures.weights_over_rounds(np.arange(20), weights, clients)
    shown = {text.get_text().split("   ")[0] for text in figure.axes[0].texts}
    assert {"St. Mary & <b>", r"\$a_1\$ and \$b\$", "a very long name …"} <= shown
    assert len({line.get_color() for line in figure.axes[0].get_lines()}) == 5
    for drawn in (figure, figures.final_weights(clients), matrices.partition_heatmap(np.ones((5, 3), int), clients)):
        check(drawn, tmp_path)


def test_weights_that_are_all_zero_and_one_round(tmp_path: Path) -> None:
    check(figures.weights_over_rounds(np.array([0]), np.zeros((1, 10)), of(KINDS, np.zeros(10))), tmp_path)
    check(figures.final_weights(of(KINDS, np.zeros(10), ORACLE)), tmp_path)


def test_curves_without_evaluations(tmp_path: Path) -> None:
    nothing = np.full(5, np.nan)
    check(figures.accuracy_and_loss(np.arange(5), nothing, nothing), tmp_path)


def test_confusion_of_a_hundred_classes(tmp_path: Path) -> None:
    matrix = np.eye(100, dtype=int) * 7
    matrix[3] = 0  # a class without samples
    check(matrices.confusion_matrix(matrix), tmp_path)


def test_equal_data_give_equal_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        figures.save(matrices.confusion_matrix(np.eye(3, dtype=int)), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_clean_clients_stand_out() -> None:
    figure = figures.weights_over_rounds(np.arange(3), np.full((3, 10), 0.1), of(KINDS, ORACLE, ORACLE))
    colours = {line.get_color() for line in figure.axes[0].get_lines()}
    assert set(figures.CLEAN[:3]) | {figures.BAD["noisy"]} <= colours


def test_of_many_labels_those_held_are_drawn_client_after_client():
    counts = np.zeros((2, 101), dtype=int)
    counts[0, [50, 7]], counts[1, [3, 100]] = [4, 5], [6, 7]
    axes = matrices.partition_heatmap(counts, of(["clean", "clean"], np.ones(2))).axes[0]
    drawn = axes.images[0].get_array()
    assert drawn.filled(0).tolist() == [[5, 4, 0, 0], [0, 0, 6, 7]]
    assert axes.get_xlabel() == "labels, client after client"


def test_long_lists_of_labels_are_counted():
    assert short_labels([3, 0, 1, 2, 7, 8]) == "0-3 7 8"
    assert short_labels(range(50)) == "0-49"
    assert short_labels(range(0, 22, 2)) == "11 labels"
