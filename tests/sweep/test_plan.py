"""Which runs a sweep is made of, and what is refused before any work."""

import pytest

from pipeline.config.spec import override
from pipeline.errors import UserError
from pipeline.params import Params
from pipeline.sweep.plan import groups, plan

ETA_W, ETA_X, K = (f"algorithms.primal_dual.{name}" for name in ("eta_w", "eta_x", "inner_steps"))


def runs_of(seeds=(), values=None, together="auto", **settings):
    settings = {name.replace("__", "."): value for name, value in settings.items()}
    sweep = {"sweep.seeds": list(seeds), "sweep.values": values or {}, "sweep.together": together}
    return plan(override(Params(), settings | sweep))


def test_the_cross_product_in_the_order_of_writing():
    runs = runs_of([3, 1], {ETA_W: [0.1, 0.05], "federation.participation": [1]})
    assert [run.name for run in runs] == [
        "eta_w=0.1,participation=1.0,seed=3",
        "eta_w=0.1,participation=1.0,seed=1",
        "eta_w=0.05,participation=1.0,seed=3",
        "eta_w=0.05,participation=1.0,seed=1",
    ]
    last = runs[-1].params
    assert (last.seed, last.algorithms.primal_dual.eta_w, last.federation.participation) == (1, 0.05, 1.0)
    assert last.algorithms.primal_dual.eta_x == Params().algorithms.primal_dual.eta_x


def test_an_empty_list_is_the_runs_own():
    (a, b) = runs_of([], {ETA_W: [0.1, 0.2], ETA_X: []}, seed=7)
    assert a.params.seed == b.params.seed == 7
    assert [run.name for run in runs_of([4], {})] == ["seed=4"]


def test_names_are_as_short_as_tells_them_apart_and_fit_for_a_folder():
    (run, _) = runs_of([0], {"model.name": ["mlp"], "data.name": ["digits"], "model.options": [{}, {"hidden": [8]}]})
    assert run.name == "model.name=mlp,data.name=digits,options=,seed=0"
    assert _.name == "model.name=mlp,data.name=digits,options=hidden-8,seed=0"
    alike = runs_of([0], {"partition.lead.groups": [[[0], [1]], [[0, 1]]], "partition.lead.noise_clients": [1]})
    assert len({run.name for run in alike}) == 2


@pytest.mark.parametrize(
    ("sweep", "parts"),
    [
        (([], {}), ["sweep.seeds", "sweep.values", "nothing to sweep over"]),
        (([-1], {}), ["sweep.seeds", "seed = -1", "at least 0"]),
        (([1, 1], {}), ["sweep.seeds", "[1, 1]", "there twice"]),
        (
            ([], {"algorithms.primal_dual.eta_v": [1.0]}),
            ["eta_v", "not a known parameter", "Did you mean algorithms.p"],
        ),
        ((list(range(101)), {ETA_W: [i / 100 for i in range(1, 101)]}), ["10,100 runs", "10,000 is the most"]),
        (([], {"train": [1]}), ["sweep.values: train", "a section", "train.rounds"]),
        (([], {ETA_W: ["a"]}), ["sweep.values", f'{ETA_W} = "a"', "a number, greater than 0"]),
        (([], {ETA_W: [0.0]}), [f"{ETA_W} = 0.0", "greater than 0"]),
        (([], {ETA_W: [1, 1.0]}), [ETA_W, "[1, 1.0]", "there twice"]),
        (([], {"seed": [1]}), ["sweep.values: seed", "sweep.seeds"]),
        (([], {"tracking.uri": ["a"]}), ["tracking.uri", "no value of a sweep"]),
        (([], {"train.devices": [1]}), ["train.devices", "no value of a sweep"]),
        (([], {"algorithms.sustain.eta_w": [0.1]}), ["algorithms.sustain.eta_w", "not in use", "primal_dual"]),
        (([], {"algorithm": ["fedavgg"]}), ["algorithm", "fedavgg", "Did you mean fedavg?"]),
        (([], {"problem": ["consensus"]}), ["sweep, problem=consensus,seed=0", "primal_dual does not fit"]),
        (([], {K: [1, 2]}, "always"), [K, "sweep.together: always", "eta_w", "sweep.together: auto"]),
        (([0, 1], {"algorithm": ["fedavg"]}, "always"), ["algorithm", "sweep.together: always"]),
    ],
)
def test_every_mistake_gets_name_value_allowed_and_fix(sweep, parts):
    with pytest.raises(UserError) as caught:
        runs_of(*sweep)
    for part in (*parts, "Fix:"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"federation__participation": 0.5}, "bernoulli"),
        ({"algorithm": "fedavg"}, "algorithm: fedavg is none of"),
        ({"algorithms__primal_dual__optimizer": "adam"}, "optimizer is adam"),
        ({"train__backend": "loop"}, "train.backend is loop"),
        ({"algorithm": "fednest", "algorithms__fednest__series": "randomised"}, "series: randomised"),
        (
            {"algorithms__primal_dual__hypergradient_iterate": "random", "algorithms__primal_dual__inner_steps": 2},
            "hypergradient_iterate: random",
        ),
    ],
)
def test_what_cannot_go_together_is_refused_or_goes_one_by_one(settings, reason):
    assert [len(group) for group in groups(runs_of([0, 1], **settings))] == [1, 1]
    with pytest.raises(UserError, match=f"{reason}.*Fix: sweep.together: auto"):
        runs_of([0, 1], together="always", **settings)


def test_several_processes_are_refused():
    with pytest.raises(UserError, match=r"train.devices \* train.nodes = 2 .*one process.*Fix"):
        runs_of([0, 1], train__devices=2)


def test_runs_go_together_that_differ_in_seed_and_continuous_hyper_parameters():
    found = groups(runs_of([0, 1], {K: [1, 2], ETA_W: [0.1, 0.2]}))
    assert [[run.name for run in group] for group in found] == [
        [f"inner_steps={k},eta_w={eta},seed={seed}" for eta in (0.1, 0.2) for seed in (0, 1)] for k in (1, 2)
    ]
