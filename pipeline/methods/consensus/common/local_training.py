"""The local steps of all active clients at once (specification a_fedpd, section 2).

| specification | here | shape |
|---|---|---|
| theta_{i,k} | rows of `X` | [n, d] |
| start = theta^t | `start` | [d] |
| lin | `rule.lin`: one for all, or one per client | [d] or [n, d] |
| prox, r, eps_sam | `rule.prox`, `rule.radius`, `rule.sam_eps` | scalars |
| eta_t, wd, K | `context.eta`, `hyper.weight_decay`, `hyper.local_steps` | scalars |

Each client, in parallel, starting at x = theta^t:

    GRAD:    g <- grad f_i(x; B)
             if r > 0:  g <- grad f_i( x + r g / (||g|| + eps_sam); B )       the same minibatch, the norm over all of x
    LOCAL:   x <- x - eta_t ( g + lin + prox (x - theta^t) + wd x )           K times, every time a fresh minibatch

Two mixtures are there for the methods that want them: `sam_share` a of (1 - a) grad f_i(x) + a g (FedSpeed as first
published) and `fresh` alpha of alpha g + lin (FedCM).

Clipping to `clip_norm` shortens g alone; clip_mode `simulator` shortens g + lin - prox theta^t, so that the dual and
the proximal anchor are clipped too and prox x is not (specification, item A16).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline import projections
from pipeline.config.spec import param
from pipeline.errors import not_allowed
from pipeline.methods.consensus.common.local_context import LocalContext, LocalOptions
from pipeline.problems.base import Batch


def sam_radius(default: float) -> float:
    """The option `radius`."""
    return param(default, "radius of the sharpness-aware perturbation; 0 = none", ge=0, symbol="r")


def sam_epsilon() -> float:
    """The option `sam_eps`."""
    return param(0.01, "added to the gradient's norm where the perturbation is normalised", gt=0)


def require_contraction(name: str, options: LocalOptions, rho: float = 0.0) -> None:
    """UserError for local steps that ruin a run on any data: x <- x - eta pull x with eta pull of 2 or more.

    rho: the pull of the method's proximal term, beside that of the weight decay.
    """
    pulls = {"weight_decay": options.weight_decay, "rho": rho}
    if options.eta * sum(pulls.values()) >= 2.0:
        key = max(pulls, key=lambda each: pulls[each])
        room = 2.0 / options.eta - sum(pulls.values()) + pulls[key]
        raise not_allowed(
            f"algorithms.{name}.{key}",
            pulls[key],
            f"less than {room:g} (eta times rho and weight_decay below 2), or local steps diverge on any data",
            f"lower it, or algorithms.{name}.eta",
        )


@dataclass(frozen=True)
class Rule:
    """What a method adds to plain local gradient steps."""

    lin: Tensor | None = None
    prox: float = 0.0
    radius: float = 0.0
    sam_eps: float = 0.0
    sam_share: float = 1.0
    fresh: float = 1.0


@dataclass(frozen=True)
class Trained:
    """What the clients hold afterwards.

    models: theta_i, [n, d]. steps: how many each one took, [n]. gradients: minibatch gradients of all of them together.
    pull: ||grad f_i(theta^t; B) + lin_i|| on the first minibatch, [n]: how far the client's own subproblem is from
    being solved by the model it received. A momentum in lin (`fresh` below 1) stands for no dual and is left out.
    """

    models: Tensor
    steps: Tensor
    gradients: int
    pull: Tensor


def train(context: LocalContext, start: Tensor, clients: Tensor, rule: Rule = Rule()) -> Trained:
    """LOCAL for each of the clients [n] (`context.cohort()`, of which there may be none here), from the server's model
    [d]; where the clients are: here, or at sites that the oracle asks (`pipeline.federation`)."""
    if remote := getattr(context.oracle, "train", None):
        return remote(context, start, clients, rule)
    hyper, eta = context.hyper, context.eta
    X = start.expand(len(clients), -1).clone()
    steps = torch.zeros(len(clients), dtype=X.dtype, device=X.device)
    constant = _constant(rule, start)  # lin - prox theta^t; the rest of prox (x - theta^t) goes with the weight decay
    shrink = hyper.weight_decay + rule.prox
    pull = torch.zeros_like(steps)
    gradients = 0
    for count, batch in context.batches(clients):
        x = X[:count]
        g, first = _gradient(context, x, batch, rule)
        if not gradients:  # the first step, which all take at theta^t
            dual = rule.lin if rule.fresh == 1.0 else None
            pull = torch.linalg.vector_norm(first if dual is None else first + dual, dim=1)
            context.watch("gradient", clients[:count], pull if dual is None else torch.linalg.vector_norm(first, dim=1))
        if hyper.clip_mode == "loss":
            g = projections.clip(g, hyper.clip_norm)
        if rule.fresh != 1.0:
            g = rule.fresh * g
        if constant is not None:
            g = g + (constant if constant.dim() == 1 else constant[:count])
        if hyper.clip_mode == "simulator":
            g = projections.clip(g, hyper.clip_norm)
        x.mul_(1.0 - eta * shrink).sub_(g, alpha=eta)  # x - eta (g + shrink x), in place: models may be large
        steps[:count] += 1
        gradients += count * (2 if rule.radius else 1)
    if context.screen:
        context.watch("change", clients, _distances(X, start))
    context.judge()
    return Trained(X, steps, gradients, pull)


def _distances(models: Tensor, start: Tensor) -> Tensor:
    """||theta_i - theta||, [n], a few models at a time: they may be large."""
    pieces = models.split(max(1, 2**24 // len(start)))
    return torch.cat([torch.linalg.vector_norm(piece - start, dim=1) for piece in pieces])


def _constant(rule: Rule, start: Tensor) -> Tensor | None:
    anchor = -rule.prox * start if rule.prox else None
    if rule.lin is None or anchor is None:
        return anchor if rule.lin is None else rule.lin
    return rule.lin + anchor


def _gradient(context: LocalContext, x: Tensor, batch: Batch, rule: Rule) -> tuple[Tensor, Tensor]:
    """GRAD and the plain gradient at x, [n, d] each; the same tensor if r = 0."""
    at_once = context.hyper.clients_at_once
    at_once = None if at_once == "auto" else at_once  # the oracle knows what a client takes, and the processor
    first = context.oracle.gradients_each(x, batch, at_once)
    if not rule.radius:
        return first, first
    length = torch.linalg.vector_norm(first, dim=1, keepdim=True) + rule.sam_eps
    sharp = context.oracle.gradients_each(x + first * (rule.radius / length), batch, at_once)
    return (sharp if rule.sam_share == 1.0 else torch.lerp(first, sharp, rule.sam_share)), first
