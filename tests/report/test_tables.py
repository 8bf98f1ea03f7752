"""Results in rows and columns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipeline.report import tables
from pipeline.report.clients import Clients, default_names
from tests.report.synthetic import KINDS, LABELS, SAMPLES


def test_client_table() -> None:
    weights = np.array([0.5, 0.3, 0.2] + [0.0] * 7)
    clients = Clients(default_names(10), KINDS, LABELS, SAMPLES, weights, oracle=weights)
    lines = tables.client_table(clients).splitlines()
    assert lines[0].split() == ["client", "kind", "labels", "samples", "weight", "oracle"]
    assert lines[2].split() == ["0", "clean", "0-4", "640", "0.5000", "0.5000"]
    assert len(lines) == 12
    ends = np.stack([np.clip(weights - 0.01, 0, 1), weights + 0.01])
    lines = tables.client_table(replace(clients, interval=ends)).splitlines()
    assert lines[0].split() == ["client", "kind", "labels", "samples", "weight", "interval", "oracle"]
    assert lines[2].split() == ["0", "clean", "0-4", "640", "0.5000", "0.4900", "to", "0.5100", "0.5000"]
    many = tables.client_table(evenly(["clean"] * 50))
    assert "30 more" in many
    assert len(many.splitlines()) == 23


def evenly(kinds: list[str]) -> Clients:
    n = len(kinds)
    return Clients(default_names(n), kinds, [[0]] * n, [1] * n, np.full(n, 1 / n))


def test_clients_have_their_own_names_where_there_are_any() -> None:
    own = replace(evenly(["unknown"] * 2), names=["Köln", "St. Mary <3"], weights=np.array([0.9, 0.1]))
    assert [line[:11].rstrip() for line in tables.client_table(own).splitlines()[2:]] == ["Köln", "St. Mary <3"]
    assert tables.suspects_lines(own) == ["below half of an equal share: St. Mary <3"]


def test_a_client_is_suspicious_if_its_weight_is_low_and_the_model_disagrees() -> None:
    ends = np.array([[0.0, 0.9], [0.1, 1.0]])
    sure = replace(evenly(["clean"] * 2), weights=np.array([0.05, 0.95]), interval=ends)
    assert tables.suspects_lines(sure) == ["surely below half of an equal share: client 0"]
    assert tables.suspects_lines(replace(sure, interval=None)) == ["below half of an equal share: client 0"]
    assert tables.suspects_lines(replace(sure, interval=ends + 0.3)) == []

    bad = replace(sure, disagrees=np.array([True, True]))
    why = "weight surely below half of an equal share, and the model disagrees with its labels"
    assert tables.suspects_lines(bad) == [f"suspicious: client 0 ({why})"]
    (spare,) = tables.suspects_lines(replace(sure, disagrees=np.array([False, True])))
    assert spare == (
        "surely below half of an equal share: client 0 (the model agrees with the labels: no evidence of bad data)"
    )

    many = replace(evenly(["clean"] * 30), weights=np.array([0.0] * 25 + [0.2] * 5))
    assert tables.suspects_lines(many)[0].endswith(", 19 and 5 more")
    both = replace(many, disagrees=np.arange(30) < 2)
    assert [line.partition(":")[0] for line in tables.suspects_lines(both)] == [
        "suspicious",
        "below half of an equal share",
    ]


def test_tables_for_the_web() -> None:
    table = tables.markdown(["method", "runs"], [["a", "1"], ["b", "2"]], right=("runs",))
    assert table == "| method | runs |\n|--|--:|\n| a | 1 |\n| b | 2 |"
    assert tables.accuracy(None, None, 2) == "diverged"
    assert tables.accuracy(95.126, 0.5, 1) == "95.13 ± 0.50 (1 diverged)"
    assert (tables.spread([]), tables.spread([2.0])) == ("-", "2")
