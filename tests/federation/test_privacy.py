"""Clipping, noise and the account of them."""

from __future__ import annotations

import json

import pytest
import torch

from pipeline.errors import UserError
from pipeline.federation.privacy import BudgetSpent, Privacy
from pipeline.federation.settings import PrivacySettings
from tests.federation.helpers import history, params, run, sites, transport


def test_rows_are_clipped_each_by_itself():
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    found = Privacy(clip=1.0).release(rows)
    torch.testing.assert_close(found, torch.tensor([[0.6, 0.8], [0.3, 0.4]]))
    torch.testing.assert_close(
        Privacy(clip=1.0, clip_numbers=2.0).release(torch.tensor([-5.0, 1.0])), torch.tensor([-2.0, 1.0])
    )


def watched(release, longest):
    def seen(rows):
        found = release(rows)
        longest.append(float(found.reshape(len(rows), -1).norm(dim=1).max()))
        return found

    return seen


def test_every_kind_of_answer_is_clipped(tmp_path):
    """All answers of a run, of all three kinds of question, are no longer than the bound."""
    for algorithm in ("primal_dual", "fedavg", "simfbo"):
        longest = []
        there = sites(tmp_path, PrivacySettings(clip=0.01, clip_numbers=0.02))
        for site in there.values():
            site.privacy.release = watched(site.privacy.release, longest)
        run(tmp_path, params(algorithm, problem="client_weighting"), transport(there))
        assert 0 < max(longest) <= 0.0201
        assert len(longest) >= 24


def test_a_limit_needs_noise_to_be_kept():
    with pytest.raises(BudgetSpent):
        Privacy(clip=1.0, limit=5.0).release(torch.ones(1, 2))


def test_the_account_outlives_the_process_and_begins_before_the_answer(tmp_path):
    account = tmp_path / "account.json"
    Privacy(clip=1.0, account=account).release(torch.ones(1, 2))
    assert json.loads(account.read_text())["releases"] == 1
    again = Privacy(clip=1.0, account=account)
    again.release(torch.ones(1, 2))
    assert again.spent() == {"epsilon": None, "delta": 1e-5, "releases": 2}
    account.write_text(json.dumps({"noise": 3.0, "releases": 2}))
    with pytest.raises(UserError, match="Fix: that value"):
        Privacy(clip=1.0, account=account)


def test_noise_is_accounted_for_in_the_history_and_ends_at_the_limit(tmp_path, capsys):
    pytest.importorskip("opacus", reason="needs pip install 'fedbilevel[federation]'")
    noisy = Privacy(clip=2.0, noise=20.0)
    found = noisy.release(torch.zeros(1, 40_000))
    assert float(found.std()) == pytest.approx(40.0, rel=0.02)
    # A Gaussian mechanism of noise multiplier 10. By Mironov (2017) epsilon is alpha / 200 + ln(1/delta) / (alpha - 1),
    # at best about 0.48; Opacus's conversion is a little tighter.
    assert 0.3 < noisy.epsilon() < 0.49

    there = sites(tmp_path, PrivacySettings(clip=0.5, noise=20.0, limit=noisy.epsilon(12)))
    with pytest.raises(UserError, match="min_sites"):
        run(tmp_path, params(), transport(there))
    assert "its privacy budget is spent" in capsys.readouterr().err
    there = sites(tmp_path, PrivacySettings(clip=0.5, noise=20.0), store="another store")
    run(tmp_path, params("average"), transport(there))
    spent = [row["epsilon"] for row in history(tmp_path)]
    assert spent[0] == ""
    assert float(spent[1]) == pytest.approx(noisy.epsilon(1), rel=1e-6)
    assert float(spent[-1]) == pytest.approx(noisy.epsilon(6), rel=1e-6)
