"""What the oracles and algorithms ask of a client-weighting problem."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

Batch = Any
"""One minibatch per client, in whatever form the problem itself understands."""


class WeightingProblem(Protocol):
    """min_x f_0(w*(x)) over the simplex, w*(x) = argmin_w sum_i x_i f_i(w)."""

    @property
    def clients(self) -> int:
        """N."""
        ...

    @property
    def dimension(self) -> int:
        """d."""
        ...

    @property
    def samples(self) -> Tensor:
        """Training samples of each client, [N]; for weights in proportion to them."""
        ...

    @property
    def oracle_weights(self) -> Tensor:
        """The weights of somebody who knows which clients are clean, [N]."""
        ...

    def initial(self, seed: int) -> Tensor:
        """w_1, [d]."""
        ...

    def draw(self, stream: int, clients: Tensor, size: int) -> Batch:
        """A minibatch of `size` samples for each of the clients [n], from the random stream (a randomness.key)."""
        ...

    def draw_validation(self, stream: int) -> Batch:
        """The server's minibatch B_0."""
        ...

    def losses(self, w: Tensor, batch: Batch) -> Tensor:
        """f_i(w; B_i) for each client of the batch, [n]; differentiable in w."""
        ...

    def validation_loss(self, w: Tensor, batch: Batch) -> Tensor:
        """f_0(w; B_0), scalar; differentiable in w."""
        ...

    def select(self, batch: Batch, i: int) -> Batch:
        """The batch of its i-th client alone."""
        ...
