"""FedBiO and FedBiOAcc with a lower level of each client's own, against the specification's properties, float64."""

import dataclasses

import pytest
import torch

from pipeline.errors import UserError
from pipeline.methods import ALGORITHMS
from pipeline.methods.bilevel.common import neumann
from pipeline.methods.bilevel.fedbio import FedBio
from pipeline.methods.bilevel.fedbio_local import FedBioAccLocal, FedBioLocal
from pipeline.methods.bilevel.fedbioacc import FedBioAcc
from pipeline.methods.bilevel.lfednest import LFedNest
from pipeline.methods.bilevel.simfbo import SimFbo
from tests.core.bilevel.helpers import FLAT, close, make_context, run
from tests.core.bilevel.quadratic import random


def local_series(problem, i, x, y, terms, tau):
    """Client i's (6) in closed form: H^-1 (I - (I - tau H)^M) b."""
    one = problem.client(i)
    grad_x, b = one.upper_gradients(x, y)
    A = one.mean("A")
    remainder = torch.linalg.matrix_power(torch.eye(4, dtype=torch.float64) - tau * A, terms) @ b
    return grad_x + one.mean("B").T @ torch.linalg.solve(A, b - remainder)


@pytest.mark.parametrize("terms", [1, 2, 6])
def test_the_local_series_is_geometric(problem, terms):
    """P13: tau sum_{n <= Q} (I - tau H)^n b = H^-1 [b - (I - tau H)^(Q + 1) b], each client at its own point."""
    generator = torch.Generator().manual_seed(1)
    X, Y = (torch.randn(4, d, generator=generator, dtype=torch.float64) for d in (3, 4))
    context, all_clients = make_context(FedBioLocal(), problem), torch.arange(4)
    batches = neumann.draw_local(context, all_clients, terms, one_upper=True)
    got = neumann.local_hypergradients(context, X, Y, batches, context.upper_level(X[0], Y[0]), 0.2)
    close(got, torch.stack([local_series(problem, i, X[i], Y[i], terms, 0.2) for i in range(4)]))


def test_the_bias_of_a_short_series_is_bounded():
    """P13: at most kappa (1 - tau mu)^(Q+1) C_f, with ||B||/mu for kappa and ||grad_y f|| for C_f; tau <= 1/L."""
    problem = random(clients=1)
    A, B = problem.mean("A"), problem.mean("B")
    eigenvalues = torch.linalg.eigvalsh(A)
    mu, tau = float(eigenvalues[0]), float(1 / eigenvalues[-1])
    context, one = make_context(FedBioLocal(), problem), torch.arange(1)
    X, Y = torch.full((1, 3), 0.5, dtype=torch.float64), torch.full((1, 4), -0.5, dtype=torch.float64)
    grad_x, b = problem.upper_gradients(X[0], Y[0])
    exact = grad_x + B.T @ torch.linalg.solve(A, b)
    errors = []
    for terms in (1, 2, 5, 12):
        batches = neumann.draw_local(context, one, terms, one_upper=True)
        found = neumann.local_hypergradients(context, X, Y, batches, context.upper_level(X[0], Y[0]), tau)[0]
        errors.append(float((found - exact).norm()))
        bound = torch.linalg.matrix_norm(B, 2) / mu * (1 - tau * mu) ** terms * b.norm()
        assert errors[-1] <= bound + 1e-12
    assert errors[0] > errors[1] > errors[2] > errors[3] > 0


def test_independent_factors_are_unbiased_and_one_batch_for_all_is_not():
    """P13: the mean over 20,000 clients that differ in noise alone, within 5 standard errors of the exact series."""
    one = random(clients=1, noise=0.4)
    N = 20_000
    many = dataclasses.replace(one.permuted([0] * N), p=torch.full((N,), 1 / N, dtype=torch.float64))
    x, y = torch.full((3,), 0.5, dtype=torch.float64), torch.full((4,), -0.5, dtype=torch.float64)
    X, Y = x.expand(N, -1), y.expand(N, -1)
    context, all_clients, terms = make_context(FedBioLocal(), many), torch.arange(N), 6
    exact = local_series(one, 0, x, y, terms, 0.4)

    def error(batches):
        found = neumann.local_hypergradients(context, X, Y, batches, context.upper_level(x, y), 0.4)
        return ((found.mean(0) - exact) / (found.std(0) / N**0.5)).abs().max()

    independent = neumann.draw_local(context, all_clients, terms, one_upper=True)
    assert error(independent) < 5
    assert error(independent._replace(factors=[independent.factors[0]] * (terms - 1))) > 8


@pytest.mark.parametrize("name", ["fedbio_local", "fedbioacc_local"])
@pytest.mark.slow
def test_local_methods_end_where_the_local_hypergradient_vanishes(name):
    """P19: I = 1, long series; y^m at its own minimiser; a short series leaves a bias."""
    problem = random(local_lower=True)
    record, flat = (FedBioLocal, {}) if name == "fedbio_local" else (FedBioAccLocal, FLAT)
    hyper = record(eta_x=0.2, eta_y=0.5, eta_h=0.5, series_terms=30, local_steps=1, **flat)
    x, Y = problem.local_stationary()
    state = run(name, make_context(hyper, problem), 60)
    close(state.variables["x"], x, atol=1e-6)  # 30 terms leave 0.6^30
    close(state.memory["Y"], Y, atol=1e-6)
    short = run(name, make_context(dataclasses.replace(hyper, series_terms=1), problem), 30)
    assert (short.variables["x"] - x).norm() > 0.01


@pytest.mark.slow
def test_averaging_the_local_lower_variables_destroys_the_limit():
    """P19: the clients' minimisers differ; were y averaged as x is, the end would be another point."""
    problem = random(local_lower=True)
    hyper = FedBioLocal(eta_x=0.2, eta_y=0.5, eta_h=0.5, series_terms=30, local_steps=1)
    x, _ = problem.local_stationary()

    def average(state):
        state.memory["Y"].copy_((problem.p @ state.memory["Y"]).expand(4, -1))

    averaged = run("fedbio_local", make_context(hyper, problem), 60, each=average).variables["x"]
    assert (averaged - x).norm() > 0.01
    assert problem.local_hypergradient(averaged).norm() > 0.01 > problem.local_hypergradient(x).norm()


def test_local_rounds_by_hand():
    """Each client's own two recursions at the old point, I = 3, different p; only x is averaged."""
    problem = random(local_lower=True)
    hyper = FedBioLocal(eta_x=0.1, eta_y=0.3, eta_h=0.4, series_terms=3, local_steps=3)
    x, Y = torch.zeros(3, dtype=torch.float64), torch.zeros(4, 4, dtype=torch.float64)
    for _ in range(2):
        ends = []
        for i in range(4):
            u, y = x, Y[i]
            for _ in range(3):
                nu = local_series(problem, i, u, y, 3, 0.4)
                u, y = u - 0.1 * nu, y - 0.3 * (problem.A[i] @ y - problem.B[i] @ u - problem.c[i])
            ends.append(u)
            Y[i] = y
        x = problem.p @ torch.stack(ends)
    state = run("fedbio_local", make_context(hyper, problem), 2)
    close(state.variables["x"], x)
    close(state.memory["Y"], Y)


@pytest.mark.parametrize(("clients", "period", "average"), [(1, 1, False), (3, 2, False), (3, 2, True)])
def test_storm_on_both_levels_term_by_term(clients, period, average):
    """One client and one iteration: MRBO's single loop, the same samples at both points, Q Hessian batches included.
    More: x and nu averaged every `period` iterations, alpha_t of the whole run's iteration t, the first nu averaged if
    that is asked for; different p, noise on."""
    problem = random(clients=clients, noise=0.3, local_lower=True)
    hyper = FedBioAccLocal(
        eta_x=0.1,
        eta_y=0.3,
        eta_h=0.4,
        series_terms=3,
        local_steps=period,
        alpha_scale=0.9,
        alpha_offset=2.0,
        storm_x=0.6,
        storm_y=0.8,
        average_initial_momentum=average,
    )
    context, one = make_context(hyper, problem), torch.arange(clients)
    oracle, mean = context.oracle, lambda u: (problem.p @ u).expand(clients, -1)

    def estimates(x, y, now, tag):
        """(grad_y g, hypergradient) on the draws of that context."""
        f = now.upper_batch("local hypergradient", one, tag)
        grad_x, r = oracle.upper_gradients(x, y, f)
        s = r
        for q in (1, 2):
            r = r - 0.4 * oracle.hessian_products(x, y, r, now.lower_batch("local series", one, tag, q))
            s = s + r
        cross = oracle.cross_products(x, y, 0.4 * s, now.lower_batch("local cross", one, tag))
        return oracle.lower_gradients(x, y, now.lower_batch("local y", one, tag)), grad_x - cross

    x, y = torch.zeros(clients, 3, dtype=torch.float64), torch.zeros(clients, 4, dtype=torch.float64)
    first = dataclasses.replace(context, round=1)
    omega, nu = estimates(x, y, first, 0)
    nu = mean(nu) if average else nu
    for t in range(1, 5):
        now, i = dataclasses.replace(context, round=(t - 1) // period + 1), (t - 1) % period + 1
        alpha = 0.9 / (2 + t) ** (1 / 3)
        x_new, y_new = x - 0.1 * alpha * nu, y - 0.3 * alpha * omega
        x_new = mean(x_new) if i == period else x_new
        ahead, behind = estimates(x_new, y_new, now, i), estimates(x, y, now, i)
        omega = ahead[0] + (1 - 0.8 * alpha**2) * (omega - behind[0])
        nu = ahead[1] + (1 - 0.6 * alpha**2) * (nu - behind[1])
        nu = mean(nu) if i == period else nu
        x, y = x_new, y_new
    state = run("fedbioacc_local", context, 4 // period)
    close(state.variables["x"], x[0])
    close(state.memory["Y"], y)
    close(state.memory["omega"], omega)
    close(state.memory["nu"], nu[0])


@pytest.mark.parametrize("bound", [None, -0.05])
def test_the_local_method_s_averaged_momentum_is_the_mean_hypergradient(bound):
    """P10 for x, without noise, any I and c, different p: nu = sum_m p_m Phi_m(x, y^m) after a round, x on its set."""
    problem = random(local_lower=True, upper_bound=bound)
    hyper = FedBioAccLocal(eta_x=0.1, eta_y=0.3, eta_h=0.4, series_terms=3, local_steps=2, storm_x=0.7, storm_y=0.4)
    highest = []

    def check(state):
        x, Y = state.variables["x"], state.memory["Y"]
        close(state.memory["nu"], sum(problem.p[m] * local_series(problem, m, x, Y[m], 3, 0.4) for m in range(4)))
        highest.append(float(x.max()))

    run("fedbioacc_local", make_context(hyper, problem), 4, each=check)
    assert (max(highest) == bound) if bound else (max(highest) > 0)


@pytest.mark.parametrize("name", ["fedbio_local", "fedbioacc_local"])
def test_absent_clients_keep_their_own(name):
    problem = random(clients=6, local_lower=True)
    hyper = FedBioLocal(local_steps=2) if name == "fedbio_local" else FedBioAccLocal(local_steps=2)
    context = make_context(hyper, problem, 0.5)
    kept = []
    run(name, context, 4, each=lambda state: kept.append({k: v.clone() for k, v in state.memory.items()}))
    for t in (2, 3, 4):
        active = dataclasses.replace(context, round=t).active().tolist()
        for memory in {"Y", "omega"} & set(kept[0]):
            moved = (kept[t - 1][memory] != kept[t - 2][memory]).any(1).nonzero()[:, 0].tolist()
            assert moved == active


def test_a_client_that_was_absent_starts_its_momentum_afresh():
    """Without noise and with c = 0 omega^m is the exact gradient along the walked path; a momentum carried over from
    another x would not be."""
    problem = random(clients=6, local_lower=True)
    hyper = FedBioAccLocal(eta_x=0.3, local_steps=1, storm_x=0.0, storm_y=0.0)
    context = make_context(hyper, problem, 0.5)

    def check(state):
        x, Y, omega = state.variables["x"], state.memory["Y"], state.memory["omega"]
        for m in (state.memory["last"] == state.memory["last"].max()).nonzero()[:, 0]:
            close(omega[m], problem.A[m] @ Y[m] - problem.B[m] @ x - problem.c[m])

    state = run("fedbioacc_local", context, 8, each=check)
    assert (state.memory["last"] < 8).any()


def test_methods_refuse_the_other_kind_of_lower_level():
    records = {"fedbio": FedBio(), "fedbioacc": FedBioAcc(), "simfbo": SimFbo()}
    for name, hyper in records.items():
        with pytest.raises(UserError, match=rf"algorithm: {name} is made for a common lower level"):
            ALGORITHMS[name].init(make_context(hyper, random(local_lower=True)))
    for name, hyper in {"fedbio_local": FedBioLocal(), "fedbioacc_local": FedBioAccLocal()}.items():
        with pytest.raises(UserError, match=rf"algorithm: {name} is made for local lower levels"):
            ALGORITHMS[name].init(make_context(hyper, random()))
    for local_lower in (False, True):
        ALGORITHMS["lfednest"].init(make_context(LFedNest(), random(local_lower=local_lower)))
