"""Figures of a run whose upper level lies with the sites: each finds some on samples of its own, and the server, which
has none of these, takes their means.

| figure | a site finds | the server reports |
|---|---|---|
| `validation_loss` | f_i on its validation samples | sum_i p_i f_i |
| `train_accuracy`, `train_loss` | the mean over its training and validation samples | the mean over all samples |
| `test_accuracy`, `test_loss` | the mean over its test samples | the mean over sites |
| of `fair`, an expected accuracy | accuracies per class, by its own shares of the classes | their spread |

`test_accuracy` is found at sites under local heads alone: what is tested is the body with the site's own head. Else the
server tests, on its own test set, and sends sites of `fair` its accuracies per class. Means are over the sites that
answer; a figure that no site gives is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.federation.hub import Hub, Shapes, SitesLost
from pipeline.federation.messages import Message
from pipeline.problems.base import PersonalNetworks, Variables
from pipeline.problems.bilevel_images import weighted_mean
from pipeline.problems.fair import Fair
from pipeline.training import evaluation
from pipeline.training.best import selection_measure
from pipeline.training.evaluation import Classification, Outcome
from pipeline.training.tasks import Task

EXPECTED = "expected_accuracy"
OF_LOCAL_HEADS = ("test_accuracy", "test_loss")


def names(problem: Any) -> tuple[str, ...]:
    """Of the figures that sites find."""
    if isinstance(problem, Fair):
        return ("validation_loss", EXPECTED)
    return ("validation_loss", *problem.measures, *(OF_LOCAL_HEADS if isinstance(problem, PersonalNetworks) else ()))


# --------------------------------------------------------------------------------------------------------- a site


def alone(problem: Any, client: int) -> Any:
    """The problem of that client by itself, all of whose samples are measured."""
    data, own = problem.data, slice(client, client + 1)
    apart = replace(data.own_validation, starts=data.own_validation.starts[own], sizes=data.own_validation.sizes[own])
    data = replace(
        data,
        starts=data.starts[own],
        sizes=data.sizes[own],
        kinds=data.kinds[own],
        oracle_weights=data.oracle_weights[own],
        client_labels=[list(range(data.classes))],
        own_validation=apart,
    )
    every = {"measured": None} if "measured" in {each.name for each in fields(problem)} else {}
    return replace(problem, data=data, client_probabilities=problem.client_probabilities.new_ones(1), **every)


Found = Callable[[Variables, Tensor | None], tuple[dict[str, float], int]]
"""(variables, the server's accuracies per class) -> each figure, and on how many samples the training figures are."""


def figures(problem: Any) -> Found:
    """What a site answers, of the problem `alone`. Local heads: Y [1, d_y], its own."""

    def found(variables: Variables, per_class: Tensor | None) -> tuple[dict[str, float], int]:
        data = problem.data
        measured = {"validation_loss": problem.upper_value(variables)}
        if isinstance(problem, Fair):
            assert per_class is not None
            measured[EXPECTED] = float(problem.shares_of(per_class.double()))
        else:
            measured |= problem.measure(variables)
        if isinstance(problem, PersonalNetworks):
            given = evaluation.answers(problem, variables, data.test_images, data.test_labels)
            measured |= {"test_accuracy": given.accuracy, "test_loss": given.loss}
        return measured, int(data.sizes.sum() + data.own_validation.sizes.sum())

    return found


# ----------------------------------------------------------------------------------------------------- the server


@dataclass(frozen=True)
class Figures:
    """What evaluations find, at the server and at the hub's sites."""

    hub: Hub
    problem: Any

    def measuring(self, task: Task) -> Task:
        """The task with these evaluations in place of those of a server that has all samples."""
        more = [name for name in names(self.problem) if name not in (*task.measures, EXPECTED)]
        return replace(task, measures=(*task.measures, *more), measure=self.measure)

    def measure(self, variables: Variables) -> dict[str, float]:
        """As `pipeline.training.tasks` measures. Raises TooFew."""
        found, samples = self._ask(variables)
        p = self.problem.client_probabilities
        result: dict[str, float] = {}
        weights = {"validation_loss": p} | dict.fromkeys(self.problem.measures, samples / samples.nansum())
        for name, values in found.items():
            if name == EXPECTED and values.isfinite().any():
                result |= self.problem.spread(values[values.isfinite()])
            elif values.isfinite().any():
                result[name] = weighted_mean(values, weights.get(name, torch.full_like(p, 1 / len(p))).to(values))
        if isinstance(self.problem, PersonalNetworks):
            return result
        selected = evaluation.selected(self.problem, variables)
        result |= evaluation.tested(self.problem, variables)
        return result | ({} if selected is None else {selection_measure(self.problem.data.classes): selected})

    def outcome(self, variables: Variables, row: dict[str, Any]) -> Outcome:
        """Of the variables that are served, evaluated in that row of the history. Under local heads nothing is known of
        the test but accuracy and loss."""
        problem, data = self.problem, self.problem.data
        selection = None
        if isinstance(problem, PersonalNetworks):
            known: list[Any] = [row.get(name) for name in OF_LOCAL_HEADS]
            tested: Any = Classification(known[0], known[1], [], [], [], confusion=np.zeros((0, 0)))
        else:
            tested = evaluation.judge(problem, variables, data.test_images, data.test_labels)
            if len(data.selection_labels):
                selection = evaluation.judge(problem, variables, data.selection_images, data.selection_labels)
        weights = problem.client_weights(variables)
        return Outcome(
            test=tested,
            selection=selection,
            validation_loss=row.get("validation_loss"),  # type: ignore[arg-type]
            weights=np.full(data.clients, 1.0 / data.clients) if weights is None else weights.double().numpy(),
            weighted=weights is not None,
            measures={name: row.get(name) for name in problem.measures},  # type: ignore[misc]
        )

    def _ask(self, variables: Variables) -> tuple[dict[str, Tensor], Tensor]:
        """Each figure of every client [N], and its samples [N]; not a number where its site does not answer."""
        self.hub.gather()
        wanted, clients = names(self.problem), self.problem.data.clients
        sent = {f"variables.{name}": value for name, value in variables.items()}
        if isinstance(self.problem, Fair):
            sent["per_class"] = self.problem.class_accuracies(variables)
        question = Message("measure", {"taken": self.hub.taken}, sent)
        sites = [site for site in self.hub.members if site in self.hub.ready]
        shapes: dict[str, Shapes] = {site: dict.fromkeys(wanted, (len(self.hub.members[site]),)) for site in sites}
        try:
            answers = self.hub.ask(dict.fromkeys(sites, question), shapes)
        except SitesLost as lost:
            answers = lost.answers
        unknown = torch.full((clients,), torch.nan, dtype=torch.float64)
        found, samples = {name: unknown.clone() for name in wanted}, unknown.clone()
        for site, answer in answers.items():
            at = list(self.hub.members[site])
            samples[at] = float(answer.facts["samples"])
            for name in wanted:
                found[name][at] = answer.tensors[name].to(unknown)
        return found, samples
