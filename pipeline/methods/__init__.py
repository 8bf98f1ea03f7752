"""Every method by its name in params.yaml."""

from typing import Any

from pipeline.methods.base import Algorithm, Cost, Federation, State, Step, StepContext
from pipeline.methods.bilevel.aggitd import AGGITD
from pipeline.methods.bilevel.fedbio import FEDBIO
from pipeline.methods.bilevel.fedbio_local import FEDBIO_LOCAL, FEDBIOACC_LOCAL
from pipeline.methods.bilevel.fedbioacc import FEDBIOACC
from pipeline.methods.bilevel.fednest_general import FEDNEST_GENERAL
from pipeline.methods.bilevel.lfednest import LFEDNEST
from pipeline.methods.bilevel.simfbo import SHROFBO, SIMFBO
from pipeline.methods.client_weighting.afl import AFL
from pipeline.methods.client_weighting.average import AVERAGE
from pipeline.methods.client_weighting.exact_gradient import EXACT_GRADIENT
from pipeline.methods.client_weighting.fednest import FEDNEST
from pipeline.methods.client_weighting.oracle_weights import ORACLE_WEIGHTS
from pipeline.methods.client_weighting.primal_dual import PRIMAL_DUAL
from pipeline.methods.client_weighting.rfho import RFHO
from pipeline.methods.client_weighting.sustain import SUSTAIN
from pipeline.methods.client_weighting.validation_only import VALIDATION_ONLY
from pipeline.methods.consensus.a_fedpd import A_FEDPD
from pipeline.methods.consensus.a_fedpd_sam import A_FEDPD_SAM
from pipeline.methods.consensus.fedadmm import FEDADMM
from pipeline.methods.consensus.fedavg import FEDAVG
from pipeline.methods.consensus.fedcm import FEDCM
from pipeline.methods.consensus.feddyn import FEDDYN
from pipeline.methods.consensus.fedpd import FEDPD
from pipeline.methods.consensus.fedprox import FEDPROX
from pipeline.methods.consensus.fedsam import FEDSAM
from pipeline.methods.consensus.fedspeed import FEDSPEED
from pipeline.methods.consensus.scaffold import SCAFFOLD

ALGORITHMS: dict[str, Algorithm[Any]] = {
    "primal_dual": PRIMAL_DUAL,
    "rfho": RFHO,
    "fednest": FEDNEST,
    "sustain": SUSTAIN,
    "afl": AFL,
    "validation_only": VALIDATION_ONLY,
    "average": AVERAGE,
    "oracle_weights": ORACLE_WEIGHTS,
    "exact_gradient": EXACT_GRADIENT,
    "simfbo": SIMFBO,
    "shrofbo": SHROFBO,
    "fednest_general": FEDNEST_GENERAL,
    "lfednest": LFEDNEST,
    "aggitd": AGGITD,
    "fedbio": FEDBIO,
    "fedbioacc": FEDBIOACC,
    "fedbio_local": FEDBIO_LOCAL,
    "fedbioacc_local": FEDBIOACC_LOCAL,
    "fedavg": FEDAVG,
    "fedprox": FEDPROX,
    "fedcm": FEDCM,
    "scaffold": SCAFFOLD,
    "fedsam": FEDSAM,
    "fedpd": FEDPD,
    "fedadmm": FEDADMM,
    "feddyn": FEDDYN,
    "fedspeed": FEDSPEED,
    "a_fedpd": A_FEDPD,
    "a_fedpd_sam": A_FEDPD_SAM,
}

__all__ = ["ALGORITHMS", "Algorithm", "Cost", "Federation", "State", "Step", "StepContext"]
