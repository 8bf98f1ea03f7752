"""Runs whose upper level lies with the sites: each sets samples of its own aside, and what is measured on them."""

from __future__ import annotations

import dataclasses
import shutil
from functools import partial

import numpy as np
import pytest
import torch

from pipeline.data.federated import FederatedData, Parts
from pipeline.data.holdings import Holding
from pipeline.data.partition import _own_validation
from pipeline.errors import UserError
from pipeline.federation import measuring, problems
from pipeline.federation.demo import FEATURES
from pipeline.federation.hospital import site_of
from pipeline.federation.messages import Message, decode, encode
from pipeline.federation.readers import csv_file
from pipeline.federation.settings import PrivacySettings, ServerData, SiteData, SiteSettings
from pipeline.seeds import numpy_generator
from pipeline.training.loop import Loop
from pipeline.training.tasks import image_task
from tests.federation.helpers import LABEL, OPEN, SITES, history, params, prepare, run, trained, transport

EXACT = {"train__precision": "64-true", "model__name": "tests.federation.helpers.small_network"}
RUNS = {
    "simfbo": {"problem": "hyper_representation"},
    "fedbioacc": {"problem": "hyper_representation", "federation__aggregation": "size"},
    "fedbio_local": {},
    "fedbioacc_local": {},
    "lfednest": {},
    "fednest_general": {"problem": "fair"},
    "fedbio": {"problem": "loss_tuning", "problems__loss_tuning__class_weights": 0.1},
}


def chosen_for(algorithm, **more):
    return params(algorithm, **{"federation__participation": 0.6} | EXACT | RUNS[algorithm] | more)


def sites(folder, privacy=OPEN, **data):
    """Each with the server's test set as its own, unless data say otherwise."""
    prepare(folder, 1, 6)
    for name in SITES:
        shutil.copyfile(folder / "server" / "test.csv", folder / name / "test.csv")
    data = SiteData(options=LABEL, **{"test": "test.csv"} | data)
    code = ["tests.federation.helpers.small_network"]
    settings = {name: SiteSettings(name=name, data=data, privacy=privacy, code=code) for name in SITES}
    return {name: site_of(settings[name], folder / name) for name in SITES}


def simulated_history(folder, chosen, away=None):
    """Rows of the simulator that deals the same samples: round -> figures; and the last variables. away: round -> ids
    of clients that are absent from it."""
    read = lambda path: csv_file(path, **LABEL)[:2]  # noqa: E731
    tables = [read(folder / name / "data.csv") for name in SITES]
    server = [read(folder / "server" / name) for name in ("validation.csv", "test.csv")]
    kinds = ["unknown"] * len(SITES)
    data = FederatedData.from_arrays(tables, *server, classes=2, kinds=kinds, dtype=torch.float64)
    apart, draw = [], partial(numpy_generator, chosen.seed)
    for client, (_, y) in enumerate(tables):
        holding = Holding(np.arange(len(y)), y.astype(int), "unknown", [0, 1])
        apart.append(torch.tensor(_own_validation(holding, 0.2, draw, client)))
    chosen_rows, owners = torch.cat(apart), data.training.owners
    parts = []
    for which in (~chosen_rows, chosen_rows):
        sizes = owners[which].bincount(minlength=len(SITES))
        parts.append(Parts(data.indices[which], data.labels[which], sizes.cumsum(0) - sizes, sizes))
    train, own = parts
    data = dataclasses.replace(
        data, indices=train.rows, labels=train.labels, starts=train.starts, sizes=train.sizes, own_validation=own
    )
    chosen = problems.settled(chosen, len(data.labels), len(FEATURES), 1, 2)
    problem = problems.problem_of(chosen, data)
    task = image_task(problem)
    loop, found = Loop(chosen.method, problems.context_of(chosen, problem), chosen.train.rounds), {}
    heads = {"Y": loop.state.memory["Y"]} if "Y" in loop.state.memory else {}
    for round_ in range(chosen.train.rounds + 1):
        if round_:
            loop.context = dataclasses.replace(loop.context, absent=frozenset((away or {}).get(round_, ())))
            loop.step()
        if round_ % chosen.train.eval_every == 0:
            found[round_] = task.measure(loop.state.variables | heads)
    return found, loop.state.variables


@pytest.mark.parametrize("algorithm", RUNS)
def test_the_history_is_the_simulators(tmp_path, algorithm):
    chosen = chosen_for(algorithm)
    run(tmp_path, chosen, transport(sites(tmp_path)))
    expected, variables = simulated_history(tmp_path, chosen)
    rows = history(tmp_path)
    assert len(expected) == 3
    for round_, figures in expected.items():
        for name, value in figures.items():
            assert float(rows[round_][name]) == pytest.approx(value, rel=1e-10, abs=1e-10), (round_, name)
    found = trained(tmp_path)
    assert found.keys() == variables.keys()
    for name, value in variables.items():
        torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-10)


def page_of(folder):
    return (folder / "server" / "results" / "report.html").read_text().partition("</style>")[2]


def test_the_page_says_who_tested(tmp_path):
    """Under local heads the server needs no test set, and none is spoken of."""
    run(tmp_path, chosen_for("simfbo", train__rounds=1), transport(sites(tmp_path)))
    page = page_of(tmp_path)
    assert "validation scales the features, test the accuracy" in page
    assert "own validation" in page
    assert "of 400 test samples" in page
    there = transport(sites(tmp_path, test=0.25))
    (tmp_path / "server" / "test.csv").unlink()
    data = ServerData(options=LABEL, test=None)
    run(tmp_path, chosen_for("lfednest", train__rounds=1), there, data=data)
    page = page_of(tmp_path)
    assert "validation scales the features." in page
    assert "own test" in page
    assert "server: test" not in page
    with pytest.raises(UserError, match=r"data.test = null: the server tests the model\. Fix:"):
        run(tmp_path, chosen_for("simfbo"), there, data=data)


def test_a_share_is_dealt_once_and_tests_are_dealt_before_validation(tmp_path):
    """Of 220 patients: 44 to test on, 35 to validate on, and 141 to train on; none is two of these."""
    there = sites(tmp_path, test=0.2)
    assert there["north"]._describe(["test", "validation"])["apart"] == {"test": 44, "validation": 35}
    run(tmp_path, chosen_for("fedbio_local"), transport(there))
    data = there["north"]._part.context.problem.data
    rows = [data.images[data.indices], data.images[data.own_validation.rows], data.test_images]
    assert [len(part) for part in rows] == [141, 35, 44]
    assert len(torch.cat(rows).unique(dim=0)) == len(csv_file(tmp_path / "north" / "data.csv", **LABEL)[1])


def figures_without(folder, away, names):
    """The problem's figures at the start, of all clients but one."""
    there, found = sites(folder), {}
    run(folder, chosen_for("fedbio_local", train__rounds=1), transport(there))
    for name, site in there.items():
        if name != away:
            problem = measuring.alone(site._part.context.problem, SITES.index(name))
            start = {"x": problem.initial_upper(0), "Y": problem.initial_lower(0)[None]}
            found[name] = measuring.figures(problem)(start, None)
    samples = np.array([count for _, count in found.values()])
    columns = {name: np.array([figures[name] for figures, _ in found.values()]) for name in names}
    return columns, samples


def test_figures_are_means_over_the_sites_that_answer(tmp_path, capsys):
    """East is there, but its figures are lost on the way."""
    names = ("validation_loss", "train_accuracy", "test_accuracy")
    columns, samples = figures_without(tmp_path, "east", names)
    network = transport(sites(tmp_path))
    network.sites["east"] = losing(network.sites["east"], "measure")
    run(tmp_path, chosen_for("fedbio_local"), network)
    row = history(tmp_path)[0]
    assert float(row["validation_loss"]) == pytest.approx(columns["validation_loss"].mean(), rel=1e-6)
    assert float(row["train_accuracy"]) == pytest.approx(columns["train_accuracy"] @ samples / samples.sum(), rel=1e-10)
    assert float(row["test_accuracy"]) == pytest.approx(columns["test_accuracy"].mean(), rel=1e-10)
    assert "east is left out" in capsys.readouterr().err


def losing(answer, kind):
    """A site whose answers to that kind of question are cut off."""

    def reply(content):
        found = answer(content)
        return found[:-8] if decode(content).kind == kind else found

    return reply


def test_a_run_whose_figures_no_site_gives_ends_all_the_same(tmp_path):
    network = transport(sites(tmp_path))
    network.sites = {name: losing(answer, "measure") for name, answer in network.sites.items()}
    summary = run(tmp_path, chosen_for("fedbio_local"), network)
    assert "no site has tested the last model" in summary
    assert (tmp_path / "server" / "results" / "report.html").is_file()


def last_steps_undone(site, at):
    """A site whose last answer to its step number `at` is lost after the site has taken it."""
    count = 0

    def reply(content):
        nonlocal count
        found = site.answer(content)
        if decode(content).kind == "step":
            count += 1
            return found[:-8] if count == at else found
        return found

    return reply


class Killed(BaseException):
    pass


@pytest.mark.parametrize("fault", ["answer lost", "site restarted", "server restarted"])
def test_heads_are_those_of_the_steps_that_counted(tmp_path, fault):
    """At the evaluation of round 3 an answer is lost: figures are those of the head before. A site that is started anew
    after round 4 is away in round 5 and goes on with its save; so do all when the server is started anew."""
    every = 3 if fault == "server restarted" else 2  # two rounds are to be undone
    chosen = chosen_for("fedbio_local", federation__participation=1.0, train__checkpoint_every=every)
    there = sites(tmp_path)
    network, away = transport(there), {}
    if fault == "answer lost":
        network.sites["east"] = last_steps_undone(there["east"], 3)
        away = {3: {2}}

    def on_round(round_, hub):
        if fault == "site restarted" and round_ == 4:
            network.sites["east"] = sites(tmp_path)["east"].answer
        if fault == "server restarted" and round_ == 5:
            raise Killed

    if fault == "site restarted":
        away = {5: {2}}
    if fault == "server restarted":
        with pytest.raises(Killed):
            run(tmp_path, chosen, network, on_round)
        on_round = None
    run(tmp_path, chosen, network, on_round)
    expected, _ = simulated_history(tmp_path, chosen, away)
    rows = history(tmp_path)
    for round_, figures in expected.items():
        for name, value in figures.items():
            assert float(rows[round_][name]) == pytest.approx(value, rel=1e-10), (round_, name)


def test_a_site_that_missed_saves_goes_on_with_its_own_newest(tmp_path, capsys):
    """East is killed after the save of round 2 and comes back after round 5; the server has saved in round 4."""
    chosen = chosen_for("fedbio_local", federation__participation=1.0)
    network = transport(sites(tmp_path))

    def on_round(round_, hub):
        if round_ == 2:
            del network.sites["east"]
        if round_ == 5:
            network.sites["east"] = sites(tmp_path)["east"].answer

    run(tmp_path, chosen, network, on_round)
    assert "east goes on with what its clients kept after round 2" in capsys.readouterr().err
    expected, _ = simulated_history(tmp_path, chosen, {3: {2}, 4: {2}, 5: {2}})
    last = history(tmp_path)[6]
    for name, value in expected[6].items():
        assert float(last[name]) == pytest.approx(value, rel=1e-10), name


def test_the_same_run_once_more_starts_anew(tmp_path):
    """Sites go on answering after a run; what their clients kept in it, and its saves, belong to that run alone."""
    chosen = chosen_for("fedbio_local", train__rounds=4)
    network, rows = transport(sites(tmp_path)), []
    for _ in range(2):
        run(tmp_path, chosen, network)
        rows.append([{name: value for name, value in row.items() if name != "seconds"} for row in history(tmp_path)])
    assert rows[0] == rows[1]
    assert len(list((tmp_path / "east" / "store").glob("*.rows"))) == 4


def test_every_figure_counts_as_an_answer(tmp_path):
    """Five figures at each of three evaluations, and x in each of six rounds; none exceeds the bound."""
    there = sites(tmp_path, PrivacySettings(clip=1.0, clip_numbers=0.3))
    chosen = chosen_for("fedbio_local", federation__participation=1.0)
    run(tmp_path, chosen, transport(there))
    assert there["north"].privacy.releases == 3 * 5 + 6
    row = history(tmp_path)[-1]
    for name in ("validation_loss", "train_loss", "test_accuracy"):
        assert float(row[name]) == pytest.approx(0.3)


def test_a_site_without_samples_of_its_own_cannot_take_part(tmp_path, capsys):
    with pytest.raises(UserError, match="0 of 4 sites"):
        run(tmp_path, chosen_for("simfbo"), transport(sites(tmp_path, validation=0.0)))
    assert "north cannot take part: it sets no validation samples aside (site.yaml, data.validation)" in (
        capsys.readouterr().err
    )


def test_other_runs_set_nothing_aside(tmp_path):
    there = sites(tmp_path)
    run(tmp_path, params(), transport(there))
    assert len(there["north"]._part.context.problem.data.indices) == 220
    refused = decode(there["north"].answer(encode(Message("measure", {"taken": {}}))))
    assert refused.kind == "refused"
