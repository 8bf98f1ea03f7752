"""Clients spread over processes: the same runs, number for number."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pipeline.methods import ALGORITHMS
from pipeline.sharing import Share
from tests.core.shared_runs import DAMAGED, WHOLE, continued, every_run, follow, go_on

ROOT = Path(__file__).parents[2]
RANKS = 2
ALONE = Share()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where two processes have left their runs; with five clients, half of them active, one simulates no client in
    some rounds. What they continue was begun by one process; one run has lost its record meanwhile."""
    folder = tmp_path_factory.mktemp("shared")
    for variant, run in continued().items():
        go_on(folder / variant, *run, ALONE, until=2)
    (folder / DAMAGED / "run" / "history.csv").unlink()
    command = [sys.executable, "-W", "ignore", "-m", "tests.core.shared_runs"]
    started = [subprocess.Popen([*command, str(rank), str(RANKS), str(folder)], cwd=ROOT) for rank in range(RANKS)]
    try:
        assert [process.wait(120) for process in started] == [0] * RANKS
    finally:
        for process in started:
            process.kill()
            process.wait()
    return folder


def agree(found, expected, variant):
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-10, atol=1e-10, msg=f"{variant}: {key}")


def test_every_client_is_simulated_once():
    clients = torch.tensor([7, 0, 4, 3, 9])
    rows = torch.arange(1.0, 11.0)
    for ranks in (1, 2, 3, 8):
        shares = [Share(rank, ranks) for rank in range(ranks)]
        assert sorted(torch.cat([share.own(clients) for share in shares]).tolist()) == [0, 1, 2, 3, 4]
        assert torch.equal(sum(share.keep_own(rows.clone()) for share in shares), rows)
        for share in shares:
            kept = share.keep_own(rows.clone()).nonzero()[:, 0]
            assert torch.equal(kept, torch.arange(10)[share.own(torch.arange(10))])


def test_no_method_is_left_out():
    assert {name for name, _ in every_run().values()} == ALGORITHMS.keys()


@pytest.mark.slow
def test_several_processes_give_the_run_of_one(folder):
    """Every method, half of the clients in each round, noise in every answer: to 1e-10 in float64; costs and measures
    too."""
    found, runs = torch.load(folder / "runs.pt"), every_run()
    assert found.keys() == runs.keys()
    for variant, run in runs.items():
        agree(found[variant], follow(*run, ALONE), variant)


@pytest.mark.parametrize("variant", continued())
@pytest.mark.slow
def test_a_save_is_continued_by_any_number_of_processes(folder, variant, tmp_path, capsys):
    """One process, from round 3 two, from round 5 one again; against one all the way. A save without its record is one
    that all processes start afresh from."""
    run = continued()[variant]
    found = go_on(folder / variant, *run, ALONE)
    assert "afresh" not in capsys.readouterr().err
    agree(found, go_on(tmp_path, *run, ALONE), variant)
    rounds = [line.split(",")[0] for line in (folder / variant / "run" / "history.csv").read_text().splitlines()]
    assert rounds == ["round", *map(str, range(WHOLE + 1))]
