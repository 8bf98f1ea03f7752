"""SimFBO and ShroFBO against the specification: golden values, limits and identities (section 6), float64.

Numbers come from the specification or from the closed forms of the quadratics; names of properties are its section 6.3.
"""

import dataclasses
import itertools

import pytest
import torch

from pipeline import projections
from pipeline.errors import UserError
from pipeline.methods import ALGORITHMS
from pipeline.methods.bilevel.common import step_counts
from pipeline.methods.bilevel.common.directions import Batches, Point, directions
from pipeline.methods.bilevel.simfbo import ShroFbo, SimFbo
from tests.core.bilevel.helpers import LARGE, close, from_point, make_context, run
from tests.core.bilevel.quadratic import example_a, example_b, random

RECORDS = {"simfbo": SimFbo, "shrofbo": ShroFbo}
both = pytest.mark.parametrize("name", RECORDS)


def hyper(name="simfbo", gamma=0.05, eta=0.0, steps=(1, 3), **more):
    """Equal step sizes for all three variables; lists stay lists."""
    steps = list(steps) if isinstance(steps, tuple) else steps
    sizes = {f"{kind}_{u}": size for kind, size in {"gamma": gamma, "eta": eta}.items() for u in "xyv"}
    return RECORDS[name](**({"local_steps": steps, "adjoint_radius": LARGE} | sizes | more))


def xyv(state):
    return torch.cat([state.variables[u] for u in "xyv"])


# ------------------------------------------------------------------------------------------------------ golden values

ONES = from_point(None, [1.0], [1.0], [1.0])


@pytest.mark.parametrize(
    ("name", "expected"), [("simfbo", (0.2545, 0.9545, 0.577)), ("shrofbo", (0.369667, 1.103, 0.718))]
)
def test_one_round_of_example_b(name, expected):
    state = run(name, make_context(hyper(name, 0.1, 0.1), example_b()), 1, start=ONES)
    close(xyv(state), expected, atol=1e-6)


def test_one_round_of_example_b_under_wrong_readings():
    """Taking gradients after the move (k = 1..tau), or moving y before v before x, gives other numbers, which the
    specification prints: a plain loop written here reproduces both, and the right ones."""
    problem, tau = example_b(), (1, 3)

    def local_run(i, order):
        """Client i's sums of (d_x, d_y, d_v); order: jacobi | shifted | gauss_seidel."""
        context, clients = make_context(hyper("simfbo"), problem), torch.tensor([i])
        upper = context.upper_level(torch.ones(1), torch.ones(1))
        at, q = Point(*(torch.ones(3, 1, 1, dtype=torch.float64))), torch.zeros(3, dtype=torch.float64)
        batches = Batches(*[(clients,)] * 5)
        look = lambda point: torch.stack([u[0, 0] for u in directions(context, point, batches, upper)])  # noqa: E731
        for _ in range(tau[i]):
            d = look(at)
            moved = Point(*(u - 0.1 * step for u, step in zip(at, d, strict=True)))
            if order == "gauss_seidel":
                d_y = d[1]
                d_v = look(Point(at.x, moved.y, at.v))[2]
                v = at.v - 0.1 * d_v
                d_x = look(Point(at.x, moved.y, v))[0]
                d, moved = torch.stack([d_x, d_y, d_v]), Point(at.x - 0.1 * d_x, moved.y, v)
            q += look(moved) if order == "shifted" else d
            at = moved
        return q

    found = {}
    for order in ("jacobi", "shifted", "gauss_seidel"):
        found[order] = 1 - 0.1 * (local_run(0, order) + local_run(1, order)) / 2
    close(found["jacobi"], (0.2545, 0.9545, 0.577), atol=1e-12)
    close(found["shifted"], (0.58285, 0.59085, 0.69935), atol=1e-12)
    close(found["gauss_seidel"], (0.465797, 1.103662, 0.587528), atol=1e-6)


EXAMPLES = {"B": example_b(), "A": example_a()}
TRUE = {"B": (14 / 65, 0.876923, -0.061538), "A": (-1.0, 1.0, 1.0)}
REWEIGHTED = {"B": (247 / 461, 1.218004, -0.112798), "A": (-1.5, 1.5, 1.5)}
W = torch.tensor([0.25, 0.75], dtype=torch.float64)


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_closed_forms_are_the_specification_s_table(example):
    problem = EXAMPLES[example]
    close(torch.cat(problem.stationary()), TRUE[example], atol=1e-6)
    close(torch.cat(problem.stationary(W)), REWEIGHTED[example], atol=1e-6)


def test_averaged_local_hypergradients_vanish_elsewhere():
    """At the global y*(x); specification, section 6.1: x = 10/29."""
    problem = example_b()

    def averaged(x):
        y, total = problem.y_star(x), 0.0
        for i in range(2):
            one = problem.client(i)
            grad_x, grad_y = one.upper_gradients(x, y)
            total += one.mean("B").T @ torch.linalg.solve(one.mean("A"), grad_y) / 2 + grad_x / 2
        return total

    close(averaged(torch.tensor([10 / 29], dtype=torch.float64)), 0.0)
    assert averaged(problem.stationary()[0]).abs() > 0.1


@pytest.mark.parametrize("example", EXAMPLES)
@both
@pytest.mark.slow
def test_objective_inconsistency(example, name):
    """Property 8: client step 0, unequal local steps: SimFBO ends at the reweighted point, ShroFBO at the true one;
    with equal steps both end at the true one."""
    expected = REWEIGHTED[example] if name == "simfbo" else TRUE[example]
    close(xyv(run(name, make_context(hyper(name), EXAMPLES[example]), 500)), expected, atol=1e-5)
    close(xyv(run(name, make_context(hyper(name, steps=2), EXAMPLES[example]), 500)), TRUE[example], atol=1e-5)


TRUE_POINT = from_point(None, *example_b().stationary())
DRIFT = {
    0.0125: (0.213529, 0.888651, -0.051015),
    0.025: (0.212373, 0.900645, -0.040256),
    0.05: (0.212248, 0.925322, -0.018012),
}


@pytest.mark.slow
def test_drift_is_proportional_to_the_client_step():
    """Property 9: limits as printed; halving eta halves the error of the whole vector."""
    errors = []
    for eta, expected in DRIFT.items():
        limit = xyv(run("shrofbo", make_context(hyper("shrofbo", 0.1, eta), example_b()), 450, start=TRUE_POINT))
        close(limit, expected, atol=2e-6)
        errors.append((limit - torch.cat(example_b().stationary())).norm())
    close(torch.stack(errors), (0.0159, 0.0320, 0.0652), atol=1e-4)
    limit = xyv(run("simfbo", make_context(hyper("simfbo", 0.1, 0.05), example_b()), 450, start=TRUE_POINT))
    close(limit, (0.532835, 1.239821, -0.090180), atol=2e-6)


@pytest.mark.slow
def test_drift_of_example_a():
    """Property 9: ShroFBO's y = 1 - eta + O(eta^2)."""
    for eta in (0.01, 0.005):
        y = run("shrofbo", make_context(hyper("shrofbo", 0.1, eta), example_a()), 300).variables["y"]
        close(y, 1 - eta, atol=2 * eta**2, rtol=0)


@both
@pytest.mark.slow
def test_limits_do_not_depend_on_the_server_s_step(name):
    """Property 10."""
    contexts = [make_context(hyper(name, gamma, 0.05), example_b()) for gamma in (0.06, 0.1)]
    limits = [xyv(run(name, context, 500, start=TRUE_POINT)) for context in contexts]
    close(limits[0], limits[1], atol=1e-5)


@both
@pytest.mark.slow
def test_identical_clients_do_not_drift(name):
    """Property 11."""
    problem = random(clients=3).permuted([1, 1, 1])
    problem = dataclasses.replace(problem, p=torch.full((3,), 1 / 3, dtype=torch.float64))
    state = run(name, make_context(hyper(name, 0.05, 0.05, steps=(1, 2, 4)), problem), 300)
    close(xyv(state), torch.cat(problem.stationary()), atol=1e-6)


# ---------------------------------------------------------------------------------------------------------- identities


def test_hypergradient_is_the_derivative_of_the_value():
    """Property 1: the formula equals central differences; averaged hypergradients of clients do not."""
    problem = random()
    x = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64)
    eye = 1e-5 * torch.eye(3, dtype=torch.float64)
    differences = torch.stack([(problem.value(x + h) - problem.value(x - h)) / 2e-5 for h in eye])
    close(problem.hypergradient(x), differences, atol=1e-8)
    assert (problem.local_hypergradient(x) - differences).norm() > 0.01


def test_frozen_upper_variable_gives_solution_and_adjoint():
    """Property 2: y -> y*(x), v -> H^-1 grad_y F, and the surrogate is the hypergradient."""
    problem = random()
    x = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64)
    context = make_context(hyper(gamma=0.3, steps=1), problem)
    state = run("simfbo", context, 200, start=from_point(None, x), frozen=("x",))
    close(state.variables["y"], problem.y_star(x), atol=1e-10)
    close(state.variables["v"], problem.v_star(x), atol=1e-10)
    close(ALGORITHMS["simfbo"].step(state, context).directions["x"], problem.hypergradient(x), atol=1e-9)


def test_the_adjoint_contracts_in_every_round():
    """FedBiO P2: with x and y frozen ||v - v*|| falls by 1 - tau mu at least, for tau <= 1/L."""
    problem, x = random(), torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64)
    eigenvalues = torch.linalg.eigvalsh(problem.mean("A"))
    tau = float(1 / eigenvalues[-1])
    distances = []
    context = make_context(hyper(gamma=tau, steps=1), problem)
    start = from_point(None, x, problem.y_star(x), [5.0, -4.0, 3.0, 2.0])
    measured = lambda state: distances.append(float((state.variables["v"] - problem.v_star(x)).norm()))  # noqa: E731
    run("simfbo", context, 12, start=start, frozen=("x", "y"), each=measured)
    ratios = [b / a for a, b in itertools.pairwise(distances)]
    assert max(ratios) <= 1 - tau * float(eigenvalues[0]) + 1e-9
    assert min(ratios) > 0


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_equal_local_steps_make_the_two_one(participation):
    """Property 3, also with coefficients, noise and sampled clients."""
    problem = random(noise=0.3)
    options = {"gamma": 0.05, "eta": 0.02, "steps": 3, "local_coefficients": "momentum"}
    a, b = (run(name, make_context(hyper(name, **options), problem, participation), 10) for name in RECORDS)
    close(xyv(a), xyv(b))


def test_one_client_is_the_centralised_single_loop():
    """Property 4, with the recursion written out."""
    problem, x = random(clients=1), torch.zeros(3, dtype=torch.float64)
    y = v = torch.zeros(4, dtype=torch.float64)
    A, B, c = (problem.mean(name) for name in "ABc")
    for _ in range(7):
        grad_x, grad_y = problem.upper_gradients(x, y)
        y_new, v_new = y - 0.2 * (A @ y - B @ x - c), v - 0.1 * (A @ v - grad_y)
        x, y, v = x - 0.05 * (grad_x + B.T @ v), y_new, v_new
    options = SimFbo(gamma_x=0.05, gamma_y=0.2, gamma_v=0.1, adjoint_radius=LARGE)
    close(xyv(run("simfbo", make_context(options, problem), 7)), torch.cat([x, y, v]))


@both
def test_with_one_local_step_the_client_step_has_no_effect(name):
    """Property 5, to the bit."""
    runs = [run(name, make_context(hyper(name, 0.1, eta, 1), random(noise=0.3), 0.5), 5) for eta in (0.0, 0.7)]
    assert torch.equal(xyv(runs[0]), xyv(runs[1]))


def test_equal_step_sizes_are_model_averaging():
    """Property 6: gamma = eta gives the mean of the clients' last iterates, each by its own recursion."""
    problem, context = example_b(), make_context(hyper(gamma=0.1, eta=0.1), example_b())
    ends = []
    for i, tau in enumerate((1, 3)):
        alone = make_context(hyper(gamma=0.1, steps=1), problem.client(i))
        ends.append(xyv(run("simfbo", alone, tau, start=ONES)))
    close(xyv(run("simfbo", context, 1, start=ONES)), (ends[0] + ends[1]) / 2)


@both
def test_client_step_zero_is_one_step_with_other_weights(name):
    """Property 7: iterate by iterate; weights w and step rho gamma for SimFBO, p and rho gamma for ShroFBO."""
    problem = random()
    steps = torch.tensor([1, 4, 2, 3])
    rho = float(problem.p @ steps.double())
    other = problem if name == "shrofbo" else dataclasses.replace(problem, p=problem.p * steps / rho)
    a, b = [], []
    run(name, make_context(hyper(name, 0.02, 0.0, tuple(steps.tolist())), problem), 8, each=lambda s: a.append(xyv(s)))
    run("simfbo", make_context(hyper(gamma=0.02 * rho, steps=1), other), 8, each=lambda s: b.append(xyv(s)))
    close(torch.stack(a), torch.stack(b), atol=1e-11)


@both
def test_the_mean_over_all_client_sets_is_the_full_round(name, monkeypatch):
    """Property 12: enumerating every set of P = 2 of 4, weights p of their own, any tau and eta."""
    problem = random()
    context = make_context(hyper(name, 0.1, 0.05, (1, 3, 2, 4)), problem)
    start = from_point(None, [0.1, 0.2, 0.3], [1.0, 0.0, -1.0, 0.5], [0.2, 0.1, 0.4, -0.3])
    full = xyv(run(name, context, 1, start=start))
    rounds = []
    for chosen in itertools.combinations(range(4), 2):
        monkeypatch.setattr(type(context), "active", lambda self, *_, chosen=chosen: torch.tensor(chosen))
        rounds.append(xyv(run(name, context, 1, start=start)))
    assert torch.stack(rounds).std(0).min() > 1e-4  # the sets do differ
    close(torch.stack(rounds).mean(0), full)


def test_the_second_moment_over_all_client_sets(monkeypatch):
    """Property 12 (the paper's eq. 24), n = 4: sets of P = 2 leave n(P-1)/(P(n-1)) = 2/3 of ||sum w_i z_i||^2 and
    n(n-P)/(P(n-1)) = 4/3 of sum w_i^2 ||z_i||^2. A set of one client moves by n w_i z_i."""
    context = make_context(hyper("simfbo", 0.1, 0.05, (1, 3, 2, 4)), random())
    start = from_point(None, [0.1, 0.2, 0.3], [1.0, 0.0, -1.0, 0.5], [0.2, 0.1, 0.4, -0.3])
    before = torch.cat([start[name] for name in "xyv"])

    def moves(size):
        found = []
        for chosen in itertools.combinations(range(4), size):
            monkeypatch.setattr(type(context), "active", lambda self, *_, chosen=chosen: torch.tensor(chosen))
            found.append(xyv(run("simfbo", context, 1, start=start)) - before)
        return torch.stack(found)

    wz = moves(1) / 4
    expected = 2 / 3 * wz.sum(0).square().sum() + 4 / 3 * wz.square().sum()
    close(moves(2).square().sum(1).mean(), expected)


def test_sampling_is_without_replacement_and_even():
    """Property 12: members distinct, each client in P/N of the rounds (2,000 rounds: 5 standard errors)."""
    context = make_context(hyper(), random(clients=5), 0.4)
    chosen = [dataclasses.replace(context, round=t).active() for t in range(2000)]
    assert all(len(set(c.tolist())) == 2 for c in chosen)
    frequency = torch.bincount(torch.cat(chosen), minlength=5) / 2000
    assert (frequency - 0.4).abs().max() < 5 * (0.4 * 0.6 / 2000) ** 0.5


@both
def test_scaling_coefficients_and_steps(name):
    """Property 13: a -> 2a with eta, gamma -> eta/2, gamma/2 changes nothing."""
    problem = random(noise=0.2)
    steps = (1, 3, 2, 3)
    plain = hyper(name, 0.04, 0.03, steps, local_coefficients=[1.0, 0.5, 2.0])
    scaled = hyper(name, 0.02, 0.015, steps, local_coefficients=[2.0, 1.0, 4.0])
    a, b = (run(name, make_context(h, problem, 0.5), 8) for h in (plain, scaled))
    close(xyv(a), xyv(b))


def test_reweighting_identity():
    """Property 13: q = rho sum_C (n/P) w_i h_i for every set of clients, so SimFBO on p is ShroFBO on w."""
    problem = random()
    steps = torch.tensor([1, 4, 2, 3])
    rho = problem.p @ steps.double()
    reweighted = dataclasses.replace(problem, p=problem.p * steps / rho)
    rho_of_w = float(reweighted.p @ steps.double())
    a = make_context(hyper("simfbo", 0.05, 0.03, tuple(steps.tolist())), problem, 0.5)
    b = make_context(hyper("shrofbo", 0.05 * float(rho) / rho_of_w, 0.03, tuple(steps.tolist())), reweighted, 0.5)
    close(xyv(run("simfbo", a, 6)), xyv(run("shrofbo", b, 6)))


@both
def test_relabelling_clients_changes_nothing(name):
    """Property 19, without noise, where no client has a stream."""
    problem, order = random(), [2, 0, 3, 1]
    steps = (1, 4, 2, 3)
    moved = tuple(steps[i] for i in order)
    a = run(name, make_context(hyper(name, 0.05, 0.03, steps), problem), 8)
    b = run(name, make_context(hyper(name, 0.05, 0.03, moved), problem.permuted(order)), 8)
    close(xyv(a), xyv(b))


# ---------------------------------------------------------------------------------------------------- ball and options


@both
def test_the_adjoint_stays_in_its_ball(name):
    """Property 18: with a small ball the bound holds in every round and is reached."""
    seen = []
    context = make_context(hyper(name, 0.2, 0.1, 2, adjoint_radius=0.3), random(noise=0.3), 0.5)
    run(name, context, 30, each=lambda state: seen.append(float(state.variables["v"].norm())))
    assert 0.3 - 1e-9 < max(seen) <= 0.3 + 1e-12
    assert torch.equal(projections.ball(torch.zeros(4), 0.3), torch.zeros(4))


def test_the_server_projects_the_upper_variable_and_clients_do_not():
    problem = dataclasses.replace(random(), upper_bound=-0.05)
    start = from_point(None, [-0.05] * 3)
    projected, free = (
        run("simfbo", make_context(hyper(gamma=0.1, eta=0.1, steps=2), q), 1, start=start) for q in (problem, random())
    )
    x, x_free = projected.variables["x"], free.variables["x"]
    assert x_free.max() > -0.05  # so the bound matters
    close(x, x_free.clamp_max(-0.05))
    close(projected.variables["y"], free.variables["y"])


@pytest.mark.parametrize(
    ("kind", "theta", "expected"),
    [
        ("constant", 0.5, [1.0, 1.0, 1.0]),
        ("momentum", 0.5, [1.75, 1.5, 1.0]),
        ("proximal", 0.5, [0.25, 0.5, 1.0]),
        ("momentum", 0.25, [21 / 16, 5 / 4, 1.0]),  # 1 + 1/4 + 1/16, 1 + 1/4, 1
        ("proximal", 0.25, [9 / 16, 3 / 4, 1.0]),  # (3/4)^2, 3/4, 1
    ],
)
def test_coefficients_of_local_optimisers(kind, theta, expected):
    """Specification, section 2.1, tau = 3."""
    options = hyper(local_coefficients=kind, local_coefficient=theta)
    got = torch.stack([step_counts.coefficients(options, torch.tensor([3]), k) for k in range(3)])
    close(got, expected)
    close(step_counts.norms(options, torch.tensor([3, 1])), [sum(expected), 1.0])


@pytest.mark.parametrize("theta", [0.5, 0.25])
@pytest.mark.parametrize("kind", ["momentum", "proximal"])
def test_coefficients_are_the_optimisers_total_update(kind, theta):
    """Three gradients that do not depend on where the client is, eta = 0.1. momentum: m <- theta m + g, u <- u - eta m.
    proximal: u <- u - eta (g + (theta / eta) u), from u = 0."""
    eta, m, u = 0.1, 0.0, 0.0
    gradients = [2.0, -1.0, 3.0]
    for g in gradients:
        m = theta * m + g
        u = u - eta * m if kind == "momentum" else u - eta * (g + theta / eta * u)
    options = hyper(local_coefficients=kind, local_coefficient=theta)
    a = [float(step_counts.coefficients(options, torch.tensor([3]), k)) for k in range(3)]
    assert -eta * sum(weight * g for weight, g in zip(a, gradients, strict=True)) == pytest.approx(u, rel=1e-12)


def test_random_local_steps_are_drawn_once_or_every_round():
    options = hyper(steps="random", local_steps_max=10)
    context = make_context(options, random(clients=200))
    first, second = (step_counts.steps(dataclasses.replace(context, round=t)) for t in (1, 2))
    assert torch.equal(first, second)
    assert set(first.tolist()) == set(range(1, 11))
    redrawn = dataclasses.replace(options, local_steps_drawn="every_round")
    third, fourth = (step_counts.steps(dataclasses.replace(context, hyper=redrawn, round=t)) for t in (1, 2))
    assert not torch.equal(third, fourth)
    assert not torch.equal(step_counts.steps(dataclasses.replace(context, seed=1)), first)


@pytest.mark.parametrize("steps", [(1, 2), (1, 2, 3, 0)])
@both
def test_a_wrong_list_of_local_steps_is_refused(name, steps):
    with pytest.raises(UserError, match=r"local_steps = .* 4 whole numbers"):
        ALGORITHMS[name].init(make_context(hyper(name, steps=steps), random()))


def test_a_short_list_of_coefficients_is_refused():
    options = hyper(steps=(1, 2, 3, 1), local_coefficients=[1.0, 1.0])
    with pytest.raises(UserError, match=r"local_coefficients = .* 3 numbers"):
        ALGORITHMS["simfbo"].init(make_context(options, random()))


@pytest.mark.parametrize("drawn", ["once", "every_round"])
@both
def test_random_local_steps_want_a_coefficient_for_each_step_there_may_be(name, drawn):
    """Before the first round, whatever it draws: a later round may draw local_steps_max, here 5."""
    random_steps = {"steps": "random", "local_steps_max": 5, "local_steps_drawn": drawn}
    enough, short = (hyper(name, **random_steps, local_coefficients=[1.0] * count) for count in (5, 4))
    one = random(clients=1)
    contexts = [make_context(short, one, seed=seed) for seed in range(20)]
    assert min(int(step_counts.steps(context)) for context in contexts) < 5  # which the list would do for
    for context in contexts:
        with pytest.raises(
            UserError, match=r"local_coefficients = \[1.0, 1.0, 1.0, 1.0\] .* 5 numbers .*local_steps_max"
        ):
            ALGORITHMS[name].init(context)
        ALGORITHMS[name].init(dataclasses.replace(context, hyper=enough))
