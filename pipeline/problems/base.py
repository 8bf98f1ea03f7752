"""What the training loop, the oracles and the algorithms ask of a problem."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from pipeline.data.federated import FederatedData
from pipeline.models import FlatModel

Variables = Mapping[str, Tensor]
"""The server's variables by name; where lower levels are local also "Y" [N, d_y], every client's own."""

Batch = Any
"""One minibatch per client, in whatever form the problem itself understands."""


class Problem(Protocol):
    """What the training loop asks of every problem."""

    @property
    def clients(self) -> int:
        """N."""
        ...

    def client_weights(self, variables: Variables) -> Tensor | None:
        """How much each client is trusted, [N]; None if the variables hold no such weights."""
        ...


class ImageProblem(Problem, Protocol):
    """A problem on federated images, whose variables make a network that can be served and tested."""

    @property
    def model(self) -> FlatModel: ...

    @property
    def data(self) -> FederatedData: ...

    def network(self, variables: Variables) -> Tensor:
        """The served network's parameters, [model.d]."""
        ...

    @property
    def measures(self) -> tuple[str, ...]:
        """Names of what this problem measures at evaluations, besides validation loss and test accuracy."""
        ...

    def measure(self, variables: Variables) -> dict[str, float]:
        """A number for each of `measures`."""
        ...


@runtime_checkable
class ClientHeldUpper(Protocol):
    """Of an image problem whose upper level is not the server's validation loss."""

    def upper_value(self, variables: Variables) -> float:
        """The upper loss on all its data, recorded as `validation_loss`."""
        ...


@runtime_checkable
class PersonalNetworks(ImageProblem, Protocol):
    """A problem whose clients keep parts of the network: each clean client's own network is tested, on the test samples
    of the client's labels, and what is reported is the mean over these k clients."""

    @property
    def tested_labels(self) -> list[list[int]]:
        """Of each of the k clients."""
        ...

    def tested_scores(self, variables: Variables, X: Tensor) -> Tensor:
        """Logits [k, B, classes] of the images X [B, C, H, W] under each of the k networks."""
        ...


@runtime_checkable
class NewTasks(ImageProblem, Protocol):
    """A problem that learns a body, x: the test is on tasks of classes that no client trains on, each with a last layer
    fitted to it, and what is served is the body, which answers features."""

    def answers_on_new_tasks(self, variables: Variables, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [m, ways] and classes within their tasks [m], on tasks made of images as stored and their labels."""
        ...


class BilevelProblem(Problem, Protocol):
    """min_x F(x, y*(x)), y*(x) = argmin_y G(x, y);  F = sum_i p_i f_i,  G = sum_i p_i g_i  (lower level global), or,
    where `local_lower`, min_x sum_i p_i f_i(x, y_i*(x)) with y_i*(x) = argmin_y g_i(x, y): one y per client."""

    @property
    def upper_dimension(self) -> int:
        """d_x."""
        ...

    @property
    def lower_dimension(self) -> int:
        """d_y."""
        ...

    @property
    def client_probabilities(self) -> Tensor:
        """p, [N], sums to 1."""
        ...

    @property
    def local_lower(self) -> bool:
        """One y per client."""
        ...

    @property
    def server_upper(self) -> bool:
        """f_i = f_0, of the server's own data: the server itself can add its gradient."""
        ...

    def initial_upper(self, seed: int) -> Tensor:
        """x_1, [d_x]."""
        ...

    def initial_lower(self, seed: int) -> Tensor:
        """y_1, [d_y]; of every client, where lower levels are local."""
        ...

    def project_upper(self, x: Tensor) -> Tensor:
        """Onto the upper variable's set; identity for most."""
        ...

    def draw_upper(self, stream: int, clients: Tensor, size: int) -> Batch:
        """A minibatch of the f-data for each of the clients [n], from the random stream (a randomness.key)."""
        ...

    def draw_lower(self, stream: int, clients: Tensor, size: int) -> Batch:
        """A minibatch of the g-data, likewise."""
        ...

    def upper_losses(self, X: Tensor, Y: Tensor, batch: Batch) -> Tensor:
        """f_i(X_i, Y_i; batch_i), [n]; X [n, d_x], Y [n, d_y]; differentiable in both."""
        ...

    def lower_losses(self, X: Tensor, Y: Tensor, batch: Batch) -> Tensor:
        """g_i(X_i, Y_i; batch_i), [n]."""
        ...

    def select(self, batch: Batch, i: int) -> Batch:
        """The batch of its i-th client alone (leading dimension 1)."""
        ...


class WeightingProblem(Problem, Protocol):
    """min_x f_0(w*(x)) over the simplex, w*(x) = argmin_w sum_i x_i f_i(w)."""

    @property
    def one_by_one(self) -> bool:
        """Whether derivatives of one client after the other are faster here than a batched pass."""
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
        """The weights you would choose knowing which clients are clean, [N]."""
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


class LocalProblem(Problem, Protocol):
    """What methods with local steps ask: losses of every client at its own parameters."""

    @property
    def dimension(self) -> int:
        """d."""
        ...

    @property
    def samples(self) -> Tensor:
        """Training samples of each client, [N]."""
        ...

    @property
    def one_by_one(self) -> bool:
        """Whether gradients of one client after the other are faster here than a batched pass."""
        ...

    def initial(self, seed: int) -> Tensor:
        """theta^0, [d]."""
        ...

    def draw(self, stream: int, clients: Tensor, size: int) -> Batch:
        """A minibatch of `size` samples with replacement for each of the clients [n]."""
        ...

    def take(self, stream: int, clients: Tensor, positions: Tensor, present: Tensor | None = None) -> Batch:
        """The samples at `positions` [n, B], each counted from 0 within its client; those that are not `present` (bool
        [n, B]) do not count. The stream serves whatever else is random about a sample."""
        ...

    def losses(self, w: Tensor, batch: Batch) -> Tensor:
        """f_i(w; B_i) for each client of the batch, [n], all at one w [d]; differentiable in w."""
        ...

    def losses_each(self, W: Tensor, batch: Batch) -> Tensor:
        """f_i(W_i; B_i) for each client of the batch, [n], each at its own row of W [n, d]; differentiable in W."""
        ...

    def select(self, batch: Batch, i: int) -> Batch:
        """The batch of its i-th client alone."""
        ...

    def part(self, batch: Batch, rows: slice) -> Batch:
        """The batch of some of its clients."""
        ...


@runtime_checkable
class WeightedLocalProblem(LocalProblem, Protocol):
    """A local problem whose server has a validation loss, so that client weights can be learned."""

    @property
    def oracle_weights(self) -> Tensor:
        """The weights you would choose knowing which clients are clean, [N]."""
        ...

    def draw_validation(self, stream: int) -> Batch:
        """The server's minibatch B_0."""
        ...

    def validation_loss(self, w: Tensor, batch: Batch) -> Tensor:
        """f_0(w; B_0), scalar; differentiable in w."""
        ...
