"""The toy laboratory: strongly convex clients whose hypergradient is one linear solve.

    f_i(w) = 1/2 ||A_i w - B_i||^2 + cos(a_i^T w - b_i)         (lead specification, section 4.1)

A_i [30, 20], B_i [30], a_i [20], b_i Gaussian with variances 1/sqrt(20), 1/sqrt(30), 1/sqrt(20), 1. The Hessian is
A_i^T A_i - cos(a_i^T w - b_i) a_i a_i^T and the cosine reaches 1 somewhere, so the modulus of strong convexity is
exactly lambda_min(A_i^T A_i - a_i a_i^T); a client is drawn again until it is at least 0.1. f_0 is drawn the same way.

Noisy setting: white Gaussian noise of standard deviation `noise` per entry on every estimate of a gradient (f_0's too)
and of a Hessian, fresh for each client and minibatch. A minibatch carries a vector e and a symmetric matrix E, and the
loss gains  e^T u + 1/2 u^T E u  with u = w - (the point of evaluation): values stay exact, a gradient gains e and a
Hessian-vector product E lambda, whichever way an oracle differentiates.

w*(x) has no closed form (the cosine): `solve` is Newton's method; given w*, the dual and the hypergradient are one
linear solve. Float64 throughout. Methods never use these; they are what methods are held against.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline import projections, randomness
from pipeline.config.spec import Section, param
from pipeline.errors import UserError
from pipeline.problems.base import Variables
from pipeline.problems.forms import Form, Formulation, Given
from pipeline.problems.general_weighting import GeneralWeighting

ROWS, DIMENSION, MODULUS = 30, 20, 0.1

ToyBatch = tuple[Tensor, ...]
"""Ids of the clients, [n]; with noise also e [n, d] and E [n, d, d]."""


@dataclass(frozen=True)
class ToySettings(Section):
    """Strongly convex clients drawn from the seed, solved exactly for comparison (`data.name: toy`)."""

    clients: int = param(15, "number of clients", ge=2, le=10_000, symbol="N")
    noise: float = param(
        0.0,
        "standard deviation of white noise in every gradient and Hessian estimate, per entry; 0.5 in the paper's noisy"
        " setting, with federation.participation 0.5",
        ge=0,
    )


@dataclass(frozen=True)
class Solution:
    """At one x: w*(x) [d], the dual lambda* [d], f_0(w*(x)) and its gradient with respect to x [N]."""

    w: Tensor
    dual: Tensor
    value: Tensor
    hypergradient: Tensor


@dataclass(frozen=True)
class Toy:
    """A [N+1, 30, 20], B [N+1, 30], a [N+1, 20], b [N+1]; row 0 is the server's f_0, row i+1 is client i.

    noise: standard deviation of the noise in every gradient and Hessian estimate, per entry; 0.5 in the paper.
    """

    A: Tensor
    B: Tensor
    a: Tensor
    b: Tensor
    noise: float = 0.0

    @classmethod
    def generate(cls, clients: int = 15, seed: int = 0, noise: float = 0.0) -> Toy:
        """Draw the clients; equal seeds give equal problems, and one more client leaves the others as they are."""
        rows = [_certified(seed, i) for i in range(clients + 1)]
        A, B, a, b = (torch.stack(column) for column in zip(*rows, strict=True))
        return cls(A, B, a, b, noise)

    @property
    def clients(self) -> int:
        return len(self.b) - 1

    @property
    def dimension(self) -> int:
        return self.A.shape[-1]

    @property
    def samples(self) -> Tensor:
        return torch.ones(self.clients, dtype=torch.int64)

    @property
    def oracle_weights(self) -> Tensor:
        """No client is bad here: 1/N."""
        return torch.full((self.clients,), 1.0 / self.clients, dtype=self.A.dtype)

    def initial(self, seed: int) -> Tensor:
        return torch.zeros(self.dimension, dtype=self.A.dtype)

    def draw(self, stream: int, clients: Tensor, size: int) -> ToyBatch:
        if not self.noise:
            return (clients,)
        n, d = len(clients), self.dimension
        drawn = self.noise * randomness.normal(stream, clients, d + d * (d + 1) // 2).to(self.A.dtype)
        row, column = torch.tril_indices(d, d)
        E = drawn.new_zeros(n, d, d)
        E[:, row, column] = E[:, column, row] = drawn[:, d:]
        return clients, drawn[:, :d], E

    def draw_validation(self, stream: int) -> ToyBatch:
        return self.draw(stream, torch.tensor([-1]), 1)

    @property
    def one_by_one(self) -> bool:
        return False

    def losses(self, w: Tensor, batch: ToyBatch) -> Tensor:
        clients, *noise = batch
        rows = clients + 1
        return _losses(self.A[rows] @ w - self.B[rows], self.a[rows] @ w - self.b[rows], w, noise)

    def losses_each(self, W: Tensor, batch: ToyBatch) -> Tensor:
        """f_i(W_i; B_i), [n]; W [n, d]."""
        clients, *noise = batch
        rows = clients + 1
        residual = torch.einsum("irk,ik->ir", self.A[rows], W) - self.B[rows]
        return _losses(residual, (self.a[rows] * W).sum(-1) - self.b[rows], W, noise)

    def validation_losses_each(self, W: Tensor, batch: ToyBatch) -> Tensor:
        """f_0(W_i; B_0), [n]."""
        return self.losses_each(W, batch)

    def draw_validation_each(self, stream: int, n: int) -> ToyBatch:
        """The server's minibatch n times over."""
        return tuple(part.expand(n, *part.shape[1:]) for part in self.draw_validation(stream))

    def validation_loss(self, w: Tensor, batch: ToyBatch) -> Tensor:
        return self.losses(w, batch)[0]

    def select(self, batch: ToyBatch, i: int) -> ToyBatch:
        return tuple(part[i : i + 1] for part in batch)

    @property
    def hash(self) -> str:
        """sha256 of the functions and the noise level."""
        parts = [tensor.numpy().tobytes() for tensor in (self.A, self.B, self.a, self.b)]
        return hashlib.sha256(b"".join([*parts, repr(self.noise).encode()])).hexdigest()

    # ------------------------------------------------------------------------ closed forms

    def gradients(self, w: Tensor) -> Tensor:
        """grad f_0, grad f_1, ..., grad f_N by hand, [N+1, d]."""
        residual = self.A @ w - self.B
        return torch.einsum("irk,ir->ik", self.A, residual) - torch.sin(self.a @ w - self.b)[:, None] * self.a

    def hessian(self, w: Tensor, x: Tensor) -> Tensor:
        """sum_i x_i Hess f_i(w), [d, d]."""
        quadratic = torch.einsum("i,irk,irl->kl", x, self.A[1:], self.A[1:])
        curvature = x * torch.cos(self.a[1:] @ w - self.b[1:])
        return quadratic - torch.einsum("i,ik,il->kl", curvature, self.a[1:], self.a[1:])

    def solve(self, x: Tensor) -> Solution:
        """Newton with step halving to ||sum_i x_i grad f_i|| < 1e-12, then one linear solve for the dual."""
        w = torch.zeros(self.dimension, dtype=self.A.dtype)
        for _ in range(100):
            gradient = x @ self.gradients(w)[1:]
            if gradient.norm() < 1e-12:
                break
            move, length = torch.linalg.solve(self.hessian(w, x), gradient), 1.0
            while (x @ self.gradients(w - length * move)[1:]).norm() > gradient.norm() and length > 1e-3:
                length /= 2
            w = w - length * move
        gradients = self.gradients(w)
        dual = -torch.linalg.solve(self.hessian(w, x), gradients[0])
        return Solution(w, dual, self.validation_loss(w, self.draw_validation(0)), gradients[1:] @ dual)

    def client_weights(self, variables: Variables) -> Tensor | None:
        return variables.get("x")

    def measure(self, variables: Variables) -> dict[str, float]:
        """What the paper's figures show of a method's w and x: f_0(w), f_0(w*(x)) and the stationarity at x. Without
        weights (x = 0) there is no w*(x)."""
        found = {"validation_loss": float(self.validation_loss(variables["w"], self.draw_validation(0)))}
        x = variables.get("x")
        if x is not None and x.sum() > 0:
            exact = self.solve(x)
            found |= {"upper_value": float(exact.value), "stationarity": stationarity(x, exact.hypergradient)}
        return found


def _losses(residual: Tensor, angle: Tensor, w: Tensor, noise: list[Tensor]) -> Tensor:
    """From A_i w - B_i [n, 30] and a_i^T w - b_i [n], at one w [d] or at one per client [n, d]."""
    exact = 0.5 * residual.square().sum(-1) + torch.cos(angle)
    if not noise:
        return exact
    e, E = noise
    U = (w - w.detach()).expand_as(e)
    return exact + (e * U).sum(-1) + 0.5 * torch.einsum("ik,ikl,il->i", U, E, U)


def stationarity(x: Tensor, hypergradient: Tensor, step: float = 0.001) -> float:
    """|| x - Proj_X(x - step grad_x f_0(w*(x))) ||: 0 exactly where the bilevel problem is stationary."""
    return float((x - projections.simplex(x - step * hypergradient)).norm())


def _certified(seed: int, client: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One function with modulus >= 0.1; about one draw in twelve passes."""
    generator = randomness.torch_generator(seed, "toy", client)
    for _ in range(10_000):
        draws = torch.randn(ROWS * DIMENSION + ROWS + DIMENSION + 1, generator=generator, dtype=torch.float64)
        A, B, a, b = draws.split([ROWS * DIMENSION, ROWS, DIMENSION, 1])
        A, B, a = A.view(ROWS, DIMENSION) * DIMENSION**-0.25, B * ROWS**-0.25, a * DIMENSION**-0.25
        if torch.linalg.eigvalsh(A.T @ A - torch.outer(a, a))[0] >= MODULUS:
            return A, B, a, b[0]
    raise UserError(f"toy problem: no strongly convex draw for client {client}. Fix: another seed.")


def build(settings: ToySettings, given: Given) -> Toy | GeneralWeighting:
    """The toy of the run's seed, in the form that the method solves."""
    toy = Toy.generate(settings.clients, given.params.seed, settings.noise)
    return toy if given.offers(Form.SHARED_MODEL) else GeneralWeighting(toy)


TOY = Formulation(
    name="toy",
    summary="client weighting on functions with closed forms",
    settings=ToySettings,
    offers=(
        Form.SHARED_MODEL,
        Form.COMMON_LOWER,
    ),
    build=build,
    own_data=True,
)
