"""How the server of the averaging methods (fedavg, fedprox, fedcm, fedsam) puts its active clients' changes together
where some of them may be bad: section `robust` of params.yaml.

The rules stand in for the mean in `primal.change`. Local steps, participation and the server's optimizer stay as they
are. A rule fits a server that takes a mean and keeps nothing that must equal one. The duals and control variates of
SCAFFOLD, FedPD, FedADMM, FedDyn, FedSpeed and A-FedPD belong to the plain mean, learned client weights to the weighted
one: there a robust rule is refused.

A rule needs every client's own change, [n, d]: several processes send one another those of their clients.

A new rule is a file with its record and a line in `RULES`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pipeline.config.spec import Named, OpenSection, one_section_each, param
from pipeline.errors import not_allowed
from pipeline.methods.consensus.robust.base import Chosen, RobustRule
from pipeline.methods.consensus.robust.clipped import CLIPPED
from pipeline.methods.consensus.robust.krum import KRUM
from pipeline.methods.consensus.robust.median import MEDIAN
from pipeline.methods.consensus.robust.trimmed_mean import TRIMMED_MEAN

MEAN = "mean"
RULES: dict[str, RobustRule] = {rule.name: rule for rule in (MEDIAN, TRIMMED_MEAN, CLIPPED, KRUM)}


@one_section_each({name: (rule.settings, rule.summary) for name, rule in RULES.items()})
@dataclass(frozen=True)
class Robust(OpenSection):
    """How the clients' changes are put together where some may be bad."""

    rule: Annotated[str, Named((MEAN, *RULES))] = param(
        MEAN,
        "of fedavg, fedprox, fedcm and fedsam; the section of that name holds its settings; mean = shares as"
        " federation.aggregation says",
    )


def chosen(settings: Any) -> Chosen | None:
    """What the section `robust` asks for; None = the mean."""
    return None if settings.rule == MEAN else Chosen(RULES[settings.rule], getattr(settings, settings.rule))


def check(params: Any, problem: str) -> None:
    """UserError for a rule with a method that has no mean of changes to replace. problem: in use."""
    rule, method = params.robust.rule, params.method
    if rule == MEAN:
        return
    if method.family.name != "averaging":
        raise not_allowed(
            "robust.rule", rule, f"{MEAN} for {method.name}: {_why(method)}", f"set it to {MEAN}, {_OTHER}"
        )
    if problem == "client_weighting" and params.hyper.weights.mode != "plain":
        raise not_allowed(
            "robust.rule",
            rule,
            f"{MEAN} with weights.mode: {params.hyper.weights.mode}: the client weights belong to the weighted mean",
            f"set it to {MEAN}, or algorithms.{method.name}.weights.mode to plain, or problem to consensus",
        )
    if params.federation.aggregation != "uniform" and not RULES[rule].weighted:
        raise not_allowed(
            "federation.aggregation",
            params.federation.aggregation,
            f"uniform with robust.rule: {rule}, which counts every client once: a client states its number of samples"
            " itself",
            "set it to uniform, or robust.rule to clipped",
        )


_OTHER = "or choose fedavg, fedprox, fedcm or fedsam"


def _why(method: Any) -> str:
    if method.family.name == "consensus":
        return str(method.family.otherwise)
    return "its server takes no mean of models that clients have trained"
