"""Hyper-parameters of each method (``algorithms.<name>``), family by family."""

from __future__ import annotations

from dataclasses import dataclass, fields

from pipeline.params.methods.bilevel import (
    AggItd,
    FedBio,
    FedBioAcc,
    FedBioAccLocal,
    FedBioLocal,
    FedNestGeneral,
    LFedNest,
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
from pipeline.params.methods.consensus import (
    AFedPd,
    AFedPdSam,
    DualOptions,
    FedAdmm,
    FedAvg,
    FedCm,
    FedDyn,
    FedPd,
    FedProx,
    FedSam,
    FedSpeed,
    LearnedWeights,
    LocalOptions,
    PrimalOptions,
    Scaffold,
    WeightedOptions,
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
    fednest_general: FedNestGeneral = section(FedNestGeneral, "general: FedNest beyond client weighting")
    lfednest: LFedNest = section(LFedNest, "general: every client's own hypergradient steps, averaged")
    aggitd: AggItd = section(AggItd, "general: the series rides on the lower level's exchanges")
    fedbio: FedBio = section(FedBio, "general: local steps on all variables, then averaging")
    fedbioacc: FedBioAcc = section(FedBioAcc, "general: the same with recursive momentum")
    fedbio_local: FedBioLocal = section(FedBioLocal, "local lower levels: local steps, x averaged")
    fedbioacc_local: FedBioAccLocal = section(FedBioAccLocal, "local lower levels: the same with recursive momentum")
    fedavg: FedAvg = section(FedAvg, "local steps, then the mean of the models")
    fedprox: FedProx = section(FedProx, "averaging with a proximal term")
    fedcm: FedCm = section(FedCm, "averaging with client-level momentum")
    scaffold: Scaffold = section(Scaffold, "control variates against client drift")
    fedsam: FedSam = section(FedSam, "averaging of sharpness-aware local steps")
    fedpd: FedPd = section(FedPd, "primal-dual, full participation")
    fedadmm: FedAdmm = section(FedAdmm, "primal-dual, averaging active clients only")
    feddyn: FedDyn = section(FedDyn, "dynamic regularisation")
    fedspeed: FedSpeed = section(FedSpeed, "feddyn with sharpness-aware local steps")
    a_fedpd: AFedPd = section(AFedPd, "primal-dual with virtual dual steps of absent clients")
    a_fedpd_sam: AFedPdSam = section(AFedPdSam, "the same with sharpness-aware local steps")


METHODS = tuple(field.name for field in fields(Algorithms))

__all__ = [
    "METHODS",
    "AFedPd",
    "AFedPdSam",
    "Afl",
    "AggItd",
    "Algorithms",
    "Average",
    "DualOptions",
    "ExactGradient",
    "FedAdmm",
    "FedAvg",
    "FedBio",
    "FedBioAcc",
    "FedBioAccLocal",
    "FedBioLocal",
    "FedCm",
    "FedDyn",
    "FedNest",
    "FedNestGeneral",
    "FedPd",
    "FedProx",
    "FedSam",
    "FedSpeed",
    "LFedNest",
    "LearnedWeights",
    "LocalOptions",
    "OracleWeights",
    "PrimalDual",
    "PrimalOptions",
    "Rfho",
    "Scaffold",
    "ServerOptions",
    "ShroFbo",
    "SimFbo",
    "Sustain",
    "ValidationOnly",
    "WeightedOptions",
]
