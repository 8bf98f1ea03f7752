"""Derivatives of a problem for all active clients at once; one module per kind of problem."""

from pipeline.oracles.local import LOCAL_ORACLES, FusedLocal, LocalOracle, LoopLocal
from pipeline.oracles.weighting import ORACLES, FusedOracle, LoopOracle, Oracle

__all__ = ["LOCAL_ORACLES", "ORACLES", "FusedLocal", "FusedOracle", "LocalOracle", "LoopLocal", "LoopOracle", "Oracle"]
