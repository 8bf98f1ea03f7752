"""Hyper-representation: the body of a network above, its last layer below.

Section 4.1 of the SimFBO specification (one head for all clients) and 4.2 of the FedBiO specification (a head for
each):

    shared heads   min_x sum_i p_i f_i(x, y*(x)),      y*(x)   = argmin_y sum_i p_i g_i(x, y)
    local heads    min_x sum_i p_i f_i(x, y_i*(x)),    y_i*(x) = argmin_y g_i(x, y)

    f_i = mean cross-entropy of (x, y) on client i's validation part
    g_i = mean cross-entropy of (x, y) on its training part + regulariser(y)

| symbol | here | shape |
|---|---|---|
| x | the body: every layer but the last | [d_x]; 157,000 for `mlp` on 28x28, 61,156 for `cnn` on 32x32 in colour |
| y | the head: the last linear layer, weight and bias | [d_y]; 2,010 and 850 |
| regulariser | `sq`: mu/2 ||y||^2; `norm`: mu (||W|| + ||b||), as the public FedNest code (mu = 0.05); `none` | |

Only `sq` makes g_i strongly convex: the cross-entropy alone is flat along (features + 1) directions of the head, and
the unsquared norm along the weight itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import vmap

from pipeline import randomness
from pipeline.config.spec import PositiveInt, Section, param
from pipeline.data.federated import FederatedData, Parts
from pipeline.errors import UserError
from pipeline.models import FlatModel
from pipeline.problems.base import Variables
from pipeline.problems.bilevel_images import BodyAbove, Minibatch
from pipeline.problems.forms import Facts, Form, Formulation, Given


@dataclass(frozen=True)
class HyperRepresentationSettings(Section):
    """The body of the network above, its last layer below."""

    heads: Literal["auto", "shared", "local"] = param(
        "auto", "shared = one last layer for all clients; local = one each; auto = what the algorithm is made for"
    )
    reg: Literal["sq", "norm", "none"] = param(
        "sq",
        "of the last layer y, below: sq = mu/2 ||y||^2; norm = mu (||W|| + ||b||), as the public FedNest code; none",
    )
    mu: float = param(0.001, "strength of `reg`; the public code's 0.05 goes with norm", ge=0)
    measured_samples: PositiveInt | Literal["all"] = param(
        10_000, "most of the clients' samples that the training accuracy is measured on; all = every one"
    )


@dataclass(frozen=True)
class HyperRepresentation(BodyAbove):
    """One head for all clients. measured: most of the clients' samples that the training accuracy is
    measured on; None = all."""

    regulariser: str = "sq"
    mu: float = 0.001
    measured: int | None = None

    @property
    def lower_dimension(self) -> int:
        return self.model.head

    def initial_lower(self, seed: int) -> Tensor:
        return self.initial_network(seed)[self.upper_dimension :]

    def upper_losses(self, X: Tensor, Y: Tensor, batch: Minibatch) -> Tensor:
        return self.losses_of(self.model.apply_halves_each(X, Y, batch[0]), batch[1]).mean(dim=1)

    def lower_losses(self, X: Tensor, Y: Tensor, batch: Minibatch) -> Tensor:
        return self.upper_losses(X, Y, batch) + self._regulariser(Y)

    def _regulariser(self, Y: Tensor) -> Tensor:
        """Of each client's head, [n]."""
        if self.regulariser == "sq":
            return 0.5 * self.mu * Y.square().sum(dim=1)
        if self.regulariser == "norm":
            weight, bias = Y.split([self.model.head - self.data.outputs, self.data.outputs], dim=1)
            return self.mu * (torch.linalg.vector_norm(weight, dim=1) + torch.linalg.vector_norm(bias, dim=1))
        return Y.new_zeros(len(Y))

    def network(self, variables: Variables) -> Tensor:
        return torch.cat([variables["x"], variables["y"]])

    @property
    def measures(self) -> tuple[str, ...]:
        return ("train_accuracy", "train_loss") if self.data.classes else ("train_loss",)

    def measure(self, variables: Variables) -> dict[str, float]:
        """On the clients' samples of both parts, as they are labelled there, or on `measured` of them, drawn once for
        all; the mean over samples."""
        right, loss, count = 0, 0.0, 0
        for parts, at in self._measured():
            for scores, y, _ in self.scored(variables, parts, at):
                right += int((scores.argmax(1) == y).sum())
                loss += float(self.data.loss.each(scores, y).sum())
                count += len(y)
        found = {"train_accuracy": right / count, "train_loss": loss / count}
        return {name: found[name] for name in self.measures}

    def _measured(self) -> list[tuple[Parts, Tensor]]:
        """Which samples of the training and of the validation parts."""
        both = (self.data.training, self.data.own_validation)
        total, split = sum(len(parts.rows) for parts in both), len(both[0].rows)
        at = torch.arange(total)
        if self.measured is not None and self.measured < total:
            order = torch.randperm(total, generator=randomness.torch_generator(0, "measured"))
            at = order[: self.measured].sort().values
        at = at.to(self.data.device)
        return [(both[0], at[at < split]), (both[1], at[at >= split] - split)]


@dataclass(frozen=True)
class LocalHyperRepresentation(HyperRepresentation):
    """A head for each client. Variables: x [d_x] and Y [N, d_y]. The network that is served has the clean clients' mean
    head; what is tested is each clean client's own."""

    @property
    def local_lower(self) -> bool:
        return True

    def network(self, variables: Variables) -> Tensor:
        return torch.cat([variables["x"], self._clean_heads(variables).mean(dim=0)])

    def _clean_heads(self, variables: Variables) -> Tensor:
        return variables["Y"][self._tested]

    @property
    def _tested(self) -> list[int]:
        """The clean clients; all clients, if none is clean."""
        kinds = self.data.kinds
        return [i for i, kind in enumerate(kinds) if kind == "clean"] or list(range(len(kinds)))

    @property
    def tested_labels(self) -> list[list[int]]:
        return [self.data.client_labels[i] for i in self._tested]

    def tested_scores(self, variables: Variables, X: Tensor) -> Tensor:
        return self._under_heads(variables["x"], self._clean_heads(variables), X)

    def scores_of(self, variables: Variables, X: Tensor, owners: Tensor) -> Tensor:
        scores = self._under_heads(variables["x"], variables["Y"], X)
        return scores[owners, torch.arange(len(X), device=X.device)]

    def _under_heads(self, x: Tensor, heads: Tensor, X: Tensor) -> Tensor:
        """[k, B, classes], never in mixed precision: the body's pass is made once for all k heads."""
        return vmap(self.model.exact.apply_halves, in_dims=(None, 0, None))(x, heads, X)


def require_head(model: FlatModel, data: FederatedData, name: str, problem: str = "hyper_representation") -> None:
    """UserError unless the network is a body and a last linear layer with a bias, which alone makes its logits: with
    weight 0 they are the bias. name, problem: what params.yaml calls them."""
    fix = "Fix: for example model.name: mlp, lenet5 or cnn."
    if not model.head:
        raise UserError(
            f"problem: {problem} needs a network with a body and a last linear layer, and model.name: {name}"
            f" has no such layers. {fix}"
        )
    w, images = model.initial(0).to(device=data.device, dtype=data.dtype), data.scaled(data.images[:2])
    with torch.no_grad():
        outputs = model.apply(w, images).shape[1]
        bias = torch.arange(1.0, outputs + 1).to(w)
        y = torch.cat([w.new_zeros(max(model.head - outputs, 0)), bias])[: model.head]
        scores = model.apply_halves(w[: -model.head], y, images)
    if not torch.equal(scores, bias.expand_as(scores)):
        raise UserError(
            f"problem: {problem}: the last linear layer of model.name: {name} is not what makes its logits,"
            f" or has no bias. Fix: define it last and end forward with it."
        )


def resolve(settings: HyperRepresentationSettings, facts: Facts) -> HyperRepresentationSettings:
    """Heads of the kind that the method learns."""
    own: Any = next(iter(facts.heads), "shared")
    return replace(settings, heads=own) if settings.heads == "auto" else settings


def build(settings: HyperRepresentationSettings, given: Given) -> HyperRepresentation:
    """With one head for all clients, or one each."""
    require_head(given.model, given.data, given.params.model.name)
    kind = LocalHyperRepresentation if settings.heads == "local" else HyperRepresentation
    measured = None if settings.measured_samples == "all" else settings.measured_samples
    return kind(given.model, given.data, given.probabilities, settings.reg, settings.mu, measured)


HYPER_REPRESENTATION = Formulation(
    name="hyper_representation",
    summary="body above, last layer below",
    settings=HyperRepresentationSettings,
    offers=(
        Form.COMMON_LOWER,
        Form.LOCAL_LOWER,
    ),
    build=build,
    resolve=resolve,
    upper_on_clients=lambda settings, clean_parts: True,
    body=True,
)
