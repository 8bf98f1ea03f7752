"""Data cleaning: a score for every training sample, so that wrong labels count for little.

Section 4.1 of the FedBiO specification:

    min_x (1/M) sum_m f_m(y*(x)),   y*(x) = argmin_y (1/M) sum_m g_m(x, y)
    g_m(x, y) = (1/n_m) sum_{s in client m's training part} sigmoid(c x_s) CE_s(y)  +  l2/2 ||y||^2
    f_m(y)    = mean cross-entropy on clean validation samples, client m's own or the server's

| symbol | here | shape |
|---|---|---|
| x (lambda there) | one score per sample, in the order of the clients' training parts; 0 at the start | [S] |
| y | the network | [d] |
| sigmoid(c x_s) | a sample's weight | (0, 1) |
| c | `scale`; 1 in the specification | > 0 |

Client m's gradient by x is zero outside its own block; in the hypergradient, sample s of it has the component
-(p_m / n_m) c sigmoid'(c x_s) <grad CE_s(y), v>. A minibatch keeps the scaling (sum over the batch / batch size), so
that the mean is right. With c = 1 the steps of x must be large, about S times those of y. A step eta with scale c is a
step c^2 eta of the scores c x: c = sqrt(S) lets every method keep the steps that suit other problems.

Only client m needs the block of m, and only its samples say where the block should go. So the scores need not travel:
`sharded` counts no number for them and is the averaged run in every other respect. What m has to do on its own block to
get the averaged numbers:

| method | block of m in a round |
|---|---|
| FedBiO, SimFBO, LFedNest | a share p_m of its own change; it stands still while m is away |
| FedNest, FBO-AggITD | every active client's step along m's part of the averaged hypergradient, 0 while m is away |
| FedBiOAcc | every active client steps along the averaged momentum, whose block of m is not 0 while m is away |

Under FedBiOAcc the copies of the others, whose gradients are 0 there, follow x <- x - eta alpha nu and
nu <- (1 - c alpha^2) nu: m can repeat that if it learns who was active, one bit per client and round, which is not
counted. The specification's sharded form, in which a client moves nothing but its own block by LOCAL steps p_m times as
long, is the same for FedBiO with one local step, and for FedBiOAcc if all clients are active as well; otherwise it is
another method.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from pipeline.config.spec import Auto, PositiveFloat, Section, param
from pipeline.problems.base import Variables
from pipeline.problems.bilevel_images import ImageBilevel, Minibatch
from pipeline.problems.forms import Facts, Form, Formulation, Given


@dataclass(frozen=True)
class DataCleaningSettings(Section):
    """A weight for every training sample."""

    validation: Literal["auto", "clients", "server"] = param(
        "auto",
        "whose clean samples the upper level is: clients = their own validation parts; server = its validation set;"
        " auto = clients on `partition.scheme: cleaning`, else server",
    )
    scores: Literal["averaged", "sharded"] = param(
        "averaged",
        "averaged = all clients exchange all scores, as the paper; sharded = the same run, but scores stay with"
        " their samples and no floats are counted for them (what a client must do for that: problems/data_cleaning.py)",
    )
    scale: PositiveFloat | Auto = param(
        "auto",
        "a sample's weight is sigmoid(scale x): a step eta of x is one of scale^2 eta of the scores; auto = the root of"
        " the number of training samples, which suits the methods' usual steps; 1 = the paper",
    )
    l2: float = param(0.001, "adds l2/2 ||y||^2 to every client's training loss", ge=0, symbol="rho")


@dataclass(frozen=True)
class DataCleaning(ImageBilevel):
    """validation: "clients" (their own validation parts) or "server" (its validation set, the same for all).
    server_batch: size of the server's minibatch, None = the whole validation set."""

    l2: float = 0.001
    scale: float = 1.0
    validation: str = "clients"
    server_batch: int | None = None
    sharded: bool = False

    @property
    def server_upper(self) -> bool:
        return self.validation == "server"

    @property
    def upper_dimension(self) -> int:
        return len(self.data.labels)

    @property
    def upper_floats(self) -> int:
        """Numbers of x that a client exchanges with the server."""
        return 0 if self.sharded else self.upper_dimension

    def initial_upper(self, seed: int) -> Tensor:
        return torch.zeros(self.upper_dimension, dtype=self.data.dtype, device=self.data.device)

    def draw_upper(self, stream: int, clients: Tensor, size: int) -> Minibatch:
        """The server's minibatch is the same for all clients, and of its own size."""
        if self.server_upper:
            return self.draw_server(stream, clients, self.server_batch)
        return super().draw_upper(stream, clients, size)

    def draw_lower(self, stream: int, clients: Tensor, size: int) -> Minibatch:
        """Images, labels, and each sample's position in x [n, B]."""
        positions, (X, y) = self.draw(self.data.training, stream, clients, size)
        return X, y, self.data.starts[clients.to(positions.device)][:, None] + positions

    def lower_losses(self, X: Tensor, Y: Tensor, batch: Minibatch) -> Tensor:
        weights = torch.sigmoid(self.scale * X.gather(1, batch[2]))
        return (weights * self.sample_losses(Y, batch)).mean(dim=1) + 0.5 * self.l2 * Y.square().sum(dim=1)

    def client_losses(self, variables: Variables) -> Tensor:
        return self.server_losses(variables) if self.server_upper else super().client_losses(variables)

    @property
    def measures(self) -> tuple[str, ...]:
        return ("sample_auc", "sample_f1", "correct_sample_weight", "wrong_sample_weight")

    def measure(self, variables: Variables) -> dict[str, float]:
        """How well the samples' weights separate wrong labels from right ones: the chance that a right one weighs more
        (ties count half), F1 of "weight below 0.5 = wrong", and the mean weights. Figures that need both are missing
        where all labels are right, or all wrong."""
        weight, wrong = torch.sigmoid(self.scale * variables["x"].double()), self.data.wrong
        found = {}
        if not wrong.all():
            found["correct_sample_weight"] = float(weight[~wrong].mean())
        if wrong.any():
            found["wrong_sample_weight"] = float(weight[wrong].mean())
        if len(found) == 2:
            suspected = weight < 0.5
            hits = int((suspected & wrong).sum())
            found["sample_f1"] = 2 * hits / (int(suspected.sum()) + int(wrong.sum()))
            found["sample_auc"] = _chance(variables["x"], wrong)
        return found


def _chance(scores: Tensor, wrong: Tensor) -> float:
    """That a right sample has the larger score, ties half; not by weights, which are rounded together near 0 and 1."""
    _, level = scores.unique(return_inverse=True)
    levels = int(level.max()) + 1
    right, bad = (level[mask].bincount(minlength=levels).double() for mask in (~wrong, wrong))
    below = bad.cumsum(0) - bad
    return float(right @ (below + bad / 2) / (right.sum() * bad.sum()))


def upper_on_clients(settings: DataCleaningSettings, clean_parts: bool) -> bool:
    """`auto` means the clients' own parts where the scheme deals out clean ones."""
    return settings.validation == "clients" or (settings.validation == "auto" and clean_parts)


def resolve(settings: DataCleaningSettings, facts: Facts) -> DataCleaningSettings:
    """Whose samples the upper level is."""
    return replace(settings, validation="clients" if upper_on_clients(settings, facts.clean_parts) else "server")


def build(settings: DataCleaningSettings, given: Given) -> DataCleaning:
    """A score per training sample, in units of `scale`, whose `auto` depends on how many samples were dealt."""
    scale = len(given.data.labels) ** 0.5 if isinstance(settings.scale, str) else settings.scale
    sharded, validation = settings.scores == "sharded", settings.validation
    assert validation != "auto"
    return DataCleaning(
        given.model, given.data, given.probabilities, settings.l2, scale, validation, given.server_batch, sharded
    )


DATA_CLEANING = Formulation(
    name="data_cleaning",
    summary="a weight for every training sample",
    settings=DataCleaningSettings,
    offers=(Form.COMMON_LOWER,),
    build=build,
    resolve=resolve,
    upper_on_clients=upper_on_clients,
    numbers=False,
)
