"""Gradients of many clients, each at its own parameters: what a local step needs.

    G_i = grad f_i(W_i; B_i)      for the n clients of a batch; W, G [n, d]

`FusedLocal` computes several clients in one batched pass, as many as fit into `LIMIT` bytes: their parameters, their
gradients, and what the backward pass needs of the forward pass, which is measured on one client. Measured on one CPU
thread (10 clients x 50 samples, forward and backward, ms):

| network | one by one | batched |
|---|---|---|
| linear | 2.5 | 1.0 |
| mlp | 35 | 13 |
| lenet5 | 88 | 155 |
| lenet_wide | 600 | 580 |

A batched convolution with other weights per client is a grouped one, which CPUs do badly; hence `one_by_one`.

`LoopLocal` is the plain reference: the loss of one client at one shared w, client by client. On a client-weighting
problem both also answer what `pipeline.oracles.weighting` asks at the server's model.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from pipeline.oracles.weighting import FusedOracle, LoopOracle, Oracle
from pipeline.problems.base import Batch, LocalProblem

LIMIT = 4 * 2**30
"""Bytes that a batched pass may take."""


class LocalOracle(Oracle, Protocol):
    """Derivatives at the clients' own parameters, and those at the server's."""

    local: LocalProblem

    def gradients_each(self, W: Tensor, batch: Batch, at_once: int | None = None) -> Tensor:
        """G [n, d]. at_once: how many clients in one pass; None = as measured best."""
        ...


class FusedLocal(FusedOracle):
    """Batched over clients."""

    def __init__(self, problem: LocalProblem) -> None:
        super().__init__(problem)  # type: ignore[arg-type]  # asked for weighted sums only if it is a weighting problem
        self.local = problem
        self._sizes: dict[torch.Size, int] = {}

    def gradients_each(self, W: Tensor, batch: Batch, at_once: int | None = None) -> Tensor:
        n = len(W)
        size = min(n, at_once or self._at_once(W, batch))
        if size == n:
            return self._gradients(W, batch)
        parts = (slice(i, i + size) for i in range(0, n, size))
        return torch.cat([self._gradients(W[rows], self.local.part(batch, rows)) for rows in parts])

    def _gradients(self, W: Tensor, batch: Batch) -> Tensor:
        W = W.detach().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(self.local.losses_each(W, batch).sum(), W)[0]

    def _at_once(self, W: Tensor, batch: Batch) -> int:
        """By `LIMIT`, once per shape of batch."""
        if self.local.one_by_one:
            return 1
        shape = batch[0].shape[1:]
        if shape not in self._sizes:
            own = 3 * W.shape[1] * W.element_size() + self._kept(W[:1], self.local.part(batch, slice(0, 1)))
            self._sizes[shape] = max(1, LIMIT // own)
        return self._sizes[shape]

    def _kept(self, w: Tensor, batch: Batch) -> int:
        """Bytes that autograd keeps between the passes of one client."""
        kept: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            kept[tensor.data_ptr()] = tensor.nbytes
            return tensor

        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            self.local.losses_each(w.detach().requires_grad_(), batch)
        return sum(kept.values())


class LoopLocal(LoopOracle):
    """One client at a time, at a w of its own."""

    def __init__(self, problem: LocalProblem) -> None:
        super().__init__(problem)  # type: ignore[arg-type]
        self.local = problem

    def gradients_each(self, W: Tensor, batch: Batch, at_once: int | None = None) -> Tensor:
        rows = []
        for i, row in enumerate(W.unbind(0)):
            w = row.detach().requires_grad_()
            with torch.enable_grad():
                rows.append(torch.autograd.grad(self.local.losses(w, self.local.select(batch, i))[0], w)[0])
        return torch.stack(rows)


LOCAL_ORACLES: dict[str, type[FusedLocal] | type[LoopLocal]] = {"fused": FusedLocal, "loop": LoopLocal}
