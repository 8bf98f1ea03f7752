"""FedNest, LFedNest and FBO-AggITD against SimFBO's specification (sections 2.2-2.4, properties 14-16), float64."""

import dataclasses

import pytest
import torch

from pipeline.errors import UserError
from pipeline.methods import ALGORITHMS
from pipeline.methods.bilevel.aggitd import AggItd
from pipeline.methods.bilevel.common import fedinn, neumann
from pipeline.methods.bilevel.fednest_general import FedNestGeneral
from pipeline.methods.bilevel.lfednest import LFedNest
from tests.core.bilevel.helpers import close, from_point, make_context, one_round, run
from tests.core.bilevel.quadratic import example_b, random

START = {"x": [0.3, -0.2, 0.5], "y": [1.0, 0.0, -1.0, 0.5]}


def at(problem):
    return tuple(from_point(problem, **START).values())


# ------------------------------------------------------------------------------------------------ limits on Example B

PRINTED = {"eta_x": 0.02, "eta_y": 0.05, "eta_h": 0.2}
NEST = {**PRINTED, "local_steps": [1, 3], "upper_local_steps": [2, 5]}


@pytest.mark.parametrize(("terms", "x"), [(1, 0.157303), (2, 0.189189), (5, 0.211005), (40, 14 / 65)])
@pytest.mark.slow
def test_fednest_s_limits(terms, x):
    """Property 14: no client drift with unequal local steps; the truncated series moves the limit as printed."""
    hyper = FedNestGeneral(**NEST, lower_rounds=5, series_terms=terms)
    state = run("fednest_general", make_context(hyper, example_b()), 90)
    k = 1 - 0.6**terms
    close(state.variables["x"], 0.875 * k / (1 + 3.0625 * k), atol=1e-7)
    close(state.variables["x"], x, atol=1e-6)


@pytest.mark.parametrize(("terms", "x"), [(1, 0.157303), (5, 0.211005), (30, 14 / 65)])
@pytest.mark.slow
def test_aggitd_s_limits_are_fednest_s(terms, x):
    """Property 14. With few terms there are few lower rounds too, so it takes more iterations."""
    hyper = AggItd(**NEST, series_terms=terms, series="deterministic")
    state = run("aggitd", make_context(hyper, example_b()), 45 if terms == 30 else 150)
    close(state.variables["x"], x, atol=1e-6)


@pytest.mark.parametrize(("steps", "x"), [(1, 10 / 29), ([1, 3], 0.602091)])
@pytest.mark.slow
def test_lfednest_s_limits(steps, x):
    """Property 14: biased by its local series; more so by drift. (eta_h = 0.5: 22 terms are exact to 3e-7.)"""
    hyper = LFedNest(**{**PRINTED, "eta_h": 0.5}, lower_rounds=5, local_steps=steps, upper_local_steps=steps)
    hyper = dataclasses.replace(hyper, series_terms=22)
    close(run("lfednest", make_context(hyper, example_b()), 110 if steps != 1 else 220).variables["x"], x, atol=1e-6)


@pytest.mark.slow
def test_corrected_lower_steps_end_at_the_solution_and_plain_ones_drift(problem):
    """Property 15, at fixed x, unequal local steps."""
    ends = {}
    for correction in ("svrg", "none"):
        hyper = FedNestGeneral(eta_y=0.1, local_steps=[1, 4, 2, 3], correction=correction)
        start = from_point(problem, START["x"])
        ends[correction] = run("fednest_general", make_context(hyper, problem), 150, start=start, frozen=("x",))
    y = problem.y_star(at(problem)[0])
    close(ends["svrg"].variables["y"], y, atol=1e-10)
    assert (ends["none"].variables["y"] - y).norm() > 0.01


def test_one_local_step_is_a_gradient_step(problem):
    """Property 15: FedInn with tau = 1 is y - beta q, FedOut x - alpha h."""
    hyper = FedNestGeneral(eta_x=0.07, eta_y=0.1, local_steps=1, series_terms=3, eta_h=0.2)
    x, y = at(problem)
    A, B, c = (problem.mean(name) for name in "ABc")
    state = run("fednest_general", make_context(hyper, problem), 1, start=from_point(problem, **START))
    y_new = y - 0.1 * (A @ y - B @ x - c)
    close(state.variables["y"], y_new)
    grad_x, grad_y = problem.upper_gradients(x, y_new)
    factor = torch.eye(4, dtype=torch.float64) - 0.2 * A
    v = 0.2 * (grad_y + factor @ grad_y + factor @ factor @ grad_y)
    close(state.variables["x"], x - 0.07 * (grad_x + B.T @ v))


def test_plain_lower_steps_are_local_descent(problem):
    """correction: none is FedAvg on the lower level, by a loop over clients."""
    x, y = at(problem)
    hyper = FedNestGeneral(eta_y=0.1, local_steps=[1, 4, 2, 3], correction="none")
    ends = []
    for i, tau in enumerate([1, 4, 2, 3]):
        z = y.clone()
        for _ in range(tau):
            z = z - 0.1 * (problem.A[i] @ z - problem.B[i] @ x - problem.c[i])
        ends.append(z)
    context = make_context(hyper, problem)
    got, _ = fedinn.lower_steps(context, x, y, context.cohort())
    close(got, problem.p @ torch.stack(ends))


@pytest.mark.parametrize("rule", ["common", "divided"])
def test_the_correction_by_hand(problem, rule):
    """z <- z - beta_i (grad g_i(z) - grad g_i(y) + q), also with beta_i = beta / tau_i; and the same above."""
    x, y = at(problem)
    taus = [1, 4, 2, 3]
    hyper = FedNestGeneral(eta_x=0.07, eta_y=0.1, local_steps=taus, upper_local_steps=taus[::-1], local_step_size=rule)
    context, h = make_context(hyper, problem), torch.tensor([0.1, 0.2, -0.3], dtype=torch.float64)
    q = problem.mean("A") @ y - problem.mean("B") @ x - problem.mean("c")
    lower, upper = [], []
    for i in range(4):
        z, u = y.clone(), x.clone()
        beta, alpha = (0.1, 0.07) if rule == "common" else (0.1 / taus[i], 0.07 / taus[3 - i])
        for _ in range(taus[i]):
            z = z - beta * (problem.A[i] @ (z - y) + q)
        for _ in range(taus[3 - i]):
            u = u - alpha * (problem.rho[i] * (u - x) + h)
        lower.append(z)
        upper.append(u)
    close(fedinn.lower_steps(context, x, y, context.cohort())[0], problem.p @ torch.stack(lower))
    got, _ = fedinn.upper_steps(context, x, y, h, context.cohort(), context.upper_level(x, y))
    close(got, problem.p @ torch.stack(upper))


def test_the_correction_uses_one_minibatch_at_both_points(problem):
    """A minibatch adds one vector to a client's gradient wherever it is taken, so the difference of gradients at z and
    y is free of noise, and two local steps are exact but for the anchor's."""
    noisy = dataclasses.replace(problem, noise=0.5)
    context, (x, y) = make_context(FedNestGeneral(eta_y=0.1, local_steps=2), noisy), at(problem)
    all_clients = torch.arange(4)
    anchors = context.oracle.lower_gradients(
        x.expand(4, -1), y.expand(4, -1), context.lower_batch("anchor", all_clients)
    )
    q = noisy.p @ anchors
    z = y - 0.1 * q
    ends = z - 0.1 * (noisy.A @ (z - y) + q)
    close(fedinn.lower_steps(context, x, y, context.cohort())[0], noisy.p @ ends)


# ----------------------------------------------------------------------------------------------------- Neumann series


def series(problem, terms, size=0.2):
    """lambda sum_{m < N} (I - lambda H)^m b = (I - (I - lambda H)^N) H^-1 b, by the closed form."""
    x, y = at(problem)
    A, b = problem.mean("A"), problem.upper_gradients(x, y)[1]
    factor = torch.linalg.matrix_power(torch.eye(4, dtype=torch.float64) - size * A, terms)
    return torch.linalg.solve(A, b - factor @ b)


def inverse(problem, hyper, **more):
    context = make_context(hyper, problem, **more)
    return neumann.federated(context, *at(problem), context.upper_level(*at(problem)))[0]


@pytest.mark.parametrize("terms", [1, 2, 5])
def test_the_deterministic_series(problem, terms):
    """Property 16; it is the series of the averaged Hessian, not the average of clients' series."""
    close(inverse(problem, FedNestGeneral(eta_h=0.2, series_terms=terms)), series(problem, terms))


def test_the_randomised_series_has_its_mean(problem, monkeypatch):
    """Property 16: mean over N' uniform on 0..N-1, by enumeration."""
    hyper, found = FedNestGeneral(eta_h=0.2, series_terms=5, series="randomised"), []
    for factors in range(5):
        monkeypatch.setattr(
            "pipeline.methods.bilevel.common.bilevel_context.BilevelContext.integer", lambda self, *_, k=factors: k
        )
        found.append(inverse(problem, hyper))
    close(torch.stack(found).mean(0), series(problem, 5))
    assert (found[0] - found[4]).norm() > 0.1


def test_the_public_code_s_sums(problem):
    """code_global_batch: b + sum_j (1/j) avg (I - lambda H_i)^j b; code_local_batch without 1/j; both times lambda."""
    x, y = at(problem)
    b, eye = problem.upper_gradients(x, y)[1], torch.eye(4, dtype=torch.float64)
    powers = [
        torch.tensordot(problem.p, torch.linalg.matrix_power(eye - 0.2 * problem.A, j), 1) @ b for j in range(1, 6)
    ]
    expected = {
        "code_global_batch": b + sum(c / j for j, c in enumerate(powers, 1)),
        "code_local_batch": b + sum(powers),
    }
    for mode, total in expected.items():
        close(inverse(problem, FedNestGeneral(eta_h=0.2, series_terms=6, mode=mode)), 0.2 * total)
        assert (0.2 * total - series(problem, 6)).norm() > 1e-3


@pytest.mark.parametrize(("mode", "inverse_of_one"), [("code_global_batch", 0.032), ("code_local_batch", 0.059)])
def test_the_public_code_switches_the_indirect_part_almost_off(mode, inverse_of_one):
    """Specification, section 2.2: with step 0.01 and N = 5 the "inverse" of eigenvalue 1."""
    one = random(clients=1, d_x=1, d_y=1)
    one = dataclasses.replace(one, A=torch.ones_like(one.A))
    context = make_context(FedNestGeneral(eta_h=0.01, series_terms=6, mode=mode), one)
    x = y = torch.tensor([0.7], dtype=torch.float64)
    v, *_ = neumann.federated(context, x, y, context.upper_level(x, y))
    close(v / one.upper_gradients(x, y)[1], inverse_of_one, atol=5e-4)


def test_fresh_sets_differ_between_exchanges_and_one_set_does_not(problem):
    hyper = FedNestGeneral(series_terms=8, client_sets="fresh")
    context = make_context(hyper, problem, 0.5)
    fresh = {tuple(neumann.client_sets(context, m).clients.tolist()) for m in range(8)}
    one = dataclasses.replace(context, hyper=dataclasses.replace(hyper, client_sets="one"))
    code = dataclasses.replace(context, hyper=dataclasses.replace(hyper, mode="code_global_batch"))
    assert len(fresh) > 1
    for other in (one, code):
        assert len({tuple(neumann.client_sets(other, m).clients.tolist()) for m in range(8)}) == 1


# ------------------------------------------------------------------------------------------------------------- AggITD


@pytest.mark.parametrize("correction", ["svrg", "none"])
def test_aggitd_s_mean_over_its_random_round_is_its_deterministic_form(problem, monkeypatch, correction):
    """Property 16: E_Q[r] = s^N along one y-trajectory, which no Q changes; with one upper step x is linear in r."""
    hyper = AggItd(eta_x=0.1, eta_y=0.1, eta_h=0.2, series_terms=4, local_steps=[1, 4, 2, 3], correction=correction)
    start = from_point(problem, **START)
    exact = dataclasses.replace(hyper, series="deterministic")
    deterministic = run("aggitd", make_context(exact, problem), 1, start=start)
    found = []
    for Q in range(4):
        monkeypatch.setattr(
            "pipeline.methods.bilevel.common.bilevel_context.BilevelContext.integer", lambda self, *_, k=Q: k
        )
        found.append(run("aggitd", make_context(hyper, problem), 1, start=start))
    close(torch.stack([s.variables["x"] for s in found]).mean(0), deterministic.variables["x"])
    for state in found:
        close(state.variables["y"], deterministic.variables["y"])


def test_aggitd_is_steps_on_the_adjoint_s_quadratic(problem):
    """Deterministic: s <- s - lambda (D2yy G s - grad_y F) at every y^t, by hand, with one local step."""
    hyper = AggItd(eta_x=0.1, eta_y=0.1, eta_h=0.2, series_terms=3, local_steps=1, series="deterministic")
    x, y = at(problem)
    A, B, c = (problem.mean(name) for name in "ABc")
    s = torch.zeros(4, dtype=torch.float64)
    for _ in range(3):
        s = s - 0.2 * (A @ s - problem.upper_gradients(x, y)[1])
        y = y - 0.1 * (A @ y - B @ x - c)
    state = run("aggitd", make_context(hyper, problem), 1, start=from_point(problem, **START))
    close(state.variables["y"], y)
    close(state.variables["x"], x - 0.1 * (problem.upper_gradients(x, y)[0] + B.T @ s))


# ----------------------------------------------------------------------------------------------- LFedNest and StocBiO


def test_one_client_s_lfednest_is_stocbio():
    """D steps on y with fresh minibatches, warm start, then (6) with Q fresh Hessians, then x; noise included."""
    problem = random(clients=1, noise=0.3)
    D, Q, alpha, beta, tau = 4, 3, 0.1, 0.07, 0.2
    hyper = LFedNest(eta_x=beta, eta_y=alpha, eta_h=tau, local_steps=D, series_terms=Q + 1)
    context, one = make_context(hyper, problem), torch.arange(1)
    x, y = problem.initial_upper(0)[None], problem.initial_lower(0)[None]
    for k in range(1, 4):
        first, second = dataclasses.replace(context, round=k, inner=1), dataclasses.replace(context, round=k, inner=2)
        for t in range(D):
            y = y - alpha * context.oracle.lower_gradients(x, y, first.lower_batch("local y", one, t))
        r = context.oracle.upper_gradient_y(x, y, second.upper_batch("local hypergradient", one, 0))
        v = tau * r
        for q in range(1, Q + 1):
            r = r - tau * context.oracle.hessian_products(x, y, r, second.lower_batch("local series", one, 0, q))
            v = v + tau * r
        direct = context.oracle.upper_gradient_x(x, y, second.upper_batch("local direct", one, 0))
        x = x - beta * (direct - context.oracle.cross_products(x, y, v, second.lower_batch("local cross", one, 0)))
    state = run("lfednest", context, 3)
    close(state.variables["x"], x[0])
    close(state.variables["y"], y[0])


def test_lfednest_on_local_lower_levels_is_unbiased():
    """There the average of local hypergradients is the hypergradient: it ends where that is 0, every y_i at y_i*."""
    problem = random(local_lower=True)
    hyper = LFedNest(eta_x=0.2, eta_y=0.4, eta_h=0.5, local_steps=10, series_terms=30)
    state = run("lfednest", make_context(hyper, problem), 60)
    x, Y = problem.local_stationary()
    close(state.variables["x"], x, atol=1e-7)
    close(state.memory["Y"], Y, atol=1e-7)
    assert (x - problem.stationary()[0]).norm() > 0.01


def test_a_round_of_lfednest_on_local_lower_levels_by_hand():
    """T tau_i steps of eta_y / tau_i on each client's own y_i from where it is; then, at the new y_i, u_i steps of
    eta_x / u_i along grad_x f_i + B_i' s, s = A_i^-1 (1 - (1 - lambda A_i)^M) grad_y f_i; x = sum_i p_i z_i. One of
    four clients is away: its y stays."""
    problem, taus, ups = random(local_lower=True), [1, 3, 2, 2], [2, 1, 3, 1]
    hyper = LFedNest(
        eta_x=0.07,
        eta_y=0.3,
        eta_h=0.4,
        local_steps=taus,
        upper_local_steps=ups,
        local_step_size="divided",
        lower_rounds=2,
        series_terms=3,
    )
    context = make_context(hyper, problem, 0.75)
    active = context.at(3).active().tolist()
    assert len(active) == 3
    state = ALGORITHMS["lfednest"].init(context)
    generator = torch.Generator().manual_seed(1)
    x, Y = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((3,), (4, 4)))
    state.variables["x"], moved = x.clone(), torch.zeros(3, dtype=torch.float64)
    state.memory["Y"].copy_(Y)
    for i in active:
        A, B, one = problem.A[i], problem.B[i], problem.client(i)
        remainder = torch.linalg.matrix_power(torch.eye(4, dtype=torch.float64) - 0.4 * A, 3)
        for _ in range(2 * taus[i]):
            Y[i] = Y[i] - 0.3 / taus[i] * (A @ Y[i] - B @ x - problem.c[i])
        z = x
        for _ in range(ups[i]):
            grad_x, grad_y = one.upper_gradients(z, Y[i])
            z = z - 0.07 / ups[i] * (grad_x + B.T @ torch.linalg.solve(A, grad_y - remainder @ grad_y))
        moved += 4 / 3 * problem.p[i] * (z - x)
    one_round(ALGORITHMS["lfednest"], state, context)
    close(state.variables["x"], x + moved)
    close(state.memory["Y"], Y)


def test_absent_clients_keep_their_lower_variables():
    problem = random(local_lower=True)
    hyper = LFedNest(eta_x=0.2, eta_y=0.4, eta_h=0.5, series_terms=3)
    context = make_context(hyper, problem, 0.5)
    state = ALGORITHMS["lfednest"].init(context)
    before = state.memory["Y"].clone()
    one_round(ALGORITHMS["lfednest"], state, context)
    moved = (state.memory["Y"] != before).any(1).nonzero()[:, 0]
    assert moved.tolist() == context.at(2).active().tolist()
    assert len(moved) == 2


def test_a_correction_of_local_lower_levels_is_refused():
    context = make_context(LFedNest(correction="svrg"), random(local_lower=True))
    with pytest.raises(UserError, match=r"lfednest\.correction = 'svrg' .* must be none"):
        ALGORITHMS["lfednest"].init(context)


@pytest.mark.parametrize("key", ["local_steps", "upper_local_steps"])
@pytest.mark.parametrize(
    ("name", "record"), [("fednest_general", FedNestGeneral), ("lfednest", LFedNest), ("aggitd", AggItd)]
)
def test_a_wrong_list_of_local_steps_is_refused(problem, name, record, key):
    with pytest.raises(UserError, match=rf"^{key} = .* 4 whole numbers"):
        ALGORITHMS[name].init(make_context(record(**{key: [1, 2]}), problem))
