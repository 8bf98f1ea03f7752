"""FedBiO and FedBiOAcc with a common lower level, against the specification's properties P1-P22, float64."""

import dataclasses
import itertools

import pytest
import torch

from pipeline.errors import UserError
from pipeline.methods import ALGORITHMS
from pipeline.methods.bilevel.common import storm
from pipeline.methods.bilevel.common.directions import Point, directions, draw
from pipeline.methods.bilevel.fedbio import FedBio
from pipeline.methods.bilevel.fedbio_local import FedBioAccLocal
from pipeline.methods.bilevel.fedbioacc import FedBioAcc
from pipeline.methods.bilevel.simfbo import SimFbo
from tests.core.bilevel.helpers import FLAT, LARGE, close, from_point, make_context, run
from tests.core.bilevel.quadratic import random

STEPS = {"eta_x": 0.05, "eta_y": 0.2, "eta_v": 0.1}


def z(state):
    return torch.cat([state.variables[u] for u in "xyv"])


def momenta(state):
    return torch.cat([state.memory[m] for m in ("nu", "omega", "q")])


def centralised(problem, iterations, sizes=(0.05, 0.2, 0.1), alpha=lambda t: 1.0, start=None):
    """The single-loop method on (F, G), written out."""
    A, B, c = (problem.mean(name) for name in "ABc")
    x, y, v = start or (torch.zeros(d, dtype=torch.float64) for d in (3, 4, 4))
    for t in range(1, iterations + 1):
        grad_x, grad_y = problem.upper_gradients(x, y)
        moves = (grad_x + B.T @ v, A @ y - B @ x - c, A @ v - grad_y)
        x, y, v = (u - alpha(t) * size * move for u, size, move in zip((x, y, v), sizes, moves, strict=True))
    return torch.cat([x, y, v])


def alone(problem, iterations, start, sizes=(0.05, 0.2, 0.1)):
    """Every client's own single loop from a common start, averaged: one round."""
    starts = [start[:3], start[3:7], start[7:]]
    ends = [centralised(problem.client(i), iterations, sizes, start=starts) for i in range(problem.clients)]
    return problem.p @ torch.stack(ends)


# ------------------------------------------------------------------------------------------------------------- FedBiO


def test_one_iteration_a_round_is_the_centralised_method_and_more_are_not(problem):
    """P5."""
    close(z(run("fedbio", make_context(FedBio(**STEPS, local_steps=1), problem), 20)), centralised(problem, 20))
    apart = z(run("fedbio", make_context(FedBio(**STEPS, local_steps=5), problem), 4)) - centralised(problem, 20)
    assert apart.norm() > 0.01


def test_rounds_are_local_runs_and_averages(problem):
    """P7, with different p: x-bar moves by the mean of the clients' own runs."""
    expected = torch.zeros(11, dtype=torch.float64)
    for _ in range(4):
        expected = alone(problem, 3, expected)
    close(z(run("fedbio", make_context(FedBio(**STEPS, local_steps=3), problem), 4)), expected)


@pytest.mark.parametrize("period", [1, 2, 6])
def test_identical_clients_are_one_client(problem, period):
    """P6."""
    same = dataclasses.replace(problem.permuted([1, 1, 1]), p=torch.full((3,), 1 / 3, dtype=torch.float64))
    got = z(run("fedbio", make_context(FedBio(**STEPS, local_steps=period), same), 12 // period))
    close(got, centralised(problem.client(1), 12))


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_fedbio_is_simfbo_with_equal_steps(participation):
    """gamma = eta, I local steps, no ball, on the same draws: SimFBO specification 3.6."""
    noisy = random(noise=0.3, uniform=True)
    equal = {f"{kind}_{u}": STEPS[f"eta_{u}"] for kind in ("eta", "gamma") for u in "xyv"}
    sim = SimFbo(**equal, local_steps=3, adjoint_radius=LARGE)
    a = run("fedbio", make_context(FedBio(**STEPS, local_steps=3), noisy, participation), 5)
    close(z(a), z(run("simfbo", make_context(sim, noisy, participation), 5)))


def test_without_upper_steps_it_is_federated_averaging_of_the_lower_level(problem):
    """P17: y does not look at u, and x moves by 1e-290."""
    hyper = FedBio(eta_x=1e-290, eta_y=0.2, eta_v=0.1, local_steps=4)
    expected = torch.zeros(4, dtype=torch.float64)
    for _ in range(3):
        ends = []
        for i in range(4):
            y = expected
            for _ in range(4):
                y = y - 0.2 * (problem.A[i] @ y - problem.c[i])
            ends.append(y)
        expected = problem.p @ torch.stack(ends)
    close(run("fedbio", make_context(hyper, problem), 3).variables["y"], expected)


def test_the_solution_stays_with_one_iteration_and_drifts_with_more(problem):
    """P11."""
    start = from_point(problem, *problem.stationary())
    for period, least, most in ((1, 0.0, 1e-10), (5, 0.01, 10.0)):
        hyper = FedBio(**STEPS, local_steps=period)
        state = run("fedbio", make_context(hyper, problem), 10, start=start)
        assert least <= (z(state) - torch.cat(problem.stationary())).norm() <= most


@pytest.mark.slow
def test_the_floor_is_proportional_to_step_and_period(problem):
    """P12: the limit's distance to the solution, steps halved twice at I = 5, and I - 1 = 0, 1, 4, 8."""

    def floor(scale, period):
        sizes = {name: scale * size for name, size in {"eta_x": 0.1, "eta_y": 0.1, "eta_v": 0.1}.items()}
        context = make_context(FedBio(**sizes, local_steps=period), problem)
        state = run("fedbio", context, int(60 / scale / period), start=from_point(problem, *problem.stationary()))
        return float(problem.hypergradient(state.variables["x"]).norm())

    whole, half, quarter = (floor(scale, 5) for scale in (0.4, 0.2, 0.1))
    assert 1.8 < whole / half < 2.2
    assert 1.9 < half / quarter < 2.1
    assert floor(0.1, 1) < 1e-10
    assert 3.4 < quarter / floor(0.1, 2) < 4.4


def test_the_adjoint_stays_bounded(problem):
    """P18: tau <= 1/L and |u| <= max |grad_y f_i| / mu at the start keep it there, whatever I (x and y stand still)."""
    hyper = FedBio(eta_x=1e-290, eta_y=1e-290, eta_v=0.5, local_steps=4)
    pull = [problem.client(i).upper_gradients(torch.zeros(3).double(), torch.zeros(4).double())[1] for i in range(4)]
    largest = max(float(b.norm()) for b in pull)
    mu = min(float(torch.linalg.eigvalsh(A)[0]) for A in problem.A)
    seen = []
    run("fedbio", make_context(hyper, problem), 50, each=lambda s: seen.append(float(s.variables["v"].norm())))
    assert 0.1 * largest / mu < max(seen) <= largest / mu


# ---------------------------------------------------------------------------------------------------------- FedBiOAcc


def test_no_memory_is_fedbio(problem):
    """P8: c alpha^2 = 1 gives plain gradients; equal to FedBiO for I = 1, and for identical clients at any I; with more
    iterations and different clients it is not, since the averaged momenta make the first local step."""
    acc = FedBioAcc(**STEPS, **FLAT, local_steps=1)
    close(z(run("fedbioacc", make_context(acc, problem), 10)), centralised(problem, 10), atol=1e-11)
    same = dataclasses.replace(problem.permuted([1, 1, 1]), p=torch.full((3,), 1 / 3, dtype=torch.float64))
    acc = dataclasses.replace(acc, local_steps=5)
    close(z(run("fedbioacc", make_context(acc, same), 2)), centralised(problem.client(1), 10), atol=1e-11)
    start = torch.zeros(11, dtype=torch.float64)
    apart = z(run("fedbioacc", make_context(acc, problem), 2)) - alone(problem, 5, alone(problem, 5, start))
    assert apart.norm() > 1e-3


def test_no_memory_uses_the_draw_of_the_iteration_before():
    """P8, stochastic case, one client, I = 1: FedBiO at z_t on the batch that the momentum was computed on."""
    noisy = random(clients=1, noise=0.3)
    context = make_context(FedBioAcc(**STEPS, **FLAT, local_steps=1), noisy)
    one, at = torch.arange(1), Point(*(torch.zeros(1, d, dtype=torch.float64) for d in (3, 4, 4)))
    for t in range(1, 5):
        when, tag = (1, 0) if t == 1 else (t - 1, 1)
        B = draw(dataclasses.replace(context, round=when), one, tag)
        d = directions(context, at, B, context.upper_level(at.x[0], at.y[0]))
        at = Point(*(u - size * move for u, size, move in zip(at, STEPS.values(), (d.x, d.y, d.v), strict=True)))
    close(z(run("fedbioacc", context, 4)), torch.cat([u[0] for u in at]), atol=1e-11)


@pytest.mark.parametrize("c", [0.0, 0.3, 1.2])
@pytest.mark.parametrize("period", [1, 3])
def test_without_noise_one_client_follows_scaled_fedbio(problem, c, period):
    """P9: STORM is exact without noise, so every c gives the steps alpha_t eta, alpha_t gamma, alpha_t tau."""
    one = problem.client(0)
    hyper = FedBioAcc(
        **STEPS, alpha_scale=1.5, alpha_offset=4.0, storm_x=c, storm_y=c, storm_v=c / 2, local_steps=period
    )
    expected = centralised(one, 6, alpha=lambda t: 1.5 / (4 + t) ** (1 / 3))
    close(z(run("fedbioacc", make_context(hyper, one), 6 // period)), expected)


@pytest.mark.parametrize("bound", [None, -0.05])
@pytest.mark.parametrize("average", [False, True])
def test_momenta_are_the_mean_gradients(problem, average, bound):
    """P10, without noise, any I and c, different p: after a round all clients stand at the averages, x on its set."""
    problem = dataclasses.replace(problem, upper_bound=bound)
    hyper = FedBioAcc(**STEPS, storm_x=0.7, storm_y=0.7, storm_v=0.7, local_steps=3, average_initial_momentum=average)
    context, all_clients = make_context(hyper, problem), torch.arange(4)

    def check(state):
        at = Point(*(state.variables[u] for u in "xyv")).rows(4)
        exact = directions(context, at, draw(context, all_clients), context.upper_level(at.x[0], at.y[0]))
        close(momenta(state), torch.cat([problem.p @ u for u in exact]), atol=1e-11)

    run("fedbioacc", context, 4, each=check)


def test_control_variates_hold_the_solution_for_every_period(problem):
    """P11: with c = 0 and averaged initial momenta local drift cancels; with c > 0 or without the averaging it does
    not."""
    start, end = from_point(problem, *problem.stationary()), torch.cat(problem.stationary())

    def moved(c, average):
        hyper = FedBioAcc(
            **STEPS, **FLAT, storm_x=c, storm_y=c, storm_v=c, local_steps=4, average_initial_momentum=average
        )
        return float((z(run("fedbioacc", make_context(hyper, problem), 8, start=start)) - end).norm())

    assert moved(0.0, True) < 1e-10
    assert moved(0.1, True) > 1e-4
    assert moved(0.0, False) > 1e-3


@pytest.mark.parametrize("name", ["fedbioacc", "fedbioacc_local"])
def test_momenta_that_no_client_changes_stay_whoever_is_active(name):
    """Points that do not move and c = 0 leave every client's momentum as the server sent it; so the average is that,
    although the weights (N/n) p_i of the active clients do not sum to 1."""
    problem, still = random(clients=5, local_lower=name != "fedbioacc"), {"eta_x": 1e-290, "eta_y": 1e-290}
    hyper = FedBioAcc(**still, eta_v=1e-290, storm_x=0, storm_y=0, storm_v=0)
    if problem.local_lower:
        hyper = FedBioAccLocal(**still, series_terms=3, storm_x=0, storm_y=0)
    context, seen = make_context(hyper, problem, 0.4), []
    averaged = ("nu", "omega", "q") if name == "fedbioacc" else ("nu",)
    run(name, context, 5, each=lambda state: seen.append(torch.cat([state.memory[m] for m in averaged])))
    close(torch.stack(seen[1:]), seen[0].expand(4, -1))
    sums = [float(dataclasses.replace(context, round=t).cohort().p.sum()) for t in range(2, 6)]
    assert max(abs(total - 1) for total in sums) > 0.05
    assert seen[0].norm() > 0.1


def test_one_draw_at_two_points_and_five_independent_ones(monkeypatch):
    """P21: per evaluation five streams, all different over iterations and rounds but for STORM, which looks twice at
    one draw."""
    noisy, seen = random(noise=0.3), []
    for kind in ("draw_lower", "draw_upper"):
        original = getattr(type(noisy), kind)
        monkeypatch.setattr(
            type(noisy),
            kind,
            lambda self, stream, clients, size, f=original, k=kind: (
                seen.append((k, stream)),
                f(self, stream, clients, size),
            )[1],
        )
    iterations = {"fedbio": FedBio(**STEPS, local_steps=3), "fedbioacc": FedBioAcc(**STEPS, local_steps=3)}
    for name, hyper in iterations.items():
        seen.clear()
        run(name, make_context(hyper, noisy), 2)
        evaluations = 2 * 3 + (1 if name == "fedbioacc" else 0)
        assert len(seen) == len(set(seen)) == 5 * evaluations
        assert sum(kind == "draw_lower" for kind, _ in seen) == 3 * evaluations
        seen.clear()
        run(name, make_context(dataclasses.replace(hyper, shared_batch=True), noisy), 2)
        assert len(seen) == len(set(seen)) == 2 * evaluations


def test_alpha_falls_slowly():
    """P20: alpha_t is the theory's formula whatever the noise level, decreasing, and within a factor 2 over a period if
    u_0 >= I + 1; and c alpha_1^2 <= 1 is asked for."""
    b, M, L, u = 8, 10, 1.7, 3.0
    hyper = FedBioAcc(alpha_scale=(b * M) ** (2 / 3) / (16 * L) ** (1 / 3), alpha_offset=u * (b * M) ** 2)
    for t in (1, 7, 1000):
        for sigma in (0.3, 2.0):
            delta = (b * M * sigma) ** (2 / 3) / (16 * L) ** (1 / 3)
            theory = delta / ((b * M * sigma) ** 2 * u + sigma**2 * t) ** (1 / 3)
            assert storm.alpha(hyper, t) == pytest.approx(theory, rel=1e-12)
            assert theory == pytest.approx((16 * L * (u + t / (b * M) ** 2)) ** (-1 / 3), rel=1e-12)
    short = FedBioAcc(alpha_scale=1.0, alpha_offset=6.0)
    values = [storm.alpha(short, t) for t in range(1, 50)]
    assert all(a > later for a, later in itertools.pairwise(values))
    assert all(values[t] / values[t + 5] <= 2 for t in range(40))


@pytest.mark.parametrize(
    ("name", "hyper"),
    [("fedbioacc", FedBioAcc(storm_v=1e3)), ("fedbioacc_local", FedBioAccLocal(storm_y=1e3))],
)
def test_too_large_a_momentum_coefficient_is_refused(name, hyper):
    problem = random(local_lower=name.endswith("local"))
    with pytest.raises(UserError, match=rf"algorithms\.{name}\.storm_\w = 1000\.0 .* at most 1 / alpha_1\^2"):
        ALGORITHMS[name].init(make_context(hyper, problem))
