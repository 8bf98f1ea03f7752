"""Client weighting as a general bilevel problem on the toy: the general FedNest against the form made for it, and every
method that fits the problem against the closed-form hypergradient. Float64."""

import pytest
import torch

from pipeline import projections
from pipeline.methods import Participation
from pipeline.methods.bilevel.aggitd import AggItd
from pipeline.methods.bilevel.fedbio import FedBio
from pipeline.methods.bilevel.fedbioacc import FedBioAcc
from pipeline.methods.bilevel.fednest_general import FedNestGeneral
from pipeline.methods.bilevel.simfbo import ShroFbo, SimFbo
from pipeline.methods.client_weighting.common.weighting_context import WeightingContext
from pipeline.methods.client_weighting.fednest import FedNest
from pipeline.oracles import FusedOracle
from pipeline.problems.general_weighting import GeneralWeighting
from tests.core import helpers
from tests.core.bilevel.helpers import LARGE, close, make_context, run


@pytest.fixture(scope="module")
def toy():
    return helpers.well_conditioned(seed=1)


@pytest.mark.parametrize(("K", "Q"), [(1, 1), (3, 2)])
def test_fednest_with_one_local_step_is_the_form_made_for_client_weighting(toy, K, Q):
    """T = K calls of FedInn with one local step are K steps on sum_i x_i f_i; a series of Q + 1 terms has Q products of
    sum_i x_i Hess f_i; h_i = -N e_i v^T grad f_i(w) averages to - v^T grad f_i. No difference is left, not even of
    first order: with one step neither correction does anything, and the server projects in both."""
    general = FedNestGeneral(eta_x=0.1, eta_y=0.3, eta_h=0.4, local_steps=1, lower_rounds=K, series_terms=Q + 1)
    special = FedNest(
        **helpers.PLAIN, eta_x=0.1, eta_w=0.3, eta_h=0.4, inner_steps=K, series_products=Q, estimator="paper"
    )
    a = run("fednest_general", make_context(general, GeneralWeighting(toy)), 6)
    context = WeightingContext(FusedOracle(toy), special, Participation("bernoulli", 1.0, batch_size=1), 0)
    b = helpers.run("fednest", context, 6)
    close(a.variables["x"], b.variables["x"])
    close(a.variables["y"], b.variables["w"])
    assert (b.variables["x"] - 0.25).abs().max() > 0.05


FLAT = {"alpha_scale": 1e6, "alpha_offset": 1e18}
METHODS = {
    "simfbo": (SimFbo(gamma_x=0.05, gamma_y=0.9, gamma_v=0.9, adjoint_radius=LARGE), 60),
    "shrofbo": (ShroFbo(gamma_x=0.05, gamma_y=0.9, gamma_v=0.9, adjoint_radius=LARGE), 60),
    "fednest_general": (FedNestGeneral(eta_x=0.2, eta_y=0.5, eta_h=0.9, lower_rounds=3, local_steps=1), 25),
    "aggitd": (AggItd(eta_x=0.2, eta_y=0.5, eta_h=0.9, series_terms=10, local_steps=1, series="deterministic"), 25),
    "fedbio": (FedBio(eta_x=0.05, eta_y=0.9, eta_v=0.9, local_steps=1), 60),
    "fedbioacc": (FedBioAcc(eta_x=0.05, eta_y=0.9, eta_v=0.9, local_steps=1, **FLAT), 60),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_end_at_the_stationary_weights(toy, name):
    """On the simplex, where two clients share the weight; the toy's own solution and hypergradient are the measure."""
    hyper, rounds = METHODS[name]
    state = run(name, make_context(hyper, GeneralWeighting(toy)), rounds)
    x = state.variables["x"]
    exact = toy.solve(x)
    assert (x - projections.simplex(x - exact.hypergradient)).norm() < 1e-5
    close(state.variables["y"], exact.w, atol=1e-5)
    assert (x > 0.01).sum() == 2
    assert torch.isclose(x.sum(), torch.ones((), dtype=x.dtype))
