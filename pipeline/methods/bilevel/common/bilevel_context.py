"""What a method of general federated bilevel learning may ask: minibatches, weights, derivatives at clients' points.

    min_x F(x, y*(x)),   y*(x) = argmin_y G(x, y),   F = sum_i p_i f_i,  G = sum_i p_i g_i

| symbol | here | shape |
|---|---|---|
| p_i | `problem.client_probabilities` | [N] |
| the active clients and their (N/n) p_i ("p-tilde") | `clients, p = context.cohort()` | [n], [n] |
| sum_i (N/n) p_i u_i over all active clients | `context.total(p @ U)` | [d] |
| grad f_i | `context.upper_level(x, y)`, an `UpperLevel` | rows [n, d_x], [n, d_y] |

Who holds f. Usually every client has its own f_i. In client weighting all f_i are the server's f_0 (`server_upper`),
which does not depend on x: then grad f_0 is taken by the server, at the round's start, and is frozen there. With one
local step the server adds it to what the clients sent, so nothing of the validation set leaves it; with more, it rides
with the variables, d_y numbers more to each client.

Where a run is spread over several processes, a cohort is those of the n clients that are simulated in this one: m rows,
possibly none, and `context.total` completes what is contracted from them.

What is counted (`Cost`, for every method of the family): every grad_y g, grad_x f and grad_y f that a client computes
on one minibatch is a gradient, and every D2yy g v and D2xy g v is a product, also where one pass over a shared
minibatch yields two of them. What the server computes itself is not counted. Clients that come and go keep nothing of
the server's from one round, or call of FedInn or FedOut, to the next; within one they keep what they were sent, so with
fresh client sets each client is sent x and y when it is asked first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from pipeline.config.spec import Section, param
from pipeline.errors import UserError
from pipeline.methods.base import Algorithm, Family, PerClientContext, State, Step
from pipeline.oracles.bilevel import BILEVEL_ORACLES, BilevelOracle
from pipeline.oracles.screened import ScreenedBilevel
from pipeline.oracles.screening import Drawn
from pipeline.problems.base import Batch, BilevelProblem
from pipeline.problems.forms import Form


@dataclass(frozen=True)
class BilevelOptions(Section):
    """What every method of the family may choose. main_step_size: the one to lower first when a run diverges."""

    main_step_size: ClassVar[str] = "eta_y"

    schedule: Literal["constant", "cosine"] = param(
        "cosine", "of all step sizes, the clients' included, over train.rounds; cosine = down to zero"
    )


class UpperLevel(Protocol):
    """Gradients of the upper losses in one round; rows are clients."""

    def gradients(self, X: Tensor, Y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """(grad_x f_i [n, d_x], grad_y f_i [n, d_y])."""
        ...

    def gradient_x(self, X: Tensor, Y: Tensor, batch: Batch) -> Tensor:
        """grad_x f_i, [n, d_x]."""
        ...

    def gradient_y(self, X: Tensor, Y: Tensor, batch: Batch) -> Tensor:
        """grad_y f_i, [n, d_y]."""
        ...


class ClientUpper:
    """Every client differentiates its own f_i, where it stands."""

    def __init__(self, oracle: BilevelOracle) -> None:
        self.gradients = oracle.upper_gradients
        self.gradient_x = oracle.upper_gradient_x
        self.gradient_y = oracle.upper_gradient_y


class ServerUpper:
    """The server's grad f_0 at (x, y), on one minibatch: the same for every client, wherever it stands by now."""

    def __init__(self, oracle: BilevelOracle, x: Tensor, y: Tensor, batch: Batch) -> None:
        self._gradient = partial(oracle.upper_gradient_y, x[None], y[None], batch)

    @cached_property
    def _frozen(self) -> Tensor:
        return self._gradient()

    def gradients(self, X: Tensor, Y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(X), self._frozen.expand_as(Y)

    def gradient_x(self, X: Tensor, Y: Tensor, batch: Batch) -> Tensor:
        return torch.zeros_like(X)

    def gradient_y(self, X: Tensor, Y: Tensor, batch: Batch) -> Tensor:
        return self._frozen.expand_as(Y)


class Cohort(NamedTuple):
    """clients: ids [n], on the host. p: (N/n) p_i [n]; a sum over the active clients with these is an unbiased estimate
    of that over all."""

    clients: Tensor
    p: Tensor


@dataclass(frozen=True)
class BilevelContext(PerClientContext):
    """One inner step of a method of this family."""

    oracles: ClassVar[Mapping[str, Callable[[Any], Any]]] = BILEVEL_ORACLES
    screened = ScreenedBilevel

    oracle: BilevelOracle

    @property
    def problem(self) -> BilevelProblem:
        return self.oracle.problem

    @property
    def server_upper(self) -> bool:
        """Whether f is the server's own."""
        return bool(getattr(self.problem, "server_upper", False))

    @property
    def upper_floats(self) -> int:
        """How many numbers of x travel where x does: d_x, unless the problem keeps a client's part of it there."""
        return int(getattr(self.problem, "upper_floats", self.problem.upper_dimension))

    def constrain(self, variable: str, value: Tensor) -> Tensor:
        """The upper variable's set is the problem's; local copies of x are not projected. What is no longer finite is
        left for the loop to complain about."""
        return self.problem.project_upper(value) if variable == "x" and value.isfinite().all() else value

    def total(self, part: Tensor) -> Tensor:
        """Answers are judged before they are summed: what is sent on must not hold a bad one."""
        self.judge()
        return super().total(part)

    def settled(self, name: str, direction: Tensor) -> Tensor:
        """Where x are the clients' weights, those of clients left out neither gain nor lose."""
        weighting = name == "x" and hasattr(self.problem, "lower_scale")
        return self.neutral(direction) if weighting else direction

    def cohort(self, *exchange: int) -> Cohort:
        """The active clients that are simulated in this process. exchange: which one, where a step has several."""
        active, p = self.active(*exchange), self.problem.client_probabilities
        clients = active[self.share.own(active)]
        return Cohort(clients, p[clients.to(p.device)] * (len(p) / len(active)))

    def lower_batch(self, purpose: str, clients: Tensor, *exchange: int, size: int | None = None) -> Batch:
        """A minibatch of g-data per client; different purposes, and exchanges of one step, are independent."""
        if not len(clients):
            return None
        stream = self.stream(f"lower {purpose}", *exchange)
        batch = self.problem.draw_lower(stream, clients, size or self.federation.batch_size)
        return Drawn(clients, batch) if self.screen else batch

    def upper_batch(self, purpose: str, clients: Tensor, *exchange: int, size: int | None = None) -> Batch:
        """A minibatch of f-data per client, independent of every lower one; None where the server holds f."""
        if self.server_upper or not len(clients):
            return None
        stream = self.stream(f"upper {purpose}", *exchange)
        batch = self.problem.draw_upper(stream, clients, size or self.federation.batch_size)
        return Drawn(clients, batch) if self.screen else batch

    def upper_level(self, x: Tensor, y: Tensor, *exchange: int) -> UpperLevel:
        """Gradients of the upper losses; x, y: the server's variables. exchange: which of the server's minibatches,
        where a step has several."""
        if not self.server_upper:
            return ClientUpper(self.oracle)
        batch = self.problem.draw_upper(self.stream("validation", *exchange), torch.zeros(1, dtype=torch.int64), 1)
        return ServerUpper(self.oracle, x, y, batch)

    def require_lower_level(self, method: str, *, local: bool) -> None:
        """UserError if the problem's lower level is of the other kind."""
        if self.problem.local_lower == local:
            return
        if local:
            raise UserError(
                f"algorithm: {method} is made for local lower levels, one y per client, and this problem has a common"
                " one. Fix: a problem with local heads, or the algorithm without _local."
            )
        raise UserError(
            f"algorithm: {method} is made for a common lower level, and in this problem every client has its own y."
            " Fix: fedbio_local, fedbioacc_local or lfednest, or the problem's shared form."
        )


def rows(u: Tensor, n: int) -> Tensor:
    """The server's variable, copied to n clients: [n, d], to be moved by each."""
    return u.expand(n, -1).clone()


def assigning(
    init: Callable[[BilevelContext], State],
    step: Callable[[State, BilevelContext], Step],
    variables: str,
    inner_steps: Callable[[Any], int] = lambda hyper: 1,
    rows: str = "",
    **record: Any,
) -> Algorithm[BilevelContext]:
    """The record of a method whose server replaces its variables (one letter each) by averages: every direction is old
    minus new, taken whole. rows: memory with a row per client. record: name, summary, family, options. The adjoint's
    norm goes into the history where there is an adjoint."""
    norm = {"adjoint_norm": lambda found: torch.linalg.vector_norm(found["v"])}
    return Algorithm(
        init=init,
        step=step,
        inner_steps=inner_steps,
        step_sizes=lambda hyper: dict.fromkeys(variables, 1.0),
        assigned=frozenset(variables),
        client_rows=frozenset(rows.split()),
        reports=norm if "v" in variables else {},
        **record,
    )


def start(context: BilevelContext, method: str) -> tuple[Tensor, Tensor]:
    """(x_1, y_1) of a problem with a common lower level."""
    context.require_lower_level(method, local=False)
    return context.problem.initial_upper(context.seed), context.problem.initial_lower(context.seed)


BILEVEL = Family(
    name="bilevel",
    context=BilevelContext,
    options=BilevelOptions,
    solves=(Form.COMMON_LOWER,),
    made_for="client_weighting",
    otherwise="it moves one lower variable for all clients",
)
LOCAL_LOWER = Family(
    name="local",
    context=BilevelContext,
    options=BilevelOptions,
    solves=(Form.LOCAL_LOWER,),
    made_for="hyper_representation",
    otherwise="it is made for local lower levels, one lower variable per client",
)
EITHER_LOWER = Family(
    name="either",
    context=BilevelContext,
    options=BilevelOptions,
    solves=(Form.LOCAL_LOWER, Form.COMMON_LOWER),
    made_for="hyper_representation",
    otherwise="it needs an upper and a lower level",
)
