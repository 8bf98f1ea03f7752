"""The properties of the A-FedPD specification's section 7 that concern the duals: 1-8, 13, 16-19, 22-23.

Setting, unless said otherwise: C = 8 heterogeneous quadratics in d = 5, K = 6, eta = 0.05, rho = 0.7, gradient noise
keyed by (round, client, step), no weight decay, no clipping, duals 0 at the start.
"""

import dataclasses
import itertools

import pytest
import torch

from pipeline.methods import ALGORITHMS
from pipeline.methods.consensus.common import local_training
from pipeline.methods.consensus.common.local_training import Trained
from tests.core.consensus.quadratics import (
    ALIGNED,
    DUAL,
    RHO,
    SAM,
    SETTING,
    C,
    Quadratics,
    bernoulli,
    close,
    context_for,
    duals,
    options,
    run,
    subsets,
    theta,
)

aligned = pytest.mark.parametrize(
    ("name", "form"),
    [*ALIGNED, ("a_fedpd_sam", {"form": "reference", **SAM}), ("a_fedpd_sam", {"form": "low_memory", **SAM})],
)


def trajectory(name, problem, rounds, sets=None, **settings):
    """theta after every round, [rounds, d]."""
    seen = []
    run(name, problem, rounds, sets, each=lambda state: seen.append(theta(state).clone()), **settings)
    return torch.stack(seen)


# ---------------------------------------------------------------------------------------------------- 1, 22: collapse


@pytest.mark.parametrize("clients", [C, 1])
def test_1_and_22_full_participation_and_one_client_make_all_equal(clients):
    problem = Quadratics.generate(clients, noise=0.5)
    reference = trajectory("fedpd", problem, 20, **DUAL)
    assert (reference - reference[0]).norm(dim=1).max() > 0.1  # it moves
    for name, more in [*ALIGNED, ("fedadmm", {}), ("feddyn", {})]:
        close(trajectory(name, problem, 20, **DUAL, **more), reference)


@pytest.mark.parametrize("clients", [C, 1])
def test_1_and_22_with_sharp_local_steps(clients):
    problem = Quadratics.generate(clients, noise=0.5)
    reference = trajectory("fedspeed", problem, 20, **DUAL, **SAM)
    assert (reference - trajectory("feddyn", problem, 20, **DUAL)).norm(dim=1).max() > 1e-3
    for name, more in [
        ("a_fedpd_sam", {"form": "reference"}),
        ("a_fedpd_sam", {"form": "low_memory"}),
        ("fedspeed", {"variant": "original", "sam_share": 1.0}),
    ]:
        close(trajectory(name, problem, 20, **DUAL, **SAM, **more), reference)


# ---------------------------------------------------------------------- 2, 3, 4, 5, 6: the aligned duals' bookkeeping


@aligned
def test_2_mean_dual_recursion(noisy, name, form):
    """lam_bar' = lam_bar + rho (theta_bar' - theta), for any active clients."""
    last = {"theta": noisy.start, "mean": torch.zeros(5, dtype=torch.float64)}

    def check(state):
        mean = duals(state, RHO).mean(0)
        close(mean, last["mean"] + RHO * (state.variables["w_bar"] - last["theta"]))
        last.update(theta=theta(state).clone(), mean=mean.clone())

    run(name, noisy, 15, bernoulli(C), each=check, **DUAL, **form)


@pytest.mark.parametrize("rho", [0.01, 0.7, 30.0])
@pytest.mark.parametrize(("name", "form"), ALIGNED)
def test_3_the_server_extrapolates_whatever_the_local_solver(noisy, name, form, rho, monkeypatch):
    """theta' = 2 theta_bar' - theta_bar, lam_bar' = rho (theta_bar' - theta_bar), with random vectors for training."""
    generator = torch.Generator().manual_seed(5)

    def anything(context, start, clients, rule=None):
        models = torch.randn(len(clients), 5, generator=generator, dtype=torch.float64)
        ones = torch.ones(len(clients), dtype=torch.float64)
        return Trained(models, ones, len(clients), ones)

    monkeypatch.setattr(local_training, "train", anything)
    last = {"bar": noisy.start}

    def check(state):
        bar = state.variables["w_bar"]
        close(theta(state), 2 * bar - last["bar"])
        close(duals(state, rho).mean(0), rho * (bar - last["bar"]))
        last["bar"] = bar.clone()

    run(name, noisy, 15, bernoulli(C), each=check, **{**DUAL, "rho": rho}, **form)


@aligned
def test_4_absent_duals_move_together_and_24_all_of_them_move(noisy, name, form):
    sets, last = bernoulli(C), {"duals": torch.zeros(C, 5, dtype=torch.float64), "theta": noisy.start, "round": 0}

    def check(state):
        last["round"] += 1
        absent = [i for i in range(C) if i not in sets(last["round"])]
        lam = duals(state, RHO).clone()
        moved = lam - last["duals"]
        expected = RHO * (state.variables["w_bar"] - last["theta"])
        close(moved[absent], expected.expand(len(absent), -1))
        assert (moved.norm(dim=1) > 1e-6).all()
        last.update(duals=lam, theta=theta(state).clone())

    run(name, noisy, 15, sets, each=check, **DUAL, **form)


def test_5_clients_that_never_take_part(noisy):
    """In A-FedPD their dual is the mean dual, in FedDyn and FedADMM it stays 0."""
    sets = lambda t: [i for i in bernoulli(C)(t) if i < 5] or [0]  # noqa: E731

    def is_the_mean(state):
        lam = duals(state, RHO)
        close(lam[5:], lam.mean(0).expand(3, -1))
        assert lam.mean(0).norm() > 1e-4

    for name, form in ALIGNED:
        run(name, noisy, 15, sets, each=is_the_mean, **DUAL, **form)
    for name in ("feddyn", "fedadmm"):
        lam = run(name, noisy, 15, sets, **DUAL).memory["duals"]
        assert (lam[5:] == 0).all()
        assert (lam[:5].norm(dim=1) > 1e-3).all()


@pytest.mark.parametrize("name", ["a_fedpd", "a_fedpd_sam"])
def test_6_the_low_memory_form_is_the_reference(noisy, name):
    """The same iterates and duals; sum_i e_i = 0 at all times; rows of absent clients are untouched."""
    more, sets = ({} if name == "a_fedpd" else SAM), bernoulli(C)
    seen = {"reference": [], "low_memory": []}
    for form, states in seen.items():
        keep = lambda state, states=states: states.append((theta(state).clone(), duals(state, RHO).clone()))  # noqa: E731
        run(name, noisy, 40, sets, each=keep, form=form, **DUAL, **more)
    for (a, lam), (b, mu) in zip(*seen.values(), strict=True):
        close(a, b)
        close(lam, mu)
    last = {"e": torch.zeros(C, 5, dtype=torch.float64), "round": 0}

    def conserved(state):
        last["round"] += 1
        e, active = state.memory["deviations"], sets(last["round"])
        close(e.sum(0), torch.zeros(5, dtype=torch.float64))
        absent = [i for i in range(C) if i not in active]
        assert torch.equal(e[absent], last["e"][absent])
        assert len(active) == 1 or not torch.equal(e[active], last["e"][active])
        last["e"] = e.clone()

    run(name, noisy, 40, sets, each=conserved, form="low_memory", **DUAL, **more)


@pytest.mark.parametrize(("name", "more"), [("feddyn", {}), ("fedspeed", SAM)])
def test_7_feddyn_s_server_holds_the_mean_dual(noisy, name, more):
    def check(state):
        close(state.memory["dual_mean"], state.memory["duals"].mean(0))
        assert state.memory["dual_mean"].norm() > 1e-4

    run(name, noisy, 20, bernoulli(C), each=check, **DUAL, **more)


# ------------------------------------------------------------------------------------------------- 8: the first round


@pytest.mark.parametrize(
    ("name", "q"),
    [
        ("a_fedpd", 2.0),
        ("a_fedpd_sam", 2.0),
        ("fedadmm", 2.0),
        ("feddyn", 1 + 3 / C),
        ("fedspeed", 1 + 3 / C),
        ("fedavg", 1.0),
        ("fedsam", 1.0),
        ("fedprox", 1.0),
        ("scaffold", 1.0),
        ("fedcm", 1.0),
    ],
)
def test_8_first_round(noisy, name, q):
    """theta^1 - theta^0 = q (theta_bar^1 - theta^0) with 3 of 8 clients active."""
    settings = DUAL if "rho" in {f.name for f in dataclasses.fields(options(name))} else SETTING
    hyper = options(name, **settings)
    context = context_for(noisy, hyper, lambda t: [1, 4, 6])
    rule = {"prox": RHO} if "rho" in settings else {}
    if hasattr(hyper, "radius"):
        rule |= {"radius": hyper.radius, "sam_eps": hyper.sam_eps}
    if name == "fedcm":
        rule |= {"fresh": hyper.alpha}
    bar = local_training.train(context, noisy.start, context.cohort(), local_training.Rule(**rule)).models.mean(0)
    moved = theta(run(name, noisy, 1, context.sets, **settings)) - noisy.start
    assert moved.norm() > 1e-3
    close(moved, q * (bar - noisy.start))


def test_8_first_round_of_fedpd(noisy):
    hyper = options("fedpd", **DUAL)
    context = context_for(noisy, hyper)
    bar = local_training.train(context, noisy.start, context.cohort(), local_training.Rule(prox=RHO)).models.mean(0)
    close(theta(run("fedpd", noisy, 1, **DUAL)) - noisy.start, 2 * (bar - noisy.start))


# ------------------------------------------------------------------------------------------- 13: homogeneous clients


def test_13_homogeneous_clients_make_participation_irrelevant(exact):
    """Virtual and real dual updates coincide: A-FedPD's path is that of full participation; FedDyn's, FedADMM's not."""
    same = dataclasses.replace(exact, A=exact.A[:1].expand(C, -1, -1), b=exact.b[:1].expand(C, -1))
    sharp = [("a_fedpd_sam", {**form, **SAM}) for _, form in ALIGNED]
    for name, form in [*ALIGNED, *sharp]:
        close(trajectory(name, same, 20, bernoulli(C), **DUAL, **form), trajectory(name, same, 20, **DUAL, **form))
    for name in ("feddyn", "fedadmm"):
        difference = trajectory(name, same, 20, subsets(3, C), **DUAL) - trajectory(name, same, 20, **DUAL)
        assert difference.norm(dim=1).max() > 0.05


# ------------------------------------------------------------------------------------------------ 16: over all subsets


def test_16_expectation_over_subsets(exact):
    """All 56 sets of 3 of 8 clients, from one state: E[theta_bar], and the expected dual increment of each client."""
    m, start = 3, run("a_fedpd", exact, 3, subsets(3, C), form="reference", **DUAL)
    lam, now = duals(start, RHO).clone(), theta(start).clone()
    context = context_for(exact, options("a_fedpd", **DUAL))
    models = local_training.train(context, now, context.cohort(), local_training.Rule(lin=lam, prox=RHO)).models
    bars, increments = [], []
    for chosen in itertools.combinations(range(C), m):
        copy = dataclasses.replace(
            start, variables=dict(start.variables), memory={k: v.clone() for k, v in start.memory.items()}
        )
        after = run("a_fedpd", exact, 1, lambda t, chosen=chosen: chosen, state=copy, form="reference", **DUAL)
        bars.append(after.variables["w_bar"].clone())
        increments.append((duals(after, RHO) - lam) / RHO)
    close(torch.stack(bars).mean(0), models.mean(0))
    others = (models.sum(0) - models) / (C - 1)
    expected = (m / C) * (models - now) + (1 - m / C) * (others - now)
    mean = torch.stack(increments).mean(0)
    close(mean, expected)
    close(mean.mean(0), (models - now).mean(0))
    assert (mean - (models - now)).norm(dim=1).max() > 0.05  # client by client it is not the full-participation step


# ------------------------------------------------------------------------------------------- 17, 18, 19: rho's extremes


def test_17_linear_losses_in_closed_form():
    """grad f_i = c_i constant, q = (1 - eta rho)^K: theta_K - theta = -((c_i + lambda_i)/rho) (1 - q), and
    lambda_i' = q lambda_i - (1 - q) c_i."""
    c = Quadratics.generate().b
    linear = Quadratics(torch.zeros(C, 5, 5, dtype=torch.float64), -c)
    q, sets = (1 - 0.05 * RHO) ** 6, lambda t: [0, 3, 4]
    context = context_for(linear, options("feddyn", **DUAL), sets)
    lam, now = torch.zeros(3, 5, dtype=torch.float64), linear.initial(0)
    state = ALGORITHMS["feddyn"].init(context)
    for t in (1, 2, 3):
        rule = local_training.Rule(lin=lam, prox=RHO)
        trained = local_training.train(dataclasses.replace(context, round=t), now, context.cohort(), rule)
        close(trained.models - now, -(c[[0, 3, 4]] + lam) / RHO * (1 - q))
        state = run("feddyn", linear, 1, sets, state=state, first=t, **DUAL)
        lam, now = q * lam - (1 - q) * c[[0, 3, 4]], theta(state)
        close(state.memory["duals"][[0, 3, 4]], lam)


@pytest.mark.parametrize("K", [1, 50, 2000])
def test_17_steps_are_bounded_however_many(K):
    """(c_i + lambda_i)/rho (1 - (1 - eta rho)^K): never longer than ||c_i + lambda_i|| / rho, and that in the end."""
    c = Quadratics.generate().b
    linear, lam = Quadratics(torch.zeros(C, 5, 5, dtype=torch.float64), -c), 0.5 * c.flip(0)
    context = context_for(linear, options("feddyn", **{**DUAL, "local_steps": K}))
    moved = local_training.train(
        context, linear.initial(0), context.cohort(), local_training.Rule(lin=lam, prox=RHO)
    ).models - linear.initial(0)
    close(moved, -(c + lam) / RHO * (1 - (1 - 0.05 * RHO) ** K))
    reached = moved.norm(dim=1) / ((c + lam).norm(dim=1) / RHO)
    assert (reached <= 1 + 1e-12).all()
    assert K < 2000 or (reached > 1 - 1e-12).all()


@pytest.mark.parametrize(("name", "form"), ALIGNED)
def test_18_small_rho_is_not_fedavg(noisy, name, form):
    """rho -> 0: FedAvg's local steps, but theta' = 2 theta_bar' - theta_bar; the error is proportional to rho."""
    sets = bernoulli(C)
    context = context_for(noisy, options("fedavg", **SETTING), sets)
    now, bar, expected = noisy.start, noisy.start, []
    for t in range(1, 11):
        at = dataclasses.replace(context, round=t)
        new = local_training.train(at, now, at.cohort()).models.mean(0)
        now, bar = 2 * new - bar, new
        expected.append(now)
    error = [
        float((trajectory(name, noisy, 10, sets, **{**DUAL, "rho": rho}, **form) - torch.stack(expected)).abs().max())
        for rho in (1e-2, 1e-5, 1e-8)
    ]
    assert 1e-4 < error[0] < 0.2
    assert error[1] == pytest.approx(error[0] * 1e-3, rel=0.1)
    assert error[2] == pytest.approx(error[0] * 1e-6, rel=0.1)
    fedavg = trajectory("fedavg", noisy, 10, sets, **SETTING)
    assert (fedavg - torch.stack(expected)).norm(dim=1).max() > 0.1


def test_18_duals_frozen_at_0_with_the_plain_mean_are_fedprox(noisy):
    """One round of FedDyn's local training from zero duals, every round, averaged plainly."""
    sets = bernoulli(C)
    context = context_for(noisy, options("feddyn", **DUAL), sets)
    now, expected = noisy.start, []
    for t in range(1, 11):
        at = dataclasses.replace(context, round=t)
        fresh = ALGORITHMS["feddyn"].init(at)
        fresh.variables["w"] = fresh.variables["w_bar"] = now
        now = now - ALGORITHMS["feddyn"].step(fresh, at).directions["w_bar"]
        expected.append(now)
    close(trajectory("fedprox", noisy, 10, sets, **DUAL), torch.stack(expected))
    close(
        trajectory("fedprox", noisy, 10, sets, **{**DUAL, "rho": 0.0}), trajectory("fedavg", noisy, 10, sets, **SETTING)
    )
    assert (trajectory("fedavg", noisy, 10, sets, **SETTING) - torch.stack(expected)).norm() > 1e-3


def test_19_large_rho_shrinks_steps(exact):
    """Exact solves: theta_i = theta - (grad f_i(theta) + lambda_i)/rho + O(1/rho^2); above eta rho = 2 it diverges."""
    gradients = exact.gradients(exact.start)
    for rho in (100.0, 1000.0):
        context = context_for(exact, options("fedpd", eta=0.5 / rho, local_steps=60, rho=rho))
        moved = (
            local_training.train(context, exact.start, context.cohort(), local_training.Rule(prox=rho)).models
            - exact.start
        )
        assert (moved + gradients / rho).norm() < 5 * gradients.norm() / rho**2 * exact.A.norm()
        assert moved.norm() > 0.5 * gradients.norm() / rho
    context = context_for(exact, options("fedpd", eta=2.5 / 1000, local_steps=60, rho=1000.0))
    assert (
        local_training.train(context, exact.start, context.cohort(), local_training.Rule(prox=1000.0)).models.norm()
        > 1e6
    )


# ----------------------------------------------------------------------------------------------------- 23: equivariance


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("a_fedpd", {}),
        ("a_fedpd", {"form": "reference"}),
        ("a_fedpd_sam", SAM),
        ("a_fedpd_sam", {"form": "reference", **SAM}),
        ("fedpd", {}),
        ("feddyn", {}),
        ("fedspeed", SAM),
        ("fedspeed", {"variant": "original", **SAM}),
        ("fedadmm", {}),
        ("scaffold", {}),
        ("fedavg", {}),
        ("fedsam", SAM),
        ("fedcm", {}),
        ("fedprox", {}),
    ],
)
def test_23_translation_and_relabelling(noisy, name, more):
    """f_i(x - s) from start + s: theta shifts by s, duals stay. Other names for the clients: the same theta, and the
    duals under the other names."""
    settings = (DUAL if hasattr(options(name), "rho") else SETTING) | more
    sets, s = bernoulli(C) if name != "fedpd" else lambda t: range(C), torch.linspace(-3, 2, 5, dtype=torch.float64)
    base = run(name, noisy, 12, sets, **settings)
    shifted = dataclasses.replace(noisy, b=noisy.b + noisy.A @ s, start=noisy.start + s)
    moved = run(name, shifted, 12, sets, **settings)
    close(theta(moved), theta(base) + s)
    for kept, value in base.memory.items():
        close(moved.memory[kept], value)
    order = [3, 0, 7, 4, 1, 2, 6, 5]
    renamed = dataclasses.replace(noisy, A=noisy.A[order], b=noisy.b[order], ids=torch.tensor(order))
    again = run(name, renamed, 12, lambda t: [order.index(i) for i in sets(t)], **settings)
    close(theta(again), theta(base))
    for kept, value in base.memory.items():
        close(again.memory[kept], value[order] if len(value) == C else value)
