"""Hyper-parameters of each method (``algorithms.<name>``), family by family."""

from __future__ import annotations

from dataclasses import dataclass, fields

from pipeline.params.methods.bilevel import (
    ShroFbo,
    SimFbo,
)
from pipeline.params.methods.client_weighting import (
    Afl,
    Average,
    ExactGradient,
    FedNest,
    OracleWeights,
    PrimalDual,
    Rfho,
    ServerOptions,
    Sustain,
    ValidationOnly,
)
from pipeline.params.spec import Section, section


@dataclass(frozen=True)
class Algorithms(Section):
    """One section per method; only the one named by `algorithm` is in use."""

    primal_dual: PrimalDual = section(PrimalDual, "the lead method: primal-dual client weighting")
    rfho: Rfho = section(Rfho, "differentiation through realised steps of the model")
    fednest: FedNest = section(FedNest, "steps of the model, then a Neumann series for the weights")
    sustain: Sustain = section(Sustain, "single loop with recursive momentum and a Neumann series")
    afl: Afl = section(Afl, "agnostic: the worst mixture of clients")
    validation_only: ValidationOnly = section(ValidationOnly, "baseline: the server's validation set alone")
    average: Average = section(Average, "baseline: fixed equal weights")
    oracle_weights: OracleWeights = section(OracleWeights, "baseline: fixed weights that know who is clean")
    exact_gradient: ExactGradient = section(ExactGradient, "reference for the toy problem: dense inverse Hessian")
    simfbo: SimFbo = section(SimFbo, "general: one loop, one exchange a round")
    shrofbo: ShroFbo = section(ShroFbo, "general: SimFBO that forgives unequal local steps")


METHODS = tuple(field.name for field in fields(Algorithms))

__all__ = [
    "METHODS",
    "Afl",
    "Algorithms",
    "Average",
    "ExactGradient",
    "FedNest",
    "OracleWeights",
    "PrimalDual",
    "Rfho",
    "ServerOptions",
    "ShroFbo",
    "SimFbo",
    "Sustain",
    "ValidationOnly",
]
