"""What a person may set: one frozen dataclass per section of params.yaml and per method.

The dataclasses are plain standard library, so the mathematical core needs nothing else.
``pipeline.params.loading`` (pydantic, ruamel.yaml) reads and checks them at the edges.
"""

from pipeline.params import methods
from pipeline.params.methods import *  # noqa: F403 - every method's record, as listed there
from pipeline.params.sections import (
    ClientWeighting,
    Consensus,
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
    Sweep,
    Tracking,
    Train,
)

__all__ = [
    "ClientWeighting",
    "Consensus",
    "Data",
    "DataCleaning",
    "Fair",
    "Federation",
    "HyperRepresentation",
    "LossTuning",
    "Model",
    "Params",
    "Partition",
    "Problems",
    "Subset",
    "Sweep",
    "Tracking",
    "Train",
]
__all__ += methods.__all__
