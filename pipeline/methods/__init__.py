"""The methods: three families, a file per method."""

from pipeline.methods.base import Algorithm, Cost, Family, Participation, State, Step, StepContext
from pipeline.methods.registry import ALGORITHMS

__all__ = ["ALGORITHMS", "Algorithm", "Cost", "Family", "Participation", "State", "Step", "StepContext"]
