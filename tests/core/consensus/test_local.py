"""Local steps and epochs term by term, and the closed forms of the methods without duals (float64)."""

import dataclasses
from fractions import Fraction

import pytest
import torch

from pipeline.errors import UserError
from pipeline.methods import ALGORITHMS
from pipeline.methods.consensus.common import local_training
from tests.core.consensus.quadratics import (
    Quadratics,
    advance,
    bernoulli,
    close,
    context_for,
    options,
    run,
    theta,
)
from tests.core.consensus.test_family import STEPS, C

# --------------------------------------------------------------------------------------------------- local steps


def test_one_step_term_by_term(exact):
    """x - eta (g + lin + prox (x - theta) + wd x), twice, by hand; clipping of g alone."""
    context = context_for(exact, options("fedavg", eta=0.05, local_steps=2, weight_decay=0.2, clip_norm=1.0))
    lin = torch.linspace(-1, 1, C * 5, dtype=torch.float64).view(C, 5)
    found = local_training.train(context, exact.start, context.cohort(), local_training.Rule(lin=lin, prox=0.7)).models
    x = exact.start.expand(C, -1)
    for _ in range(2):
        g = exact.gradients(x)
        g = g / g.norm(dim=1, keepdim=True).clamp_min(1.0)
        x = x - 0.05 * (g + lin + 0.7 * (x - exact.start) + 0.2 * x)
    close(found, x)
    assert exact.gradients(exact.start).norm(dim=1).max() > 1.0


def test_fedcm_clips_the_gradient_and_not_its_share(exact):
    """alpha clip(g) + (1 - alpha) m: at alpha = 0.1 a gradient of length 3 counts as 0.1, not as 0.3."""
    hyper = options("fedcm", eta=0.05, local_steps=2, clip_norm=1.0)
    context, m = context_for(exact, hyper), torch.linspace(-1, 1, 5, dtype=torch.float64)
    found = local_training.train(
        context, exact.start, context.cohort(), local_training.Rule(lin=0.9 * m, fresh=0.1)
    ).models
    x = exact.start.expand(C, -1)
    for _ in range(2):
        g = exact.gradients(x)
        x = x - 0.05 * (0.1 * g / g.norm(dim=1, keepdim=True).clamp_min(1.0) + 0.9 * m)
    close(found, x)
    assert exact.gradients(exact.start).norm(dim=1).max() > 1.0


def test_sharpness_aware_steps_clip_the_second_gradient_alone(exact):
    """The perturbation is along the first gradient, whose length does not matter; the step is the second, clipped."""
    context = context_for(exact, options("fedsam", eta=0.05, local_steps=1, clip_norm=1.0, radius=0.3, sam_eps=0.01))
    found = local_training.train(
        context, exact.start, context.cohort(), local_training.Rule(radius=0.3, sam_eps=0.01)
    ).models
    x = exact.start.expand(C, -1)
    g = exact.gradients(x)
    sharp = exact.gradients(x + 0.3 * g / (g.norm(dim=1, keepdim=True) + 0.01))
    close(found, x - 0.05 * sharp / sharp.norm(dim=1, keepdim=True).clamp_min(1.0))
    assert sharp.norm(dim=1).max() > 1.0


def test_the_simulator_clips_dual_and_anchor_too(exact):
    """v = g + lambda - rho theta is clipped; (wd + rho) x is not (item A16)."""
    hyper = options("feddyn", eta=0.05, local_steps=2, weight_decay=0.2, clip_norm=1.0, clip_mode="simulator")
    context, lin = context_for(exact, hyper), torch.linspace(-1, 1, C * 5, dtype=torch.float64).view(C, 5)
    found = local_training.train(context, exact.start, context.cohort(), local_training.Rule(lin=lin, prox=0.7)).models
    x = exact.start.expand(C, -1)
    for _ in range(2):
        v = exact.gradients(x) + lin - 0.7 * exact.start
        x = x - 0.05 * (v / v.norm(dim=1, keepdim=True).clamp_min(1.0) + 0.9 * x)
    close(found, x)


def test_the_simulator_clips_fedcm_s_whole_direction(exact):
    """alpha g + (1 - alpha) m, clipped as one."""
    hyper = options("fedcm", eta=0.05, local_steps=2, clip_norm=1.0, clip_mode="simulator")
    context, m = context_for(exact, hyper), torch.linspace(-3, 3, 5, dtype=torch.float64)
    found = local_training.train(
        context, exact.start, context.cohort(), local_training.Rule(lin=0.4 * m, fresh=0.6)
    ).models
    x = exact.start.expand(C, -1)
    for _ in range(2):
        v = 0.6 * exact.gradients(x) + 0.4 * m
        x = x - 0.05 * v / v.norm(dim=1, keepdim=True).clamp_min(1.0)
    close(found, x)
    assert v.norm(dim=1).max() > 1.0


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


def test_epochs_take_every_sample_once_and_no_client_takes_more_than_its_own():
    sizes = [3, 7, 5, 1]
    problem, federation = epochs(sizes, 1)
    state = run("fedavg", problem, 1, federation=federation, eta=0.1, local_epochs=2)
    close(theta(state), -0.1 * 2 * problem.offsets.sum(1).mean(0))
    context = context_for(problem, options("fedavg", eta=0.1, local_epochs=2), **{**federation, "batch_size": 2})
    trained = local_training.train(context, problem.initial(0), context.cohort())
    assert context.cohort().tolist() == [1, 2, 0, 3]
    assert trained.steps.tolist() == [8.0, 6.0, 4.0, 2.0]
    assert trained.gradients == 20


def test_every_pass_has_its_own_order_and_every_minibatch_its_own_stream(monkeypatch):
    """Streams serve what a minibatch draws besides its samples, such as augmentation."""
    problem, federation = epochs([40, 30], 8)
    streams, positions, original = [], [], Quadratics.take

    def recorded(self, stream, clients, order, present=None):
        streams.append(stream)
        positions.append(order[0])
        return original(self, stream, clients, order, present)

    monkeypatch.setattr(Quadratics, "take", recorded)
    run("fedavg", problem, 2, federation=federation, eta=0.1, local_epochs=2)
    passes = torch.cat(positions).view(4, 40)  # two rounds of two passes, the larger client's five minibatches each
    assert len(streams) == len(set(streams)) == 20
    assert torch.equal(passes.sort(1).values, torch.arange(40).expand(4, -1))
    assert len(passes.unique(dim=0)) == 4


def test_a_short_last_batch_is_a_mean_over_what_is_there():
    """3 samples in batches of 2: the sum of batch means is (a + b)/2 + c for some order; 2 samples in one batch."""
    problem, federation = epochs([3, 2], 2)
    context = context_for(problem, options("fedavg", eta=1.0, local_epochs=1), **federation)
    seen = set()
    for t in range(1, 13):
        at = dataclasses.replace(context, round=t)
        three, two = -local_training.train(at, problem.initial(0), at.cohort()).models
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


def test_clients_that_are_done_early_keep_their_own_dual():
    """Linear losses, batch 1, no proximal term: theta_i - theta = -eta (sum_j offset_ij + K_i lin_i)."""
    problem, federation = epochs([2, 4, 1, 3], 1)
    lin = torch.linspace(-1, 2, 12, dtype=torch.float64).view(4, 3)
    context = context_for(problem, options("feddyn", eta=0.1, local_epochs=1), **federation)
    cohort = context.cohort()
    found = local_training.train(context, problem.initial(0), cohort, local_training.Rule(lin=lin[cohort])).models
    expected = -0.1 * (problem.offsets.sum(1) + problem.counts[:, None] * lin)
    close(found, expected[cohort])


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
    state = ALGORITHMS["fedcm"].init(context_for(exact, options("fedcm")))
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
        context = context_for(noisy, hyper, bernoulli(C))
        part = advance(name, ALGORITHMS[name].init(context), context)
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
