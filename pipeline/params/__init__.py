"""What a person may set: one frozen dataclass per section of params.yaml and per method.

The dataclasses are plain standard library, so the mathematical core needs nothing else.
``pipeline.params.loading`` (pydantic, ruamel.yaml) reads and checks them at the edges.
"""

from pipeline.params.methods import (
    METHODS,
    Afl,
    Algorithms,
    Average,
    ExactGradient,
    FedNest,
    OracleWeights,
    PrimalDual,
    Rfho,
    ServerOptions,
    ShroFbo,
    SimFbo,
    Sustain,
    ValidationOnly,
)
from pipeline.params.sections import (
    ClientWeighting,
    Data,
    DataCleaning,
    Fair,
    Federation,
    HyperRepresentation,
    LossTuning,
    Model,
    Params,
    Partition,
    Problems,
    Subset,
    Tracking,
    Train,
)

__all__ = [
    "METHODS",
    "Afl",
    "Algorithms",
    "Average",
    "ClientWeighting",
    "Data",
    "DataCleaning",
    "ExactGradient",
    "Fair",
    "FedNest",
    "Federation",
    "HyperRepresentation",
    "LossTuning",
    "Model",
    "OracleWeights",
    "Params",
    "Partition",
    "PrimalDual",
    "Problems",
    "Rfho",
    "ServerOptions",
    "ShroFbo",
    "SimFbo",
    "Subset",
    "Sustain",
    "Tracking",
    "Train",
    "ValidationOnly",
]
