"""Which methods fit which problems: the table is complete, and pairs that make no sense are refused with the reason."""

import dataclasses

import pytest

from pipeline.config.spec import override
from pipeline.data.sets.registry import data_for
from pipeline.errors import UserError
from pipeline.methods import ALGORITHMS as METHODS
from pipeline.methods.registry import FAMILIES, FITS, family, heads, made_for, method_for
from pipeline.params import Params
from pipeline.params.resolve import resolve
from pipeline.params.rules import check_rules
from pipeline.problems.registry import OWN_DATA, PROBLEMS


def params(**settings) -> Params:
    return override(Params(), {name.replace("__", "."): value for name, value in settings.items()})


def answer(**settings) -> str:
    with pytest.raises(UserError) as caught:
        check_rules(params(**settings))
    assert "Fix:" in str(caught.value)
    return str(caught.value)


def test_the_table_names_every_method_and_every_problem_once():
    named = [method for methods in FAMILIES.values() for method in methods]
    assert sorted(named) == sorted(METHODS)
    problems = {field.name for field in dataclasses.fields(Params().problems)}
    assert set(FITS) == problems == set(PROBLEMS)
    assert all(family(name) in FITS[made_for(name)] for name in METHODS)


@pytest.mark.parametrize("problem", FITS)
@pytest.mark.parametrize("method", METHODS)
def test_every_pair_is_allowed_or_refused_with_the_reason(method, problem):
    settings = {"algorithm": method, "problem": problem}
    if problem in OWN_DATA:
        settings["data__name"] = data_for(problem)[-1]
    if problem == "few_shot":
        settings["partition__scheme"] = "few_shot"
    if method == "exact_gradient":
        settings["model__name"] = "networks.example.small"  # a named network is refused for its size
    if family(method_for(method, problem)) in FITS[problem]:
        check_rules(params(**settings))
    else:
        said = answer(**settings)
        assert f"algorithm: {method} does not fit problem: {problem}" in said
        assert (f"Fix: problem: {made_for(method)}, or an algorithm" in said) == (problem not in OWN_DATA)


@pytest.mark.parametrize(
    ("method", "problem"),
    [
        ("primal_dual", "client_weighting"),
        ("simfbo", "client_weighting"),
        ("fedbioacc", "client_weighting"),
        ("lfednest", "hyper_representation"),
        ("fedbio_local", "hyper_representation"),
    ],
)
def test_auto_is_the_problem_the_method_is_made_for(method, problem):
    assert resolve(params(algorithm=method)).problem == problem
    assert resolve(params(algorithm="simfbo", data__name="toy")).problem == "toy"
    few_shot = params(algorithm="lfednest", data__name="glyphs", partition__scheme="few_shot")
    assert resolve(few_shot).problem == "few_shot"
    assert resolve(few_shot).partition.validation_per_label == resolve(few_shot).partition.client_validation == 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"data__name": "glyphs", "partition__scheme": "lead"},
            "partition.scheme: lead does not go with data.name: glyphs: ",
        ),
        ({"partition__scheme": "few_shot"}, "partition.scheme: few_shot does not go with data.name: digits: "),
        ({"problem": "few_shot"}, "Fix: problem: auto, or data.name: glyphs."),
        ({"problem": "few_shot"}, "problem: few_shot does not go with data.name: digits: "),
        (
            {"data__name": "glyphs", "partition__scheme": "few_shot", "partition__selection_per_label": 2},
            "partition.selection_per_label = 2",
        ),
        ({"problem": "fair", "data__name": "omniglot"}, "problem: fair does not go with data.name: omniglot: "),
        ({"problem": "fair", "data__name": "toy"}, "problem: fair does not go with data.name: toy: "),
        (
            {"data__name": "glyphs", "partition__scheme": "few_shot", "partition__client_validation": 0.2},
            "partition.client_validation = 0.2",
        ),
    ],
)
def test_few_shot_data_tasks_and_problem_come_together(settings, said):
    assert said in answer(algorithm="lfednest", **settings)


def test_fednest_is_its_general_form_where_the_problem_is():
    assert resolve(params(algorithm="fednest")).algorithm == "fednest"
    assert resolve(params(algorithm="fednest", data__name="toy")).algorithm == "fednest"
    assert resolve(params(algorithm="fednest", problem="fair")).algorithm == "fednest_general"


@pytest.mark.parametrize(
    ("method", "heads"),
    [("simfbo", "shared"), ("lfednest", "local"), ("fedbio_local", "local"), ("fednest", "shared")],
)
def test_heads_are_those_the_method_learns(method, heads):
    found = resolve(params(algorithm=method, problem="hyper_representation"))
    assert found.problems.hyper_representation.heads == heads


def test_heads_that_a_method_cannot_learn_are_refused():
    key = {"problem": "hyper_representation", "problems__hyper_representation__heads": "local"}
    assert "heads: local does not go with algorithm: simfbo, which learns shared ones" in answer(
        algorithm="simfbo", **key
    )
    key["problems__hyper_representation__heads"] = "shared"
    assert "fedbio_local, which learns local ones" in answer(algorithm="fedbio_local", **key)
    check_rules(params(algorithm="lfednest", **key))
    assert heads(METHODS["lfednest"]) == ("local", "shared")


def test_the_clients_validation_parts_follow_the_problem():
    """0 where they are not used, so that client weighting deals as ever; the scheme `cleaning` deals its own."""

    def share(**settings):
        return resolve(params(**settings)).partition.client_validation

    assert share() == share(algorithm="simfbo") == 0.0
    assert share(algorithm="simfbo", problem="fair") == share(algorithm="fedbio_local") == 0.2
    assert share(algorithm="simfbo", problem="data_cleaning") == 0.0  # the server's validation set
    cleaning = {"algorithm": "simfbo", "problem": "data_cleaning", "partition__scheme": "cleaning"}
    assert share(**cleaning) == 0.0
    assert resolve(params(**cleaning)).problems.data_cleaning.validation == "clients"
    assert share(partition__client_validation=0.3) == 0.3


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        (
            {"problem": "fair", "partition__client_validation": 0.0},
            ["partition.client_validation = 0.0", "above 0 for problem: fair", "auto"],
        ),
        (
            {"partition__scheme": "cleaning", "partition__client_validation": 0.2},
            ["partition.client_validation = 0.2", "parts of its own", "validation_samples"],
        ),
        (
            {"problem": "data_cleaning", "problems__data_cleaning__validation": "clients"},
            ["validation: clients", "partition.scheme: lead", "wrong"],
        ),
        (
            {"partition__validation_per_label": 0},
            ["partition.validation_per_label = 0", "at least 1", "client_weighting"],
        ),
    ],
)
def test_upper_levels_without_right_samples_are_refused(settings, parts):
    said = answer(algorithm="simfbo", **settings)
    assert all(part in said for part in parts), said


def test_a_server_without_a_validation_set_is_allowed_where_nobody_asks_it():
    check_rules(params(algorithm="simfbo", problem="fair", partition__validation_per_label=0))


def test_methods_that_may_learn_client_weights_have_settings_for_them():
    for name in METHODS:
        assert hasattr(getattr(Params().algorithms, name), "weights") == (name in FAMILIES["averaging"])
