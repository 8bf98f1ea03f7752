"""Client weighting as a general bilevel problem, for the methods that solve those.

    min_x f_0(w*(x)), x on the simplex,  w*(x) = argmin_w sum_i x_i f_i(w)     is, with y = w and p_i = 1/N,
    g_i(x, y) = N x_i f_i(y),   f_i(x, y) = f_0(y)

f_0 is the server's: `server_upper` says so, and a method may add its gradient at the server. The simplex is the
server's set too: local copies of x leave it, and where their x_i is negative g_i is concave.

| symbol | here | shape |
|---|---|---|
| x | the client weights, 1/N at the start | [N] |
| y | the model | [d] |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pipeline import projections
from pipeline.config.spec import Section, param
from pipeline.data.federated import FederatedData
from pipeline.models import FlatModel
from pipeline.problems.base import Batch, Variables, WeightingProblem
from pipeline.problems.client_weighting import ClientWeighting
from pipeline.problems.forms import Form, Formulation, Given


@dataclass(frozen=True)
class ClientWeightingSettings(Section):
    """Weights over clients: the validation loss above, the weighted training losses below."""

    l2: float = param(0.0, "adds l2/2 ||w||^2 to every client's training loss", ge=0)


class EachWeighting(WeightingProblem, Protocol):
    """A weighting problem whose losses can be had at one w per client."""

    def losses_each(self, W: Tensor, batch: Batch) -> Tensor:
        """f_i(W_i; B_i), [n]; W [n, d]."""
        ...

    def draw_validation_each(self, stream: int, n: int) -> Batch:
        """The server's minibatch, n times over: with a leading client dimension."""
        ...

    def validation_losses_each(self, W: Tensor, batch: Batch) -> Tensor:
        """f_0(W_i; B_0), [n]."""
        ...

    def measure(self, variables: Variables) -> dict[str, float]: ...


@dataclass(frozen=True)
class GeneralWeighting:
    """problem: what is seen so. A batch is the clients' ids [n] and the problem's own batch."""

    problem: EachWeighting

    @property
    def clients(self) -> int:
        return self.problem.clients

    @property
    def upper_dimension(self) -> int:
        return self.clients

    @property
    def lower_dimension(self) -> int:
        return self.problem.dimension

    @property
    def client_probabilities(self) -> Tensor:
        return torch.full_like(self.problem.oracle_weights, 1.0 / self.clients)

    @property
    def local_lower(self) -> bool:
        return False

    @property
    def server_upper(self) -> bool:
        return True

    def initial_upper(self, seed: int) -> Tensor:
        return self.client_probabilities

    def initial_lower(self, seed: int) -> Tensor:
        return self.problem.initial(seed)

    def project_upper(self, x: Tensor) -> Tensor:
        return projections.simplex(x)

    def draw_upper(self, stream: int, clients: Tensor, size: int) -> Batch:
        """The server's minibatch, of federation.validation_batch_size whatever `size`, the same for all clients."""
        return (clients, *self.problem.draw_validation_each(stream, len(clients)))

    def draw_lower(self, stream: int, clients: Tensor, size: int) -> Batch:
        return (clients, *self.problem.draw(stream, clients, size))

    def upper_losses(self, X: Tensor, Y: Tensor, batch: Batch) -> Tensor:
        return self.problem.validation_losses_each(Y, batch[1:])

    def lower_losses(self, X: Tensor, Y: Tensor, batch: Batch) -> Tensor:
        return self.lower_scale(X, batch[0]) * self.problem.losses_each(Y, batch[1:])

    def lower_scale(self, X: Tensor, clients: Tensor) -> Tensor:
        """N x_i, what the clients' [n] losses are multiplied by, [n]."""
        return self.clients * X.gather(1, clients.to(X.device)[:, None])[:, 0]

    def select(self, batch: Batch, i: int) -> Batch:
        return tuple(part[i : i + 1] for part in batch)

    # ------------------------------------------------------------------ seen again as client weighting

    def client_weights(self, variables: Variables) -> Tensor | None:
        return variables["x"]

    @property
    def oracle_weights(self) -> Tensor:
        return self.problem.oracle_weights

    def measure(self, variables: Variables) -> dict[str, float]:
        return self.problem.measure({"w": variables["y"], "x": variables["x"]})


@dataclass(frozen=True)
class GeneralImageWeighting(GeneralWeighting):
    """The same on images: what evaluations ask is answered too."""

    problem: ClientWeighting

    @property
    def model(self) -> FlatModel:
        return self.problem.model

    @property
    def data(self) -> FederatedData:
        return self.problem.data

    @property
    def measures(self) -> tuple[str, ...]:
        return self.problem.measures

    def network(self, variables: Variables) -> Tensor:
        return variables["y"]


def build(settings: ClientWeightingSettings, given: Given) -> ClientWeighting | GeneralImageWeighting:
    """In the form that the method solves."""
    problem = ClientWeighting(given.model, given.data, l2=settings.l2, validation_batch=given.server_batch)
    at_one_model = given.offers(Form.SHARED_MODEL, Form.LOCAL_WEIGHTS)
    return problem if at_one_model else GeneralImageWeighting(problem)


CLIENT_WEIGHTING = Formulation(
    name="client_weighting",
    summary="learn how much to trust each client",
    settings=ClientWeightingSettings,
    offers=(
        Form.SHARED_MODEL,
        Form.COMMON_LOWER,
        Form.LOCAL_WEIGHTS,
    ),
    build=build,
)
