"""The defaults that cells recorded before 2026-11-23 were run with, where the library's are others today.

A cell gets them below its own settings, so that it is the run that its file records, and running it again runs the
former method. `defaults: current` in a row's settings asks for today's defaults instead. (Two more defaults of
primal_dual depended on the data set; cells name `clip_norm` and `gamma_schedule` where they were not 0 and constant.)
"""

from __future__ import annotations

from typing import Any

from pipeline.config.spec import override
from pipeline.errors import not_allowed
from pipeline.methods.registry import FAMILIES
from pipeline.params import Params

CHOICE = "defaults"
"""The one setting of a cell that is no parameter of the library: former (if not set) | current."""

ADDED: dict[str, Any] = {"weight_step": "plain", "curvature_limit": 0.0}
"""Options of every method for client weighting that there were not; these values are as without them."""

STEPS: dict[str, dict[str, Any]] = {
    "primal_dual": {"eta_w": 0.1, "eta_x": 0.02, "dual": "printed", "dual_damping": 0.02},
    "rfho": {"eta_w": 0.2, "eta_x": 10.0},
    "fednest": {"eta_w": 0.2, "eta_x": 4.0},
    "sustain": {"eta_w": 0.2, "eta_x": 4.0},
    "afl": {"eta_w": 0.2, "eta_x": 0.01},
    "average": {"eta_w": 0.2},
    "oracle_weights": {"eta_w": 0.2},
    "validation_only": {"eta_w": 0.2},
    "exact_gradient": {"eta_x": 0.01},
}

LEARNED: dict[str, Any] = {"dual": "printed", "weight_step": "plain", "eta_x": 0.02, "dual_damping": 0.02}
"""Of the section `weights` of methods with local steps."""

SETTINGS: dict[str, Any] = (
    {
        f"algorithms.{method}.{name}": value
        for method in FAMILIES["weighting"]
        for name, value in (ADDED | STEPS.get(method, {})).items()
    }
    | {"screening.leave_out": False}
    | {
        f"algorithms.{method}.weights.{name}": value
        for method in FAMILIES["averaging"]
        for name, value in LEARNED.items()
    }
)
"""All of them, dotted."""


def parameters(settings: dict[str, Any]) -> Params:
    """A cell's parameters: its settings on the defaults that it asks for. Raises KeyError for an unknown parameter."""
    own = {name: value for name, value in settings.items() if name != CHOICE}
    choice = settings.get(CHOICE, "former")
    if choice not in ("former", "current"):
        raise not_allowed(CHOICE, choice, "former or current", "name one of them")
    return override(Params(), own if choice == "current" else SETTINGS | own)


def left_out(method: dict[str, Any]) -> dict[str, Any]:
    """The options of a weighting method, or of a section `weights`, without those that older cells do not know, where
    they are as without them."""
    unknown = ADDED | {"dual": "printed"}
    return {name: value for name, value in method.items() if name not in unknown or value != unknown[name]}
