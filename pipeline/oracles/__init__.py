"""Derivatives of a problem for all active clients at once; one module per kind of problem."""

from pipeline.oracles.weighting import ORACLES, FusedOracle, LoopOracle, Oracle

__all__ = ["ORACLES", "FusedOracle", "LoopOracle", "Oracle"]
