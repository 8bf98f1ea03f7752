"""Recipes hold the settings of the runs that they quote."""

from __future__ import annotations

import fnmatch
import json
from pathlib import Path

import pytest

from experiments import cells, former
from experiments.results import read
from experiments.study import load_study
from pipeline.params.recipes import read_recipe

ROOT = Path(__file__).parents[2]
TABLE, FASHION = "primal_dual_weighting table", "primal_dual_weighting fashion"
COMPETITORS = ("primal-dual", "rfho", "fednest", "sustain", "afl", "average", "validation-only", "oracle-weights")
RUNS = [
    ("fashion-mnist", f"{FASHION}/primal-dual_*"),
    *(("mnist-competitors", f"{TABLE}/{method}_*") for method in COMPETITORS),
    ("printed", f"{TABLE}/primal-dual--as-printed_*"),
    ("mnist-gamma-10", f"{TABLE}/primal-dual--gamma-10-and-clipped_*"),
    ("mnist-clipped-series", f"{TABLE}/*--clipped_p1_*"),
    ("mnist-hyper-representation", "simfbo hyper_representation/*--searched--MNIST--non-i-i-d*"),
    *(
        ("mnist-data-cleaning", f"fedbio data_cleaning/{row}--noise-0-8_*")
        for row in ("FedBiO", "FedBiOAcc", "FedNest")
    ),
    ("toy-noisy", "primal_dual_weighting toy/steadied-20/primal-dual*"),
]
FREE = ("algorithm", "seed", "federation.participation", "train.rounds", "train.eval_every")
"""What the runs that a recipe quotes differ in."""


def same(name: str, settings: dict) -> bool:
    """Whether the recipe, with those of the run, says all that decides the run."""
    recipe = read_recipe(name, ROOT / "recipes")
    recipe |= {former.CHOICE: "current"}
    return cells.in_use(recipe | {key: settings[key] for key in FREE if key in settings}) == cells.in_use(settings)


@pytest.mark.parametrize(("name", "pattern"), RUNS)
def test_a_recipe_is_what_was_run(name, pattern):
    study, _, key = pattern.partition(" ")
    rows = fnmatch.filter(read(found := ROOT / "experiments" / study / "results" / "full.jsonl"), key)
    assert rows
    for row in rows:
        assert same(name, read(found)[row]["cell"]["settings"]), row


def test_the_few_shot_recipe_is_what_is_run():
    slots = list(load_study("fedbio", "quick").table("few_shot"))
    assert slots
    assert all(same("glyphs", slot.cell.settings) for slot in slots)


def test_the_searched_steps_on_digits_are_the_page_s():
    """Those of the lead method were its defaults; everything else is as the pages' runs had it."""
    recipe = read_recipe("digits-mlp", ROOT / "recipes")
    found = json.loads((ROOT / "experiments/primal_dual_weighting/pages/quick/winners.json").read_text())
    for method in ("primal_dual", "rfho", "fednest", "sustain"):
        for step, value in found[method].items():
            assert recipe[f"algorithms.{method}.{step}"] == value
