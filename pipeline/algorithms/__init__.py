"""Every method by its name in params.yaml."""

from pipeline.algorithms.afl import AFL
from pipeline.algorithms.average import AVERAGE
from pipeline.algorithms.base import Algorithm, Cost, Federation, State, Step, Turn
from pipeline.algorithms.exact_gradient import EXACT_GRADIENT
from pipeline.algorithms.fednest import FEDNEST
from pipeline.algorithms.oracle_weights import ORACLE_WEIGHTS
from pipeline.algorithms.primal_dual import PRIMAL_DUAL
from pipeline.algorithms.rfho import RFHO
from pipeline.algorithms.sustain import SUSTAIN
from pipeline.algorithms.validation_only import VALIDATION_ONLY

ALGORITHMS: dict[str, Algorithm] = {
    "primal_dual": PRIMAL_DUAL,
    "rfho": RFHO,
    "fednest": FEDNEST,
    "sustain": SUSTAIN,
    "afl": AFL,
    "validation_only": VALIDATION_ONLY,
    "average": AVERAGE,
    "oracle_weights": ORACLE_WEIGHTS,
    "exact_gradient": EXACT_GRADIENT,
}

__all__ = ["ALGORITHMS", "Algorithm", "Cost", "Federation", "State", "Step", "Turn"]
