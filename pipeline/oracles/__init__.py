"""Derivatives of a problem for all active clients at once; one module per kind of problem."""

from typing import Any

from pipeline.oracles.local import LOCAL_ORACLES, FusedLocal, LocalOracle, LoopLocal
from pipeline.oracles.weighting import ORACLES, FusedOracle, LoopOracle, Oracle

__all__ = [
    "LOCAL_ORACLES",
    "ORACLES",
    "FusedLocal",
    "FusedOracle",
    "LocalOracle",
    "LoopLocal",
    "LoopOracle",
    "Oracle",
    "backend_for",
]


def backend_for(wanted: str, problem: Any) -> str:
    """`train.backend`; loop for a network that clients cannot go through together."""
    one_pass = getattr(getattr(problem, "model", None), "one_pass", True)
    return wanted if one_pass else "loop"
