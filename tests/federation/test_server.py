"""The server's program with sites in this process: numbers, files, faults."""

from __future__ import annotations

import csv
import json
import re

import pytest
import torch

from pipeline.errors import UserError
from pipeline.federation.messages import Message, decode, encode
from pipeline.methods import ALGORITHMS
from tests.federation import helpers
from tests.federation.helpers import SITES, history, params, run, simulated, sites, trained, transport


def equal(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def close(found, expected):
    """To rounding: with some clients absent, an inner product of several rows is summed in another order."""
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)


TO_THE_LAST_BIT = ("primal_dual", "sustain", "average", "fedavg", "scaffold", "a_fedpd")


@pytest.mark.parametrize("algorithm", TO_THE_LAST_BIT)
def test_the_numbers_are_the_simulators_to_the_last_bit_in_float32(tmp_path, algorithm):
    """Each site with its own table and nothing else; the simulator with all of them."""
    chosen = params(algorithm, federation__participation=0.7)
    run(tmp_path, chosen, transport(sites(tmp_path)))
    equal(trained(tmp_path), simulated(tmp_path, chosen)[-1])


REFUSED = {"oracle_weights"}
LOCAL_HEADS = {"lfednest", "fedbio_local", "fedbioacc_local"}
"""Run in test_own_samples."""


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS.keys() - REFUSED - LOCAL_HEADS - set(TO_THE_LAST_BIT)))
def test_every_other_method_agrees_to_rounding(tmp_path, algorithm):
    """Where sites make sums, or inner products are those of several rows, the order of summation is another."""
    chosen = params(algorithm, train__precision="64-true", train__rounds=3)
    run(tmp_path, chosen, transport(sites(tmp_path)))
    expected = simulated(tmp_path, chosen)[-1]
    for name, value in trained(tmp_path).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-10, atol=1e-10)


def test_a_run_leaves_the_files_of_a_simulated_one_under_the_sites_names(tmp_path):
    summary = run(tmp_path, params(), transport(sites(tmp_path)))
    results = tmp_path / "server" / "results"
    metrics = json.loads((results / "metrics.json").read_text())
    assert 0.5 < metrics["test_accuracy"] <= 1
    assert metrics["algorithm"] == "primal_dual"
    assert "clean_weight" not in metrics  # who is clean is not known
    with (results / "client_weights.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == SITES
    assert [int(row["samples"]) for row in rows] == [count for count, _ in helpers.HOSPITALS.values()]
    assert sum(float(row["weight"]) for row in rows) == pytest.approx(1, abs=1e-5)
    found = history(tmp_path)
    assert [row["round"] for row in found] == [str(t) for t in range(7)]
    assert [row["sites"] for row in found[1:]] == ["4"] * 6
    assert [int(row["communication_rounds"]) for row in found] == list(range(7))
    pictures = {path.name for path in (results / "plots").iterdir()}
    assert pictures == {"client_weights.png", "final_weights.png", "accuracy_and_loss.png", "confusion_matrix.png"}
    assert all(site in summary for site in SITES)
    page = (results / "report.html").read_text()
    assert all(site in page for site in SITES)
    assert "python -m pipeline.federation server" in page
    assert f"primal_dual on {len(SITES)} sites" in page
    shown = page.partition("</style>")[2].partition("All metrics")[0]
    assert not re.search(r">[^<>]*clients?\b", shown)
    reproduced = page.partition("params.yaml")[2].partition("</pre>")[0]
    assert all(words in reproduced for words in ("name: linear", "rounds: 6"))
    assert not any(words in reproduced for words in ("arrays", "payload", "sites", "auto"))


class Killed(BaseException):
    pass


@pytest.mark.parametrize("algorithm", ["primal_dual", "fedavg"])
def test_a_server_killed_in_mid_run_goes_on_from_its_last_save(tmp_path, algorithm):
    """Saves after every second round: rounds 1 to 5 are done, the last save is of round 4."""
    chosen, there = params(algorithm, federation__participation=0.7), sites(tmp_path)
    rounds = []

    def die(round_, hub):
        rounds.append(round_)
        if len(rounds) == 5:
            raise Killed

    with pytest.raises(Killed):
        run(tmp_path, chosen, transport(there), die)
    run(tmp_path, chosen, transport(there), die)
    assert rounds == [1, 2, 3, 4, 5, 5, 6]
    equal(trained(tmp_path), simulated(tmp_path, chosen)[-1])
    assert [row["round"] for row in history(tmp_path)] == [str(t) for t in range(7)]


# -------------------------------------------------------------------------------------------------------- faults


def test_an_absent_site_is_an_absent_client_and_may_come_back(tmp_path, capsys):
    """West is away from the start, south is killed after round 2; south is back (a new process: it has forgotten the
    run) from round 5 on, west too. The others' numbers are the simulator's with these clients absent."""
    chosen, there = params(), sites(tmp_path)
    network = transport(there)
    west = network.sites.pop("west")

    def on_round(round_, hub):
        if round_ == 2:
            del network.sites["south"]
        if round_ == 4:
            network.sites |= {"south": sites(tmp_path)["south"].answer, "west": west}

    run(tmp_path, chosen, network, on_round, min_sites=2)
    away = {t: {3} if t <= 2 else {1, 3} if t <= 4 else set() for t in range(1, 7)}
    close(trained(tmp_path), simulated(tmp_path, chosen, lambda t: frozenset(away[t]))[-1])
    assert [row["sites"] for row in history(tmp_path)[1:]] == ["3", "3", "2", "2", "4", "4"]
    assert capsys.readouterr().err.count("south takes part") == 2


def spoiled(answer, spoil, at):
    """A site whose answers number `at` are spoiled."""
    count = 0

    def reply(content):
        nonlocal count
        found = answer(content)
        if decode(content).kind != "ask":
            return found
        count += 1
        return encode(spoil(decode(found))) if count in at else found

    return reply


def with_nan(message):
    return Message(message.kind, message.facts, {k: v * torch.nan for k, v in message.tensors.items()})


def with_wrong_shape(message):
    return Message(message.kind, message.facts, {k: v[..., :-1] for k, v in message.tensors.items()})


def with_nothing(message):
    return Message(message.kind, message.facts, {})


FAULTS = {"is not finite": with_nan, "has shape": with_wrong_shape, "is missing": with_nothing}


@pytest.mark.parametrize("words", FAULTS)
def test_a_wrong_answer_is_named_left_out_and_counted(tmp_path, words, capsys):
    chosen = params()
    network = transport(sites(tmp_path))
    network.sites["east"] = spoiled(network.sites["east"], FAULTS[words], at={3})
    run(tmp_path, chosen, network)
    assert f"east is left out: its 0.0 {words}" in capsys.readouterr().err
    close(trained(tmp_path), simulated(tmp_path, chosen, lambda t: frozenset({2} if t == 3 else ()))[-1])
    assert [row["answers_left_out"] for row in history(tmp_path)[1:]] == ["0", "0", "1", "0", "0", "0"]
    metrics = json.loads((tmp_path / "server" / "results" / "metrics.json").read_text())
    assert metrics["clients_left_out"] == "east (1)"


def of_another_scale(site, at):
    """That site, whose network sees features times a million in its questions number `at`."""
    count = 0

    def reply(content):
        nonlocal count
        asked = decode(content).kind == "ask"
        count += asked
        if not asked or count not in at:
            return site.answer(content)
        scaling = site._part.context.problem.data.scaling
        usual = scaling.spread.clone(), scaling.limit.clone()
        scaling.spread.div_(1e6)
        scaling.limit.mul_(1e6)
        found = site.answer(content)
        scaling.spread.copy_(usual[0])
        scaling.limit.copy_(usual[1])
        return found

    return reply


@pytest.mark.parametrize("algorithm", ["primal_dual", "fedavg", "scaffold"])
def test_an_answer_out_of_all_proportion_is_left_out_and_its_site_named(tmp_path, algorithm, capsys):
    """The server is killed after it, and does not forget: a second one, in round 6, is counted and no news."""
    chosen, there = params(algorithm), sites(tmp_path)
    network = transport(there)
    network.sites["east"] = of_another_scale(there["east"], at={3})

    def die(round_, hub):
        if round_ == 5:
            raise Killed

    with pytest.raises(Killed):
        run(tmp_path, chosen, network, die)
    said = capsys.readouterr().err
    assert said.count("round 3: the answers of client east are left out: its ") == 1
    network.sites["east"] = of_another_scale(there["east"], at={2})
    summary = run(tmp_path, chosen, network)
    assert "answers of client east" not in capsys.readouterr().err
    close(trained(tmp_path), simulated(tmp_path, chosen, left_out={3: 2, 6: 2})[-1])
    rows = history(tmp_path)[1:]
    assert [row["answers_left_out"] for row in rows] == ["0", "0", "1", "0", "0", "1"]
    assert [row["sites"] for row in rows] == ["4"] * 6  # it is there, and is asked again
    metrics = json.loads((tmp_path / "server" / "results" / "metrics.json").read_text())
    assert metrics["answers_left_out"] == 2
    assert metrics["clients_left_out"] == "east (2)"
    assert "east (2)" in summary
    assert "by client (rounds): east (2)" in (tmp_path / "server" / "results" / "report.html").read_text()


def test_answers_of_any_size_count_if_screening_is_off(tmp_path, capsys):
    there = sites(tmp_path)
    network = transport(there)
    network.sites["east"] = of_another_scale(there["east"], at={3})
    run(tmp_path, params(screening__leave_out=False), network)
    assert "left out" not in capsys.readouterr().err
    metrics = json.loads((tmp_path / "server" / "results" / "metrics.json").read_text())
    assert metrics["answers_left_out"] == 0
    assert "clients_left_out" not in metrics


def test_a_slow_site_is_left_out(tmp_path, capsys):
    """The transport's part is to come back in time and say so."""
    network, asked = transport(sites(tmp_path)), []
    ask = network.ask

    def hurried(questions, timeout):
        answers, missing = ask(questions, timeout)
        if "west" in answers and decode(questions["west"]).kind == "ask":
            asked.append(timeout)
            if len(asked) == 2:
                del answers["west"]
                missing["west"] = f"no answer within {timeout:g} s"
        return answers, missing

    network.ask = hurried
    chosen = params()
    run(tmp_path, chosen, network, timeout=7.0)
    assert asked[0] == 7.0
    assert "west is left out: no answer within 7 s" in capsys.readouterr().err
    close(trained(tmp_path), simulated(tmp_path, chosen, lambda t: frozenset({3} if t == 2 else ()))[-1])


def test_too_few_sites_are_waited_for_and_the_run_ends_with_what_to_do(tmp_path, capsys):
    chosen, there = params(), sites(tmp_path)
    network = transport(there)

    def two_leave(round_, hub):
        if round_ == 3:
            del network.sites["south"], network.sites["west"]

    with pytest.raises(
        UserError,
        match=r"2 of 4 sites are there, and min_sites is 3; .* south, west\. Fix: start .* min_sites in federation",
    ):
        run(tmp_path, chosen, network, two_leave, min_sites=3)
    assert "waiting: 2 sites of the 3 needed (min_sites); missing: south, west" in capsys.readouterr().err
    run(tmp_path, chosen, transport(there), min_sites=3)
    close(trained(tmp_path), simulated(tmp_path, chosen)[-1])


def test_what_a_site_does_not_agree_to(tmp_path, capsys):
    """Other columns than the server's, and code that it does not allow."""
    there = sites(tmp_path)
    described = there["west"]._describe([]) | {"columns": ["age", "height"]}
    there["west"]._describe = lambda apart: described
    run(tmp_path, params(), transport(there), min_sites=3)
    assert "west cannot take part: its samples have ['age', 'height']" in capsys.readouterr().err
    with pytest.raises(UserError, match="0 of 4 sites"):
        run(tmp_path, params(model__name="tests.federation.helpers.network"), transport(sites(tmp_path)))
    assert capsys.readouterr().err.count("code that this site does not run") == 4  # each is asked once a minute


def test_bfloat16_payloads_are_half_as_long(tmp_path):
    chosen, found = params(model__name="mlp", model__options={"hidden": [50]}), {}
    for payload in ("exact", "bfloat16"):
        run(tmp_path, chosen, transport(sites(tmp_path)), payload=payload)
        metrics = json.loads((tmp_path / "server" / "results" / "metrics.json").read_text())
        found[payload] = metrics["bytes_up"]
    assert found["bfloat16"] < 0.55 * found["exact"]


@pytest.mark.parametrize(
    ("algorithm", "more", "said"),
    [
        ("oracle_weights", {}, "real sites do not show which they are"),
        ("fedbio_local", {}, "needs a network with a body"),
        ("fedbio", {"problem": "data_cleaning"}, "would see the scores of each site's samples"),
        ("fedbio", {"problem": "few_shot"}, "few_shot"),
        ("fedbio", {"problem": "loss_tuning"}, "class_weights = 'auto' is not allowed"),
    ],
)
def test_what_real_sites_cannot_do_is_refused_with_a_fix(tmp_path, algorithm, more, said):
    with pytest.raises(UserError, match=rf"{said}.*Fix: "):
        run(tmp_path, params(algorithm, **more), transport(sites(tmp_path)))
