"""A run that falls from its best evaluation hands over the model of that one, also after an interruption."""

import pytest
import pytorch_lightning as pl
import torch

from pipeline.config.spec import override
from pipeline.params.resolve import resolve
from pipeline.training.best import Best, fell
from pipeline.training.module import NotFinite
from tests.training.helpers import Ruin
from tests.training.test_training import Interrupt, StopAt, fit


def seen(*accuracies, every=10):
    best = Best()
    for i, accuracy in enumerate(accuracies):
        best.see(every * i, accuracy, {"w": torch.tensor([float(i)])})
    return best


@pytest.mark.parametrize(
    ("accuracies", "round_"),
    [
        ((0.1, 0.9, 0.5), 10),
        ((0.9, 0.1, 0.5), 0),
        ((0.1, 0.9, 0.9, 0.7), 20),  # the latest one on ties
        ((0.1, 1.0, 0.98), 20),  # 1 - 0.98 is more than 0.02 in floating point
        ((0.1, 1.0, 0.979), 10),
        ((0.1, 0.5, 0.9), 20),
        ((None, None, None), 20),
    ],
)
def test_the_model_of_the_best_evaluation_is_served_where_the_last_is_clearly_worse(accuracies, round_):
    last = {"w": torch.tensor([float(len(accuracies) - 1)])}
    served = seen(*accuracies).served(10 * (len(accuracies) - 1), last)
    assert served.round == round_
    assert served.variables["w"].item() == round_ / 10


def test_a_fall_of_just_two_points_is_none():
    assert not fell(0.92, 0.90)
    assert fell(0.92, 0.8999)


def test_what_is_kept_does_not_move_with_the_run():
    best, w = Best(), torch.zeros(3)
    best.see(0, 0.5, {"w": w})
    w += 1
    assert best.variables["w"].tolist() == [0, 0, 0]


def test_every_evaluation_records_the_selection_accuracy(params, digits, partition, tmp_path):
    module, rows = fit(params, digits, partition, tmp_path)
    data = module.context.problem.data
    evaluated = [row for row in rows if row["selection_accuracy"]]
    assert [int(row["round"]) for row in evaluated] == [0, 4, 8, 12]
    answers = module.context.problem.model.apply(module.state.variables["w"], data.scaled(data.selection_images))
    share = float((answers.argmax(1) == data.selection_labels).double().mean())
    assert float(rows[-1]["selection_accuracy"]) == pytest.approx(share)


def test_a_run_without_a_selection_set_serves_its_last_model(params, digits, tmp_path):
    from pipeline.data.partition import make_partition

    params = resolve(override(params, {"partition.selection_per_label": 0}))
    dealt = make_partition(digits.train_labels, "digits", 10, params.partition, 0)
    module, rows = fit(params, digits, dealt, tmp_path, callbacks=(Ruin(after=11),))
    assert "selection_accuracy" not in rows[0]
    assert module.kept.round == 12
    assert torch.equal(module.kept.variables["w"], module.state.variables["w"])


def test_a_run_that_collapses_serves_its_best_model_also_after_an_interruption(params, digits, partition, tmp_path):
    """Ruined from round 11 on, best at round 8: the run that was stopped there goes on from its save of round 10."""
    params = override(params, {"algorithms.primal_dual.estimator": "memory"})
    module, rows = fit(params, digits, partition, tmp_path / "whole", callbacks=(Ruin(after=10),))
    accuracy = {int(row["round"]): float(row["selection_accuracy"]) for row in rows if row["selection_accuracy"]}
    assert max(accuracy, key=lambda t: accuracy[t]) == 8
    assert accuracy[12] < accuracy[8] - 0.02
    assert module.kept.round == 8
    assert [f"{weight:.6g}" for weight in module.kept.variables["x"].tolist()] == [
        f"{float(rows[8][f'client_weight_{i}']):.6g}" for i in range(10)
    ]
    with pytest.raises(Interrupt):
        fit(params, digits, partition, tmp_path / "cut", callbacks=(StopAt(11),))
    again, _ = fit(params, digits, partition, tmp_path / "cut", callbacks=(Ruin(after=10),))
    assert again.kept.round == 8
    for name, value in module.kept.variables.items():
        assert torch.equal(again.kept.variables[name], value), name
        assert not torch.equal(again.state.variables[name], value), name


class Blow(pl.Callback):
    """The model is no number any more in that round, whenever it is reached, unless the step size was halved often
    enough."""

    def __init__(self, round_: int, cure: int) -> None:
        self.round, self.cure = round_, cure

    def on_train_batch_start(self, trainer, module, *args):
        if module.round + 1 == self.round and module.halvings < self.cure:
            with torch.no_grad():
                module.variables["w"].fill_(float("nan"))


def test_a_run_that_diverges_goes_on_from_its_last_save_with_smaller_steps(params, digits, partition, tmp_path, capsys):
    module, rows = fit(params, digits, partition, tmp_path, callbacks=(Blow(8, cure=2),), recover=True)
    assert (module.round, module.halvings, module.diverged) == (12, 2, None)
    assert [int(row["round"]) for row in rows] == list(range(13))
    assert module.context.hyper.eta_w == params.algorithms.primal_dual.eta_w / 4
    lr = module.optimizers()[0].param_groups[0]["lr"]
    assert lr < params.algorithms.primal_dual.eta_w / 4
    assert capsys.readouterr().err.count("Going on from the last save with eta_w halved") == 2


def test_a_run_that_no_smaller_step_saves_ends_with_the_model_it_had(params, digits, partition, tmp_path, capsys):
    module, rows = fit(params, digits, partition, tmp_path / "cut", callbacks=(Blow(8, cure=9),), recover=True)
    assert (module.round, module.kept.round, module.diverged) == (5, 5, 8)
    assert len(rows) == 6
    assert all(bool(value.isfinite().all()) for value in module.kept.variables.values())
    assert "The run ends with the model of its last save" in capsys.readouterr().err
    assert (tmp_path / "cut" / "run" / "state.ckpt").exists()


def test_a_run_that_diverges_before_its_first_save_ends_with_advice(params, digits, partition, tmp_path):
    with pytest.raises(NotFinite, match=r"round 3.*Fix: lower.*eta_w.*recorded is in"):
        fit(params, digits, partition, tmp_path, callbacks=(Blow(3, cure=9),), recover=True)
    assert (tmp_path / "run" / "state.ckpt").exists()
