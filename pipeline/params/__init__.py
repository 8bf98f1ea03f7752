"""params.yaml as a record. A section stands with what it sets: a method's hyper-parameters in the method's file.

Reading (`pipeline.params.reading`) needs pydantic and ruamel.yaml; the records and everything that is computed do not.
"""

from pipeline.config.sections import FederationSettings, Sweep, Tracking, Train
from pipeline.data.settings import Data, PartitionSettings, Subset
from pipeline.models.settings import Model
from pipeline.params.tree import Algorithms, Params, Problems, Resolved

__all__ = [
    "Algorithms",
    "Data",
    "FederationSettings",
    "Model",
    "Params",
    "PartitionSettings",
    "Problems",
    "Resolved",
    "Subset",
    "Sweep",
    "Tracking",
    "Train",
]
