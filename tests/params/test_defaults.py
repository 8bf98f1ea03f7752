"""What `auto` stands for: the same numbers as ever for every shipped data set, by rules that know no names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config.spec import dotted, override
from pipeline.data.sets.registry import DATASETS, data_for
from pipeline.data.sizes import FEW_SHOT, LARGE, SMALL, sizes
from pipeline.methods.registry import FAMILIES, FITS
from pipeline.params import Params
from pipeline.params.resolve import resolve
from pipeline.params.rules import check_rules

ROOT = Path(__file__).parents[2]
PARTICIPATIONS = (1.0, 0.5)
KNOWN = {name: dataset.info for name, dataset in DATASETS.items() if dataset.info}
"""Data sets of which something is known before they are read."""

# ------------------------------------------------------------------------------------------------ the numbers

COLUMNS = (
    "partition.validation_per_label",
    "partition.selection_per_label",
    "partition.lead.noise_samples",
    "partition.mixed.bad_samples",
    "partition.cleaning.samples",
    "partition.cleaning.validation_samples",
    "partition.longtail.imbalance",
    "federation.batch_size",
    "problems.consensus.augment",
    "problems.consensus.normalise",
)
PROTOCOL = {
    "digits": (10, 5, 100, 100, 100, 10, 0.1, 32, False, False),
    "mnist": (20, 20, 5000, 5000, 4500, 50, 0.01, 64, False, False),
    "fashion-mnist": (20, 20, 5000, 5000, 4500, 50, 0.01, 64, False, False),
    "cifar10": (20, 20, 5000, 5000, 4500, 50, 0.01, 64, True, True),
    "cifar100": (20, 20, 5000, 5000, 4500, 50, 0.01, 64, True, True),
    "omniglot": (0, 0, 0, 0, 4500, 50, 0.01, 64, False, False),
    "glyphs": (0, 0, 0, 0, 4500, 50, 0.01, 64, False, False),
}
GROUPS = {10: (5, 8), 100: (50, 80), 1623: (811, 1298), 260: (130, 208)}
"""Classes -> where the second and the third clean client's labels begin."""


def settings_for(name: str) -> dict[str, object]:
    """What the rules ask for with that data set."""
    scheme = {"partition.scheme": "few_shot", "algorithm": "fedbio_local"} if name in data_for("few_shot") else {}
    return {"data.name": name, **scheme}


@pytest.mark.parametrize("participation", PARTICIPATIONS)
@pytest.mark.parametrize("name", PROTOCOL)
def test_the_protocol_of_the_shipped_data_sets(name, participation):
    params = override(Params(), settings_for(name) | {"federation.participation": participation})
    check_rules(params)
    found = dotted(resolve(params))
    assert tuple(found[column] for column in COLUMNS) == PROTOCOL[name]
    classes = KNOWN[name].classes
    second, third = GROUPS[classes]
    groups = [list(range(second)), list(range(second, third)), list(range(third, classes))]
    assert [found[f"partition.{scheme}.groups"] for scheme in ("lead", "duplicates", "mixed")] == [groups] * 3
    lead = "algorithms.primal_dual."
    assert (found[f"{lead}clip_norm"], found[f"{lead}gamma_schedule"]) == (0.0, "constant")


def test_sizes_follow_the_number_of_training_images():
    assert [sizes(images) for images in (1, 9_999, 10_000, 10**7)] == [SMALL, SMALL, LARGE, LARGE]
    assert sizes(1, few_shot=True) == sizes(10**7, few_shot=True) == FEW_SHOT


def test_a_setting_of_ones_own_stays():
    own = {"partition.lead.noise_samples": 7, "federation.batch_size": 3, "problems.consensus.augment": True}
    own |= {"partition.longtail.imbalance": 0.5, "partition.duplicates.groups": [[0], [1]]}
    found = dotted(resolve(override(Params(), own)))
    assert {name: found[name] for name in own} == own


def test_subset_does_not_change_the_protocol():
    whole, part = (override(Params(), {"data.name": "mnist", "subset.train": n}) for n in ("all", 500))
    assert resolve(part).partition == resolve(whole).partition
    assert resolve(part).federation == resolve(whole).federation


def test_the_toy_deals_out_no_samples():
    found = resolve(override(Params(), {"data.name": "toy", "federation.participation": 0.5}))
    assert (found.problem, found.federation.batch_size, found.partition.client_validation) == ("toy", 1, 0.0)


# -------------------------------------------------------------------------------------------------- the names


def runs(name: str) -> Iterator[Params]:
    """Every method on every problem that it fits, of those that the data set serves, and on `problem: auto`."""
    few_shot = name in data_for("few_shot")
    for problem in FITS:
        if problem == "toy" or (problem == "few_shot") != few_shot:
            continue
        for method in (method for family in FITS[problem] for method in FAMILIES[family]):
            for named in (problem, "auto"):
                for participation in PARTICIPATIONS if method != "fedpd" else (1.0,):
                    yield override(
                        Params(),
                        settings_for(name)
                        | {"algorithm": method, "problem": named, "federation.participation": participation}
                        # A network of one's own: the named ones are too large for the exact gradient.
                        | {"model.name": "networks.example.small"},
                    )


@pytest.mark.parametrize("name", KNOWN)
def test_a_data_set_of_another_name_has_the_same_defaults(name, monkeypatch):
    given = list(runs(name))
    as_shipped = [resolve(params) for params in given]
    others = {key: dataset for key, dataset in DATASETS.items() if key != name}
    monkeypatch.setattr("pipeline.data.sets.registry.DATASETS", others | {"another": DATASETS[name]})
    for params, expected in zip(given, as_shipped, strict=True):
        renamed = override(params, {"data.name": "another"})
        check_rules(renamed)
        found = resolve(renamed)
        assert found == replace(expected, data=renamed.data), (params.problem, params.algorithm)


def names_in(source: str) -> list[int]:
    """Lines with a data set's name as a text, or with a comparison of `data.name` with any text."""
    lines = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and node.value in KNOWN:
            lines.add(node.lineno)
        if isinstance(node, ast.Compare):
            asked = any(ast.unparse(side).endswith("data.name") for side in (node.left, *node.comparators))
            if asked and any(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in ast.walk(node)):
                lines.add(node.lineno)
    return sorted(lines)


@pytest.mark.parametrize(
    "line",
    [
        'clip = 15.0 if params.data.name == "digits" else 0.0',
        'clip = {"digits": 15.0}.get(params.data.name, 0.0)',
        'steps = small if name in ("toy", "mnist") else large',
        'noisy = params.data.name != "toy"',
        'match name:\n    case "cifar10":\n        augment = True',
    ],
)
def test_the_source_check_finds_a_name(line):
    assert names_in(line)


def test_no_source_asks_for_a_name():
    """But where data are read."""
    found = []
    for path in [*(ROOT / "pipeline").rglob("*.py"), *(ROOT / "stages").glob("*.py")]:
        place, text = path.relative_to(ROOT).as_posix(), path.read_text()
        if not place.startswith("pipeline/data/"):
            found += [f"{place}: {text.splitlines()[line - 1].strip()}" for line in names_in(text)]
    assert found == []
