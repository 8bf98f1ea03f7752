"""What must hold for every method with local steps alike, and the closed forms of those without duals (float64)."""

import dataclasses
from fractions import Fraction

import pytest
import torch

from pipeline.algorithms import ALGORITHMS
from pipeline.algorithms.consensus import local
from pipeline.algorithms.consensus.turn import LocalTurn
from pipeline.errors import UserError
from pipeline.oracles import FusedLocal, LoopLocal
from tests.core.consensus.quadratics import (
    Closed,
    Quadratics,
    advance,
    bernoulli,
    close,
    options,
    run,
    theta,
    turn_for,
)

C = 8
SAM = {"radius": 0.2, "sam_eps": 1e-12}
VARIANTS = {
    "fedavg": {},
    "fedprox": {"rho": 0.7},
    "fedcm": {"alpha": 0.3},
    "scaffold": {},
    "fedsam": SAM,
    "fedpd": {"rho": 0.7},
    "fedadmm": {"rho": 0.7},
    "feddyn": {"rho": 0.7},
    "fedspeed": {"rho": 0.7, **SAM},
    "fedspeed original": {"rho": 0.7, **SAM, "variant": "original"},
    "a_fedpd": {"rho": 0.7},
    "a_fedpd reference": {"rho": 0.7, "form": "reference"},
    "a_fedpd_sam": {"rho": 0.7, **SAM},
}
STEPS = {"eta": 0.05, "local_steps": 6}
every_method = pytest.mark.parametrize("variant", VARIANTS)


def settings(variant):
    return {**STEPS, **VARIANTS[variant]}


def method(variant):
    return variant.split()[0]


def sets_for(variant, clients=C):
    return None if method(variant) == "fedpd" else bernoulli(clients)


@pytest.fixture(scope="module")
def noisy():
    start = torch.full((5,), 0.3, dtype=torch.float64)
    return dataclasses.replace(Quadratics.generate(noise=0.5), start=start)


@pytest.fixture(scope="module")
def exact(noisy):
    return dataclasses.replace(noisy, noise=0.0)


def test_no_method_is_left_out():
    family = {name for name, algorithm in ALGORITHMS.items() if algorithm.turn is LocalTurn}
    assert {method(variant) for variant in VARIANTS} == family == set(TABLE)


# -------------------------------------------------------------------------------------- one mathematics, two backends


@every_method
@pytest.mark.parametrize("clip_mode", ["loss", "simulator"])
def test_fused_loop_and_hand_give_the_same_run(noisy, variant, clip_mode):
    more = {**settings(variant), "clip_norm": 1.5, "clip_mode": clip_mode, "weight_decay": 0.1, "eta_decay": 0.9}
    a, b, c = (
        run(method(variant), noisy, 6, sets_for(variant), oracle=oracle, **more)
        for oracle in (FusedLocal, LoopLocal, Closed)
    )
    for other in (b, c):
        for kind in ("variables", "memory"):
            for name, value in getattr(a, kind).items():
                close(getattr(other, kind)[name], value, 1e-11)
    assert (theta(a) - noisy.start).norm() > 0.1


@every_method
def test_equal_seeds_give_equal_bits_and_others_do_not(noisy, variant):
    federation = {"participation": 1.0 if method(variant) == "fedpd" else 0.5}
    a, b, c = (run(method(variant), noisy, 5, seed=s, federation=federation, **settings(variant)) for s in (0, 0, 1))
    assert all(torch.equal(a.variables[name], b.variables[name]) for name in a.variables)
    assert all(torch.equal(a.memory[name], b.memory[name]) for name in a.memory)
    assert not torch.equal(theta(a), theta(c))


@every_method
def test_decay_is_constant_within_a_round_and_starts_after_the_first(exact, variant):
    """eta_t = eta decay^t, t = 0 in the first round: a run of one round knows no decay; with decay 0.5 the second
    round is that of half the step."""
    name, half = method(variant), 0.5
    more = settings(variant)
    decayed = run(name, exact, 1, sets_for(variant), **{**more, "eta_decay": half})
    close(theta(decayed), theta(run(name, exact, 1, sets_for(variant), **more)))
    second = run(name, exact, 1, sets_for(variant), state=decayed, first=2, **{**more, "eta_decay": half})
    again = run(name, exact, 1, sets_for(variant), **more)
    expected = run(name, exact, 1, sets_for(variant), state=again, first=2, **{**more, "eta": half * more["eta"]})
    close(theta(second), theta(expected))


# ------------------------------------------------------------------------------------------------- 24: what it costs

# Specification, table 3.13. Per active client in multiples of d: down, up, gradients per local step; then what server
# and client keep, in multiples of d, as functions of C (the low-memory form keeps theta, theta-bar and all e_i).
TABLE = {
    "fedavg": (1, 1, 1, lambda C: 1, 0),
    "fedprox": (1, 1, 1, lambda C: 1, 0),
    "fedcm": (2, 1, 1, lambda C: 2, 0),
    "scaffold": (2, 2, 1, lambda C: 2, 1),
    "fedsam": (1, 1, 2, lambda C: 1, 0),
    "fedpd": (1, 1, 1, lambda C: 1, 1),
    "fedadmm": (1, 1, 1, lambda C: 1, 1),
    "feddyn": (1, 1, 1, lambda C: 2, 1),
    "fedspeed": (1, 1, 2, lambda C: 2, 1),
    "a_fedpd": (2, 1, 1, lambda C: C + 2, 0),
    "a_fedpd_sam": (2, 1, 2, lambda C: C + 2, 0),
}


@every_method
def test_24_counters_are_the_specification_s(exact, variant):
    name, K, d = method(variant), 3, 5
    down, up, per_step, server, client = TABLE[name]
    if variant == "fedspeed original":
        server = lambda C: 1  # noqa: E731  FedADMM's server
    if variant == "a_fedpd reference":
        server = lambda C: C + 1  # noqa: E731
    m = C if name == "fedpd" else 3
    turn = turn_for(exact, options(name, **{**settings(variant), "local_steps": K}), lambda t: range(m))
    step = ALGORITHMS[name].step(ALGORITHMS[name].init(turn), turn)
    assert dataclasses.astuple(step.cost) == (1, up * m * d, down * m * d, m * K * per_step, 0)
    found = step.report({"w": exact.start})
    assert int(found["server_state_bytes"]) == 8 * d * server(C)
    assert int(found["client_state_bytes"]) == 8 * d * client
    assert tuple(found) == ALGORITHMS[name].measures


@every_method
def test_residuals_by_hand(noisy, variant):
    """p = mean over active of ||theta' - theta_i||, d = rho ||theta' - theta||, drift = mean ||g_i(theta) + lin_i||."""
    name, sets = method(variant), sets_for(variant)
    state = run(name, noisy, 3, sets, **settings(variant))
    before = theta(state).clone()
    hyper = options(name, **settings(variant))
    turn = dataclasses.replace(turn_for(noisy, hyper, sets), round=4)
    lin = torch.zeros(C, 5, dtype=torch.float64)
    if "duals" in state.memory:
        lin = state.memory["duals"].clone()
    elif "deviations" in state.memory:
        lin = hyper.rho * (state.memory["deviations"] + before - state.variables["w_bar"])
    elif name == "scaffold":
        lin = state.memory["control"] - state.memory["controls"]
    elif name == "fedcm":
        lin = (1 - hyper.alpha) * state.memory["momentum"].expand(C, -1)
    active = turn.cohort()
    lin, models = lin[active], {}
    spy = ALGORITHMS[name].step(state, turn)
    after = before - spy.directions["w"]
    found = spy.report({"w": after})
    _, batch = next(turn.batches(active))
    g = noisy.gradients(before)[active] + batch[1]
    assert float(found["dual_drift"]) == pytest.approx(float((g + lin).norm(dim=1).mean()), rel=1e-10)
    rho = 0.1 if name in ("fedavg", "fedprox", "fedcm", "scaffold", "fedsam") else 0.7
    assert float(found["dual_residual"]) == pytest.approx(rho * float((after - before).norm()), rel=1e-10)
    if name in ("fedavg", "fedprox", "fedsam", "scaffold", "fedcm"):  # theta' is the mean of the models
        rule = {
            "fedavg": {},
            "fedprox": {"prox": 0.7},
            "fedsam": SAM,
            "scaffold": {"lin": lin},
            "fedcm": {"lin": lin, "fresh": 0.3},
        }[name]
        models = local.train(turn, before, active, local.Rule(**rule)).models
    else:
        sam = {"radius": hyper.radius, "sam_eps": hyper.sam_eps} if hasattr(hyper, "radius") else {}
        if variant == "fedspeed original":
            sam["sam_share"] = hyper.sam_share
        models = local.train(turn, before, active, local.Rule(lin=lin, prox=0.7, **sam)).models
    expected = float((after - models).norm(dim=1).mean())
    assert float(found["primal_residual"]) == pytest.approx(expected, rel=1e-10)
    assert expected > 1e-3


@pytest.mark.parametrize("variant", [v for v in VARIANTS if "rho" in VARIANTS[v] and v != "fedprox"])
def test_the_reported_mean_dual_is_that_of_all_duals(noisy, variant):
    name, sets = method(variant), sets_for(variant)
    state = run(name, noisy, 3, sets, **settings(variant))
    turn = dataclasses.replace(turn_for(noisy, options(name, **settings(variant)), sets), round=4)
    step = ALGORITHMS[name].step(state, turn)
    after = {v: state.variables[v] - step.directions[v] for v in state.variables}
    reported = float(step.report(after)["dual_mean"])
    lam = state.memory.get("duals")
    if lam is None:
        lam = 0.7 * (state.memory["deviations"] + after["w"] - after["w_bar"])
    assert reported == pytest.approx(float(lam.mean(0).norm()), rel=1e-9)
    assert reported > 1e-3


# -------------------------------------------------------------------------------------------------- 15: sharpness


def test_15_radius_0_is_the_method_without(noisy):
    pairs = [("fedsam", "fedavg", {}), ("fedspeed", "feddyn", {"rho": 0.7}), ("a_fedpd_sam", "a_fedpd", {"rho": 0.7})]
    for sharp, plain, more in pairs:
        a = run(sharp, noisy, 5, bernoulli(C), radius=0.0, **STEPS, **more)
        b = run(plain, noisy, 5, bernoulli(C), **STEPS, **more)
        assert torch.equal(theta(a), theta(b))
        c = run(sharp, noisy, 5, bernoulli(C), radius=0.2, **STEPS, **more)
        assert (theta(a) - theta(c)).norm() > 1e-3


def test_15_the_perturbation_has_length_r_over_all_parameters(exact):
    """grad f(x + r g/||g||) = g + r A g/||g||, without dual, proximal term or weight decay in g."""
    turn = turn_for(exact, options("fedspeed", eta=0.05, local_steps=1, weight_decay=0.1))
    lin = torch.ones(C, 5, dtype=torch.float64)
    for share in (1.0, 0.25):
        rule = local.Rule(lin=lin, prox=0.7, radius=0.3, sam_eps=1e-300, sam_share=share)
        moved = local.train(turn, exact.start, turn.cohort(), rule).models - exact.start
        g = exact.gradients(exact.start)
        sharp = g + 0.3 * torch.einsum("ikl,il->ik", exact.A, g / g.norm(dim=1, keepdim=True))
        mixed = (1 - share) * g + share * sharp
        close(moved, -0.05 * (mixed + lin + 0.1 * exact.start))
    eps = local.train(turn, exact.start, turn.cohort(), local.Rule(radius=0.3, sam_eps=0.5)).models
    g = exact.gradients(exact.start)
    sharp = g + 0.3 * torch.einsum("ikl,il->ik", exact.A, g / (g.norm(dim=1, keepdim=True) + 0.5))
    close(eps - exact.start, -0.05 * (sharp + 0.1 * exact.start))


def test_fedspeed_s_original_is_fedadmm_with_mixed_gradients(noisy):
    """share 0: FedADMM itself; and its server's rule is FedADMM's for any share."""
    more = {"rho": 0.7, **STEPS}
    a = run("fedspeed", noisy, 5, bernoulli(C), variant="original", sam_share=0.0, radius=0.3, **more)
    close(theta(a), theta(run("fedadmm", noisy, 5, bernoulli(C), **more)))


# --------------------------------------------------------------------------------------------------- local steps


def test_one_step_term_by_term(exact):
    """x - eta (g + lin + prox (x - theta) + wd x), twice, by hand; clipping of g alone."""
    turn = turn_for(exact, options("fedavg", eta=0.05, local_steps=2, weight_decay=0.2, clip_norm=1.0))
    lin = torch.linspace(-1, 1, C * 5, dtype=torch.float64).view(C, 5)
    found = local.train(turn, exact.start, turn.cohort(), local.Rule(lin=lin, prox=0.7)).models
    x = exact.start.expand(C, -1)
    for _ in range(2):
        g = exact.gradients(x)
        g = g / g.norm(dim=1, keepdim=True).clamp_min(1.0)
        x = x - 0.05 * (g + lin + 0.7 * (x - exact.start) + 0.2 * x)
    close(found, x)
    assert exact.gradients(exact.start).norm(dim=1).max() > 1.0


def test_the_simulator_clips_dual_and_anchor_too(exact):
    """v = g + lambda - rho theta is clipped; (wd + rho) x is not (item A16)."""
    hyper = options("feddyn", eta=0.05, local_steps=2, weight_decay=0.2, clip_norm=1.0, clip_mode="simulator")
    turn, lin = turn_for(exact, hyper), torch.linspace(-1, 1, C * 5, dtype=torch.float64).view(C, 5)
    found = local.train(turn, exact.start, turn.cohort(), local.Rule(lin=lin, prox=0.7)).models
    x = exact.start.expand(C, -1)
    for _ in range(2):
        v = exact.gradients(x) + lin - 0.7 * exact.start
        x = x - 0.05 * (v / v.norm(dim=1, keepdim=True).clamp_min(1.0) + 0.9 * x)
    close(found, x)


def test_weight_decay_is_l2_of_every_client(exact):
    """Without clipping: the run on f_i + wd/2 ||x||^2."""
    heavy = dataclasses.replace(exact, A=exact.A + 0.3 * torch.eye(5, dtype=torch.float64))
    for name in ("fedavg", "scaffold", "a_fedpd"):
        a = run(name, exact, 5, bernoulli(C), weight_decay=0.3, **STEPS)
        close(theta(a), theta(run(name, heavy, 5, bernoulli(C), **STEPS)))


# ------------------------------------------------------------------------------------------------------ local epochs


def epochs(sizes, batch, dimension=3, **federation):
    """Linear losses offset_ij^T w, so that a pass with batch 1 moves a client by -eta sum_j offset_ij."""
    g = torch.Generator().manual_seed(1)
    counts = torch.tensor(sizes)
    offsets = torch.randn(len(sizes), max(sizes), dimension, generator=g, dtype=torch.float64)
    offsets *= (torch.arange(max(sizes)) < counts[:, None])[..., None]
    zero = torch.zeros(len(sizes), dimension, dimension, dtype=torch.float64)
    problem = Quadratics(zero, zero[:, 0], counts=counts, offsets=offsets)
    return problem, {"batch_size": batch, **federation}


def test_epochs_take_every_sample_once_and_nobody_more_steps_than_its_own():
    sizes = [3, 7, 5, 1]
    problem, federation = epochs(sizes, 1)
    state = run("fedavg", problem, 1, federation=federation, eta=0.1, local_epochs=2)
    close(theta(state), -0.1 * 2 * problem.offsets.sum(1).mean(0))
    turn = turn_for(problem, options("fedavg", eta=0.1, local_epochs=2), **{**federation, "batch_size": 2})
    trained = local.train(turn, problem.initial(0), turn.cohort())
    assert turn.cohort().tolist() == [1, 2, 0, 3]
    assert trained.steps.tolist() == [8.0, 6.0, 4.0, 2.0]
    assert trained.gradients == 20


def test_a_short_last_batch_is_a_mean_over_what_is_there():
    """3 samples in batches of 2: the sum of batch means is (a + b)/2 + c for some order; 2 samples in one batch."""
    problem, federation = epochs([3, 2], 2)
    turn = turn_for(problem, options("fedavg", eta=1.0, local_epochs=1), **federation)
    seen = set()
    for t in range(1, 13):
        at = dataclasses.replace(turn, round=t)
        three, two = -local.train(at, problem.initial(0), at.cohort()).models
        close(two, problem.offsets[1, :2].mean(0))
        rows = problem.offsets[0]
        orders = [rows.sum(0) / 2 + rows[last] / 2 for last in range(3)]
        (last,) = [i for i, value in enumerate(orders) if torch.allclose(value, three)]
        seen.add(last)
    assert seen == {0, 1, 2}


@pytest.mark.parametrize("name", ["scaffold", "fedcm"])
def test_unequal_steps_divide_each_client_by_its_own(name):
    """Linear losses, batch 1: (theta - theta_i)/(eta K_i) is the client's mean gradient whatever its K_i."""
    problem, federation = epochs([4, 2, 1], 1)
    means = problem.offsets.sum(1) / problem.counts[:, None]
    more = {"alpha": 1.0} if name == "fedcm" else {}
    state = run(name, problem, 1, federation=federation, eta=0.1, local_epochs=1, **more)
    if name == "fedcm":
        close(state.memory["momentum"], means.mean(0))
    else:
        close(state.memory["controls"], means)
        close(state.memory["control"], means.mean(0))


def test_averaging_by_samples():
    problem, federation = epochs([3, 7, 5, 1], 1, aggregation="samples")
    state = run("fedavg", problem, 1, lambda t: [0, 1, 3], federation=federation, eta=0.1, local_epochs=1)
    sums, n = problem.offsets.sum(1), problem.counts
    expected = -0.1 * (n[[0, 1, 3], None] * sums[[0, 1, 3]]).sum(0) / 11
    close(theta(state), expected)


# ------------------------------------------------------------------------------------------------------ 20: SCAFFOLD


def two_clients():
    """f_1 = (x - 2)^2 / 2, f_2 = 3 (x + 1)^2 / 2; optimum -1/4."""
    A = torch.tensor([[[1.0]], [[3.0]]], dtype=torch.float64)
    return Quadratics(A, torch.tensor([[2.0], [-3.0]], dtype=torch.float64), start=torch.ones(1, dtype=torch.float64))


def scaffold_by_hand(rounds, eta=Fraction(1, 10), K=10):
    """Exact fractions. K steps on a (x - m)^2 / 2 + lin x from theta end at z + q (theta - z), with z = m - lin / a and
    q = (1 - eta a)^K; then the control variates as the specification lists them. `rounds`: active clients of each."""
    a, m = (Fraction(1), Fraction(3)), (Fraction(2), Fraction(-1))
    q = [(1 - eta * a_i) ** K for a_i in a]
    theta, c, c_i = Fraction(1), Fraction(0), [Fraction(0), Fraction(0)]
    for active in rounds:
        models, new = {}, {}
        for i in active:
            z = m[i] - (c - c_i[i]) / a[i]
            models[i] = z + q[i] * (theta - z)
            new[i] = c_i[i] - c + (theta - models[i]) / (K * eta)
        theta, c = sum(models.values()) / len(active), c + sum(new[i] - c_i[i] for i in active) / 2
        for i in active:
            c_i[i] = new[i]
    return float(theta), float(c), [float(value) for value in c_i]


@pytest.mark.parametrize("rounds", [[(0, 1)], [(0, 1)] * 2, [(0, 1), (0,), (1,), (0, 1), (1,)]])
def test_20_two_clients_and_ten_steps_in_exact_fractions(rounds):
    state = run("scaffold", two_clients(), len(rounds), lambda t: rounds[t - 1], eta=0.1, local_steps=10)
    w, c, controls = scaffold_by_hand(rounds)
    assert float(theta(state)) == pytest.approx(w, abs=1e-12)
    assert float(state.memory["control"]) == pytest.approx(c, abs=1e-12)
    assert state.memory["controls"].flatten().tolist() == pytest.approx(controls, abs=1e-12)


def test_20_scaffold_finds_the_optimum_and_fedavg_its_own_point():
    """FedAvg's fixed point is sum (1 - q_i) m_i / sum (1 - q_i), q = 0.9^10, 0.7^10."""
    close(theta(run("scaffold", two_clients(), 400, eta=0.1, local_steps=10)), torch.tensor([-0.25]).double())
    q = [0.9**10, 0.7**10]
    expected = ((1 - q[0]) * 2 - (1 - q[1])) / (2 - sum(q))
    assert expected == pytest.approx(0.20387, abs=1e-5)
    assert float(theta(run("fedavg", two_clients(), 400, eta=0.1, local_steps=10))) == pytest.approx(expected)


def test_20_scaffold_s_degenerate_cases(noisy):
    close(
        theta(run("scaffold", noisy, 1, bernoulli(C), **STEPS)), theta(run("fedavg", noisy, 1, bernoulli(C), **STEPS))
    )
    one = {"eta": 0.05, "local_steps": 1}
    close(theta(run("scaffold", noisy, 20, **one)), theta(run("fedavg", noisy, 20, **one)))

    def mean(state):
        close(state.memory["control"], state.memory["controls"].mean(0))
        assert state.memory["control"].norm() > 1e-3

    run("scaffold", noisy, 20, bernoulli(C), each=mean, **STEPS)
    alone = Quadratics.generate(1, noise=0.5)
    close(theta(run("scaffold", alone, 20, **STEPS)), theta(run("fedavg", alone, 20, **STEPS)))


def test_absent_controls_stay(noisy):
    state = run("scaffold", noisy, 3, lambda t: [0, 2, 5], **STEPS)
    kept = state.memory["controls"].norm(dim=1)
    assert (kept[[1, 3, 4, 6, 7]] == 0).all()
    assert (kept[[0, 2, 5]] > 0.01).all()


# -------------------------------------------------------------------------------------------------------- 21: FedCM


def test_21_fedcm_s_degenerate_cases(exact, noisy):
    close(
        theta(run("fedcm", noisy, 10, bernoulli(C), alpha=1.0, **STEPS)),
        theta(run("fedavg", noisy, 10, bernoulli(C), **STEPS)),
    )
    m, w = torch.zeros(5, dtype=torch.float64), exact.start
    state = ALGORITHMS["fedcm"].init(turn_for(exact, options("fedcm")))
    for t in range(1, 8):
        state = run("fedcm", exact, 1, state=state, first=t, alpha=0.3, eta=0.05, local_steps=1)
        m = 0.3 * exact.gradients(w).mean(0) + 0.7 * m
        w = w - 0.05 * m
        close(state.memory["momentum"], m)
        close(theta(state), w)


def test_21_fedcm_s_first_steps_are_alpha_times_as_long(exact):
    a = run("fedcm", exact, 1, alpha=0.3, **{**STEPS, "eta": 0.1})
    b = run("fedavg", exact, 1, **{**STEPS, "eta": 0.03})
    close(theta(a), theta(b))


def test_fedcm_s_weight_decay_acts_1_over_alpha_fold():
    """No loss at all, K = 1: m <- (1 - alpha) m + wd x, x <- x - eta m, whose slow mode decays like eta wd / alpha."""
    zero = torch.zeros(3, 2, 2, dtype=torch.float64)
    problem = Quadratics(zero, zero[:, 0], start=torch.ones(2, dtype=torch.float64))
    seen = []
    keep = lambda state: seen.append(float(theta(state)[0]))  # noqa: E731
    run("fedcm", problem, 60, each=keep, alpha=0.1, eta=0.1, local_steps=1, weight_decay=0.01)
    assert 1 - seen[-1] / seen[-2] == pytest.approx(0.1 * 0.01 / 0.1, rel=0.12)


def test_fedcm_s_momentum_uses_the_rate_of_its_own_round(exact):
    """m = -Delta / (eta_t K) with the decayed eta_t."""
    state = run("fedcm", exact, 1, alpha=0.3, eta_decay=0.5, **STEPS)
    before = theta(state).clone()
    state = run("fedcm", exact, 1, state=state, first=2, alpha=0.3, eta_decay=0.5, **STEPS)
    close(state.memory["momentum"], (before - theta(state)) / (0.5 * 0.05 * 6))


# ------------------------------------------------------------------------------------------------ server and refusals


def test_the_server_s_step_size_scales_the_mean_change(noisy):
    for name in ("fedavg", "scaffold", "fedprox", "fedsam", "fedcm"):
        hyper = options(name, **STEPS, eta_g=0.25)
        turn = turn_for(noisy, hyper, bernoulli(C))
        part = advance(name, ALGORITHMS[name].init(turn), turn)
        whole = run(name, noisy, 1, bernoulli(C), **STEPS)
        close(theta(part) - noisy.start, 0.25 * (theta(whole) - noisy.start))


def test_fedpd_refuses_partial_participation(noisy):
    with pytest.raises(UserError, match=r"federation\.participation = 0\.9.*full participation.*Fix"):
        run("fedpd", noisy, 1, federation={"participation": 0.9}, **STEPS)


def test_fedprox_without_a_penalty_is_fedavg(noisy):
    a, b = (
        run(name, noisy, 5, bernoulli(C), **STEPS, **more) for name, more in (("fedprox", {"rho": 0}), ("fedavg", {}))
    )
    assert torch.equal(theta(a), theta(b))
