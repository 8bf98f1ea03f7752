"""Every method by its name in params.yaml."""

from typing import Any

from pipeline.algorithms.base import Algorithm, Cost, Federation, State, Step, Turn
from pipeline.algorithms.bilevel.aggitd import AGGITD
from pipeline.algorithms.bilevel.fedbio import FEDBIO
from pipeline.algorithms.bilevel.fedbio_local import FEDBIO_LOCAL, FEDBIOACC_LOCAL
from pipeline.algorithms.bilevel.fedbioacc import FEDBIOACC
from pipeline.algorithms.bilevel.fednest import FEDNEST_GENERAL
from pipeline.algorithms.bilevel.lfednest import LFEDNEST
from pipeline.algorithms.bilevel.simfbo import SHROFBO, SIMFBO
from pipeline.algorithms.client_weighting.afl import AFL
from pipeline.algorithms.client_weighting.average import AVERAGE
from pipeline.algorithms.client_weighting.exact_gradient import EXACT_GRADIENT
from pipeline.algorithms.client_weighting.fednest import FEDNEST
from pipeline.algorithms.client_weighting.oracle_weights import ORACLE_WEIGHTS
from pipeline.algorithms.client_weighting.primal_dual import PRIMAL_DUAL
from pipeline.algorithms.client_weighting.rfho import RFHO
from pipeline.algorithms.client_weighting.sustain import SUSTAIN
from pipeline.algorithms.client_weighting.validation_only import VALIDATION_ONLY
from pipeline.algorithms.consensus.a_fedpd import A_FEDPD
from pipeline.algorithms.consensus.a_fedpd_sam import A_FEDPD_SAM
from pipeline.algorithms.consensus.fedadmm import FEDADMM
from pipeline.algorithms.consensus.fedavg import FEDAVG
from pipeline.algorithms.consensus.fedcm import FEDCM
from pipeline.algorithms.consensus.feddyn import FEDDYN
from pipeline.algorithms.consensus.fedpd import FEDPD
from pipeline.algorithms.consensus.fedprox import FEDPROX
from pipeline.algorithms.consensus.fedsam import FEDSAM
from pipeline.algorithms.consensus.fedspeed import FEDSPEED
from pipeline.algorithms.consensus.scaffold import SCAFFOLD

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

__all__ = ["ALGORITHMS", "Algorithm", "Cost", "Federation", "State", "Step", "Turn"]
