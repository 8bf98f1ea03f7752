"""What a problem is in params.yaml, and the forms in which it can be put to a method.

A problem offers one or more of them, a family of methods solves one or more; a method fits a problem that offers a form
which it solves.

| form | offered by | what a method may ask |
|---|---|---|
| SHARED_MODEL | `WeightingProblem` | derivatives at one shared model w, and of the server's validation loss |
| COMMON_LOWER | `BilevelProblem` | derivatives of both levels, one lower variable for all clients |
| LOCAL_LOWER | `BilevelProblem`, `local_lower` | the same with a lower variable for each client |
| LOCAL_WEIGHTS | `WeightedLocalProblem` | clients' local steps, and what client weights are learned from |
| LOCAL_MEAN | `LocalProblem` | clients' local steps on the mean of their losses |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import torch
from torch import Tensor


class Form(Enum):
    """One of them."""

    SHARED_MODEL = auto()
    COMMON_LOWER = auto()
    LOCAL_LOWER = auto()
    LOCAL_WEIGHTS = auto()
    LOCAL_MEAN = auto()


@dataclass(frozen=True)
class Facts:
    """What `auto` in a problem's settings may depend on. heads: kinds that the method learns, the preferred one first.
    clean_parts: whether the partition scheme deals out clean validation parts. colour: whether images are."""

    heads: tuple[str, ...]
    clean_parts: bool
    colour: bool


@dataclass(frozen=True)
class Given:
    """What a problem is built from. params: the run's, without `auto`. model, data, info: of samples; None on the
    toy."""

    params: Any
    model: Any = None
    data: Any = None
    info: Any = None

    def offers(self, *forms: Form) -> bool:
        """Whether the method solves one of these forms."""
        return not set(forms).isdisjoint(self.params.method.family.solves)

    @property
    def probabilities(self) -> Tensor:
        """p: 1/N, or in proportion to the clients' training samples, as federation.aggregation says; [N]."""
        sizes = self.data.sizes
        shares = torch.ones_like(sizes) if self.params.federation.aggregation == "uniform" else sizes
        return (shares / shares.sum()).to(self.data.dtype)

    @property
    def server_batch(self) -> int | None:
        """Size of the server's minibatch; None = its whole validation set."""
        size = self.params.federation.validation_batch_size
        return None if size == "all" else size


def as_they_are(settings: Any, facts: Facts) -> Any:
    """Settings without any `auto`."""
    return settings


@dataclass(frozen=True, kw_only=True)
class Formulation:
    """A problem as params.yaml names it.

    name: there. summary: what it is, in a line. settings: the record of its section, `problems.<name>`. offers: the
    forms in which it is put to a method. build(settings, given) -> the problem; UserError for settings that do not fit
    the data. resolve(settings, facts) -> settings without `auto`. upper_on_clients(settings, clean_parts): whether the
    upper level lies on the clients' own validation parts, not on the server's validation set. numbers: it also makes
    sense where targets are numbers, not classes. body: the network must have one, before its last layer. own_data: it
    is served by data of its own, which serve no other problem.
    """

    name: str
    summary: str
    settings: type[Any]
    offers: tuple[Form, ...]
    build: Callable[[Any, Given], Any]
    resolve: Callable[[Any, Facts], Any] = as_they_are
    upper_on_clients: Callable[[Any, bool], bool] = lambda settings, clean_parts: False
    numbers: bool = True
    body: bool = False
    own_data: bool = False
