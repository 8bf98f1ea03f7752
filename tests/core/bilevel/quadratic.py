"""Bilevel quadratics with everything in closed form, in float64.

    g_i = 1/2 y'A_i y - y'(B_i x + c_i)
    f_i = 1/2 (y - d_i)'D_i (y - d_i) + y'E_i x + rho_i/2 ||x||^2 + e_i'x

so that grad_y g = A y - B x - c, D2yy g = A, D2xy g = -B'. With p-weighted means (bars):

    y*(x) = Abar^-1 (Bbar x + cbar),    v*(x) = Abar^-1 grad_y F,    hypergradient = grad_x F + Bbar' v*

Noise: a minibatch carries, per client, a vector e and a symmetric matrix E over z = (x, y), and every loss gains
e'u + 1/2 u'E u with u = z - (the point of evaluation): gradients gain e, products E, values nothing.
"""

import dataclasses
from dataclasses import dataclass

import torch

from pipeline import randomness

NAMES = ("A", "B", "c", "D", "d", "E", "rho", "e")


@dataclass(frozen=True)
class Quadratic:
    """A [N, d_y, d_y], B [N, d_y, d_x], c [N, d_y], D [N, d_y, d_y], d [N, d_y], E [N, d_y, d_x], rho [N], e [N, d_x];
    p [N]."""

    A: torch.Tensor
    B: torch.Tensor
    c: torch.Tensor
    D: torch.Tensor
    d: torch.Tensor
    E: torch.Tensor
    rho: torch.Tensor
    e: torch.Tensor
    p: torch.Tensor
    noise: float = 0.0
    local_lower: bool = False
    server_upper: bool = False
    upper_bound: float | None = None  # x's entries are kept below it

    # ------------------------------------------------------------------------------------ what a problem must have

    @property
    def clients(self):
        return len(self.p)

    @property
    def upper_dimension(self):
        return self.B.shape[2]

    @property
    def lower_dimension(self):
        return self.B.shape[1]

    @property
    def client_probabilities(self):
        return self.p

    def client_weights(self, variables):
        return None

    def initial_upper(self, seed):
        return torch.zeros(self.upper_dimension, dtype=torch.float64)

    def initial_lower(self, seed):
        return torch.zeros(self.lower_dimension, dtype=torch.float64)

    def project_upper(self, x):
        return x if self.upper_bound is None else x.clamp_max(self.upper_bound)

    def draw_upper(self, stream, clients, size):
        if not self.noise:
            return (clients,)
        n, d = len(clients), self.upper_dimension + self.lower_dimension
        drawn = self.noise * randomness.normal(stream, clients, d + d * d)
        E = drawn[:, d:].view(n, d, d)
        return clients, drawn[:, :d], (E + E.mT) / 2

    draw_lower = draw_upper

    def upper_losses(self, X, Y, batch):
        i = batch[0]
        r = Y - self.d[i]
        exact = (r * times(self.D[i], r)).sum(1) / 2 + (Y * times(self.E[i], X)).sum(1)
        return exact + self.rho[i] / 2 * X.square().sum(1) + (self.e[i] * X).sum(1) + self._noise(X, Y, batch)

    def lower_losses(self, X, Y, batch):
        i = batch[0]
        exact = (Y * times(self.A[i], Y)).sum(1) / 2 - (Y * (times(self.B[i], X) + self.c[i])).sum(1)
        return exact + self._noise(X, Y, batch)

    def _noise(self, X, Y, batch):
        if not self.noise:
            return 0.0
        _, e, E = batch
        Z = torch.cat([X, Y], 1)
        u = Z - Z.detach()
        return (e * u).sum(1) + (u * times(E, u)).sum(1) / 2

    def select(self, batch, i):
        return tuple(part[i : i + 1] for part in batch)

    # ------------------------------------------------------------------------------------------------- closed forms

    def mean(self, name, p=None):
        return torch.tensordot(self.p if p is None else p, getattr(self, name), 1)

    def y_star(self, x, p=None):
        A, B, c = (self.mean(name, p) for name in "ABc")
        return torch.linalg.solve(A, B @ x + c)

    def upper_gradients(self, x, y, p=None):
        """(grad_x F, grad_y F)."""
        p = self.p if p is None else p
        r = times(self.D, y - self.d)
        grad_x = times(self.E.mT, y.expand(self.clients, -1)) + self.rho[:, None] * x + self.e
        return p @ grad_x, p @ (r + times(self.E, x.expand(self.clients, -1)))

    def v_star(self, x, p=None):
        return torch.linalg.solve(self.mean("A", p), self.upper_gradients(x, self.y_star(x, p), p)[1])

    def hypergradient(self, x, p=None):
        return self.upper_gradients(x, self.y_star(x, p), p)[0] + self.mean("B", p).T @ self.v_star(x, p)

    def value(self, x):
        """F(x, y*(x))."""
        n = self.clients
        X, Y = x.expand(n, -1), self.y_star(x).expand(n, -1)
        return self.p @ dataclasses.replace(self, noise=0.0).upper_losses(X, Y, (torch.arange(n),))

    def stationary(self, p=None):
        """(x, y, v) where the hypergradient, which is affine in x, is 0."""
        return self._root(lambda x: self.hypergradient(x, p), lambda x: (self.y_star(x, p), self.v_star(x, p)))

    def client(self, i):
        """Client i alone."""
        one = {name: getattr(self, name)[i : i + 1] for name in NAMES}
        return dataclasses.replace(self, **one, p=torch.ones(1, dtype=torch.float64), local_lower=False)

    def local_hypergradient(self, x):
        """sum_i p_i (hypergradient of client i alone): the truth where lower levels are local, wrong elsewhere."""
        return sum(self.p[i] * self.client(i).hypergradient(x) for i in range(self.clients))

    def local_stationary(self):
        """(x, Y): where the local hypergradient is 0, and every client's own y_i*(x)."""
        Y = lambda x: (torch.stack([self.client(i).y_star(x) for i in range(self.clients)]),)  # noqa: E731
        return self._root(self.local_hypergradient, Y)

    def _root(self, affine, rest):
        zero = torch.zeros(self.upper_dimension, dtype=torch.float64)
        offset = affine(zero)
        slope = torch.stack([affine(unit) - offset for unit in torch.eye(len(zero), dtype=torch.float64)], 1)
        x = torch.linalg.solve(slope, -offset)
        return x, *rest(x)

    def permuted(self, order):
        return dataclasses.replace(self, **{name: getattr(self, name)[order] for name in (*NAMES, "p")})


def times(matrices, vectors):
    """Row by row."""
    return torch.einsum("ijk,ik->ij", matrices, vectors)


def random(clients=4, d_x=3, d_y=4, seed=0, low=0.8, high=2.0, uniform=False, **more) -> Quadratic:
    """Heterogeneous clients with lower Hessians of eigenvalues in [low, high]; different p unless `uniform`."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(clients, *shape, generator=generator, dtype=torch.float64)

    def spd(smallest, largest):
        Q = torch.linalg.qr(normal(d_y, d_y)).Q
        values = smallest + (largest - smallest) * torch.rand(clients, d_y, generator=generator, dtype=torch.float64)
        return Q @ torch.diag_embed(values) @ Q.mT

    p = torch.rand(clients, generator=generator, dtype=torch.float64) + 0.5
    p = torch.full_like(p, 1 / clients) if uniform else p / p.sum()
    rho = 1 + torch.rand(clients, generator=generator, dtype=torch.float64)
    return Quadratic(
        spd(low, high),
        0.5 * normal(d_y, d_x),
        normal(d_y),
        spd(0.5, 1.0),
        normal(d_y),
        0.1 * normal(d_y, d_x),
        rho,
        normal(d_x),
        p,
        **more,
    )


def scalar(h, b, c, d) -> Quadratic:
    """g_i = h_i/2 (y - b_i x - c_i)^2, f_i = 1/2 (y - d_i)^2 + 1/2 x^2 (specification, section 6.1)."""
    h, b, c, d = (torch.tensor(values, dtype=torch.float64) for values in (h, b, c, d))
    N, one = len(h), torch.ones(len(h), 1, 1, dtype=torch.float64)
    return Quadratic(
        h.view(N, 1, 1),
        (h * b).view(N, 1, 1),
        (h * c).view(N, 1),
        one,
        d.view(N, 1),
        0 * one,
        one[:, 0, 0],
        0 * one[:, 0],
        torch.full((N,), 1 / N, dtype=torch.float64),
    )


def example_a() -> Quadratic:
    return scalar(h=(1.0, 1.0), b=(1.0, 1.0), c=(0.0, 4.0), d=(0.0, 0.0))


def example_b() -> Quadratic:
    return scalar(h=(1.0, 3.0), b=(1.0, 2.0), c=(2.0, 0.0), d=(0.0, 2.0))
