"""What must hold for every method with local steps alike (float64)."""

import dataclasses

import pytest
import torch

from pipeline.methods import ALGORITHMS
from pipeline.methods.consensus.common import local_training
from pipeline.methods.consensus.common.local_context import LocalContext
from pipeline.oracles import FusedLocal, LoopLocal
from tests.core.consensus.quadratics import (
    Closed,
    Quadratics,
    bernoulli,
    close,
    context_for,
    options,
    run,
    theta,
)
from tests.registered import unnamed

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
VARIANTS |= {name: {} for name in unnamed(LocalContext, {name.split()[0] for name in VARIANTS})}
STEPS = {"eta": 0.05, "local_steps": 6}
every_method = pytest.mark.parametrize("variant", VARIANTS)


def settings(variant):
    return {**STEPS, **VARIANTS[variant]}


def method(variant):
    return variant.split()[0]


def sets_for(variant, clients=C):
    return None if method(variant) == "fedpd" else bernoulli(clients)


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
    """eta_t = eta decay^t, t = 0 in the first round: with decay 0.5 rounds one to four are those of eta, eta/2, eta/4
    and eta/8, in the models and in all that is kept."""
    name, more, decayed, expected = method(variant), settings(variant), None, None
    for t in range(4):
        halves = {**more, "eta": more["eta"] * 0.5**t}
        decayed = run(name, exact, 1, sets_for(variant), state=decayed, first=t + 1, **{**more, "eta_decay": 0.5})
        expected = run(name, exact, 1, sets_for(variant), state=expected, first=t + 1, **halves)
        for kind in ("variables", "memory"):
            for key, value in getattr(expected, kind).items():
                close(getattr(decayed, kind)[key], value, 1e-12)


@every_method
def test_every_local_step_draws_minibatches_of_its_own(noisy, variant, monkeypatch):
    """K of them in each round (section 2: "next minibatch"); the two gradients of a sharp step share theirs."""
    streams, original = [], Quadratics.draw

    def recorded(self, stream, clients, size):
        streams.append(stream)
        return original(self, stream, clients, size)

    monkeypatch.setattr(Quadratics, "draw", recorded)
    run(method(variant), noisy, 3, sets_for(variant), **settings(variant))
    assert len(streams) == len(set(streams)) == 3 * STEPS["local_steps"]


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


@pytest.mark.parametrize("variant", [variant for variant in VARIANTS if variant.split()[0] in TABLE])
def test_24_counters_are_the_specification_s(exact, variant):
    name, K, d = method(variant), 3, 5
    down, up, per_step, server, client = TABLE[name]
    if variant == "fedspeed original":
        server = lambda C: 1  # noqa: E731  FedADMM's server
    if variant == "a_fedpd reference":
        server = lambda C: C + 1  # noqa: E731
    m, asked = C if name == "fedpd" else 3, []

    class Counted(Closed):
        def gradients_each(self, W, batch, at_once=None):
            asked.extend(batch[0].tolist())
            return super().gradients_each(W, batch, at_once)

    context = context_for(exact, options(name, **{**settings(variant), "local_steps": K}), lambda t: range(m), Counted)
    step = ALGORITHMS[name].step(ALGORITHMS[name].init(context), context)
    assert dataclasses.astuple(step.cost) == (1, up * m * d, down * m * d, m * K * per_step, 0)
    assert sorted(asked) == sorted(list(range(m)) * (K * per_step))  # what was computed, client by client
    found = step.report({"w": exact.start})
    assert int(found["server_state_bytes"]) == 8 * d * server(C)
    assert int(found["client_state_bytes"]) == 8 * d * client
    assert tuple(found) == ALGORITHMS[name].measures


@every_method
def test_residuals_by_hand(noisy, variant):
    """p = mean over active of ||theta' - theta_i||, d = rho ||theta' - theta||, drift = mean ||g_i(theta) + lin_i||.
    FedCM's momentum is no dual: of a method without duals drift is the length of a gradient."""
    name, sets = method(variant), sets_for(variant)
    state = run(name, noisy, 3, sets, **settings(variant))
    before = theta(state).clone()
    hyper = options(name, **settings(variant))
    context = dataclasses.replace(context_for(noisy, hyper, sets), round=4)
    lin = torch.zeros(C, 5, dtype=torch.float64)
    if "duals" in state.memory:
        lin = state.memory["duals"].clone()
    elif "deviations" in state.memory:
        lin = hyper.rho * (state.memory["deviations"] + before - state.variables["w_bar"])
    elif name == "scaffold":
        lin = state.memory["control"] - state.memory["controls"]
    elif name == "fedcm":
        lin = (1 - hyper.alpha) * state.memory["momentum"].expand(C, -1)
    active = context.cohort()
    lin, models = lin[active], {}
    spy = ALGORITHMS[name].step(state, context)
    after = before - spy.directions["w"]
    found = spy.report({"w": after})
    _, batch = next(context.batches(active))
    g = noisy.gradients(before)[active] + batch[1]
    dual = 0.0 if name == "fedcm" else lin
    assert float(found["dual_drift"]) == pytest.approx(float((g + dual).norm(dim=1).mean()), rel=1e-10)
    rho = 0.1 if name in ("fedavg", "fedcm", "scaffold", "fedsam") else 0.7
    assert float(found["dual_residual"]) == pytest.approx(rho * float((after - before).norm()), rel=1e-10)
    if name in ("fedavg", "fedprox", "fedsam", "scaffold", "fedcm"):  # theta' is the mean of the models
        rule = {
            "fedavg": {},
            "fedprox": {"prox": 0.7},
            "fedsam": SAM,
            "scaffold": {"lin": lin},
            "fedcm": {"lin": lin, "fresh": 0.3},
        }[name]
        models = local_training.train(context, before, active, local_training.Rule(**rule)).models
    else:
        sam = {"radius": hyper.radius, "sam_eps": hyper.sam_eps} if hasattr(hyper, "radius") else {}
        if variant == "fedspeed original":
            sam["sam_share"] = hyper.sam_share
        models = local_training.train(context, before, active, local_training.Rule(lin=lin, prox=0.7, **sam)).models
    expected = float((after - models).norm(dim=1).mean())
    assert float(found["primal_residual"]) == pytest.approx(expected, rel=1e-10)
    assert expected > 1e-3


def test_the_measures_remember_the_model_although_it_moves_in_place(exact):
    """As under the training loop's optimizers: ||theta' - theta|| of a move by (3, 4, 0, 0, 0), times 0.1."""
    context = context_for(exact, options("fedavg", **STEPS))
    state = ALGORITHMS["fedavg"].init(context)
    step = ALGORITHMS["fedavg"].step(state, context)
    state.variables["w"].add_(torch.tensor([3.0, 4.0, 0.0, 0.0, 0.0]))
    assert float(step.report(state.variables)["dual_residual"]) == pytest.approx(0.5, rel=1e-12)


@pytest.mark.parametrize("variant", [v for v in VARIANTS if "rho" in VARIANTS[v] and v != "fedprox"])
def test_the_reported_mean_dual_is_that_of_all_duals(noisy, variant):
    name, sets = method(variant), sets_for(variant)
    state = run(name, noisy, 3, sets, **settings(variant))
    context = dataclasses.replace(context_for(noisy, options(name, **settings(variant)), sets), round=4)
    step = ALGORITHMS[name].step(state, context)
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
    context = context_for(exact, options("fedspeed", eta=0.05, local_steps=1, weight_decay=0.1))
    lin = torch.ones(C, 5, dtype=torch.float64)
    for share in (1.0, 0.25):
        rule = local_training.Rule(lin=lin, prox=0.7, radius=0.3, sam_eps=1e-300, sam_share=share)
        moved = local_training.train(context, exact.start, context.cohort(), rule).models - exact.start
        g = exact.gradients(exact.start)
        sharp = g + 0.3 * torch.einsum("ikl,il->ik", exact.A, g / g.norm(dim=1, keepdim=True))
        mixed = (1 - share) * g + share * sharp
        close(moved, -0.05 * (mixed + lin + 0.1 * exact.start))
    eps = local_training.train(
        context, exact.start, context.cohort(), local_training.Rule(radius=0.3, sam_eps=0.5)
    ).models
    g = exact.gradients(exact.start)
    sharp = g + 0.3 * torch.einsum("ikl,il->ik", exact.A, g / (g.norm(dim=1, keepdim=True) + 0.5))
    close(eps - exact.start, -0.05 * (sharp + 0.1 * exact.start))


def test_fedspeed_s_original_is_fedadmm_with_mixed_gradients(noisy):
    """share 0: FedADMM itself; and its server's rule is FedADMM's for any share."""
    more = {"rho": 0.7, **STEPS}
    a = run("fedspeed", noisy, 5, bernoulli(C), variant="original", sam_share=0.0, radius=0.3, **more)
    close(theta(a), theta(run("fedadmm", noisy, 5, bernoulli(C), **more)))
