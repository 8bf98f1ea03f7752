"""Consensus on images: one model for all clients, the minimiser of the mean of the clients' losses.

    min_theta (1/N) sum_i f_i(theta)      (specification a_fedpd, section 1; N is its C)

f_i is the mean cross-entropy on client i's training samples, on which there may be a random transformation of the
images [specification, section 4.1]: with probability 0.5 a horizontal flip, and with probability 0.5 a random crop of
the same size after padding by 4 pixels on every side. Padding comes after normalisation there, so it is the mean
colour: `fill` is what it is before. The draws are counter-based, by client and place in the minibatch.

The model that is served and tested is the one that the method's own algorithm returns: theta, but theta-bar of
A-FedPD, whose Algorithm 1 returns the "global average model" (item A10 of the specification). The accuracy of both is
measured where a method has the two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from pipeline import randomness
from pipeline.config.spec import Auto, Section, param
from pipeline.models import Normalise
from pipeline.problems.base import Variables
from pipeline.problems.forms import Facts, Form, Formulation, Given
from pipeline.problems.images import ImageBatch, Images, logits

MARGIN = 4
"""Pixels of padding around an image before a crop."""


@dataclass(frozen=True)
class ConsensusSettings(Section):
    """One model for all clients: minimises the mean of their training losses."""

    augment: bool | Auto = param(
        "auto",
        "random flips and crops of training images, on the device; auto = on for colour images, off elsewhere",
    )
    normalise: bool | Auto = param(
        "auto", "channels to mean 0 and deviation 1, within the network; auto = on for colour images, off elsewhere"
    )


@dataclass(frozen=True)
class Consensus(Images):
    """augment: transform training images. fill: per channel, what padding is filled with. served: the server's
    variable that is the model."""

    augment: bool = False
    fill: tuple[float, ...] = ()
    served: str = "w"

    def network(self, variables: Variables) -> Tensor:
        return variables[self.served]

    @property
    def measures(self) -> tuple[str, ...]:
        kind = "accuracy" if self.data.classes else "rmse"
        return (f"average_{kind}", f"shifted_{kind}")

    def measure(self, variables: Variables) -> dict[str, float]:
        """average_accuracy: test accuracy of theta-bar, the mean of the models that came back last. shifted_accuracy:
        of theta, that mean shifted by the duals, which is handed out. Of methods that have the two. Where targets are
        numbers, the root of the mean squared error instead."""
        if "w_bar" not in variables:
            return {}
        return {
            name: self._tested(w) for name, w in zip(self.measures, (variables["w_bar"], variables["w"]), strict=True)
        }

    def _tested(self, w: Tensor) -> float:
        scores, y = logits(self.model, self.data, w, self.data.test_images), self.data.test_labels
        if not self.data.classes:
            return self.data.unit.spread * float((scores[:, 0] - y).square().double().mean()) ** 0.5
        return float((scores.argmax(1) == y).double().mean())

    def take(self, stream: int, clients: Tensor, positions: Tensor, present: Tensor | None = None) -> ImageBatch:
        X, *rest = super().take(stream, clients, positions, present)
        if self.augment:
            u = randomness.uniform(randomness.key(stream, "augment"), clients, 4 * X.shape[1])
            X = augmented(X.flatten(0, 1), u.view(-1, 4), self.fill).view(X.shape)
        return X, *rest


def augmented(X: Tensor, u: Tensor, fill: tuple[float, ...] = ()) -> Tensor:
    """Images [M, C, H, W], each flipped if u_0 < 1/2 and, if u_1 < 1/2, moved by (u_2, u_3) within the padding.

    u: [M, 4], uniform on [0, 1). fill: per channel, the padding's value; none = 0.
    """
    M, C, H, W = X.shape
    flip, crop = (u[:, :2] < 0.5).unbind(1)
    moves = (u[:, 2:] * (2 * MARGIN + 1)).long()
    down, right = torch.where(crop[:, None], moves, MARGIN).unbind(1)
    row = torch.arange(H, device=X.device) + down[:, None]
    column = torch.arange(W, device=X.device)
    column = torch.where(flip[:, None], W - 1 - column, column) + right[:, None]
    background = X.new_tensor(fill or (0.0,))[:, None, None]
    padded = background.expand(M, C, H + 2 * MARGIN, W + 2 * MARGIN).clone()
    padded[:, :, MARGIN:-MARGIN, MARGIN:-MARGIN] = X
    image, channel = (torch.arange(count, device=X.device) for count in (M, C))
    return padded[image[:, None, None, None], channel[:, None, None], row[:, None, :, None], column[:, None, None, :]]


def resolve(settings: ConsensusSettings, facts: Facts) -> ConsensusSettings:
    """Colour images are augmented and normalised."""
    augment = facts.colour if settings.augment == "auto" else settings.augment
    normalise = facts.colour if settings.normalise == "auto" else settings.normalise
    return replace(settings, augment=augment, normalise=normalise)


def build(settings: ConsensusSettings, given: Given) -> Consensus:
    """Normalisation is the network's first layer, so that a served network takes plain images; padding
    is then the mean colour, which that layer turns into 0."""
    model, info = given.model, given.info
    if settings.normalise is True:
        model = model.after(partial(Normalise, info.means, info.deviations))
    fill = info.means if settings.normalise is True else ()
    return Consensus(model, given.data, augment=settings.augment is True, fill=fill, served=given.params.hyper.served)


CONSENSUS = Formulation(
    name="consensus",
    summary="one model that minimises the mean of the clients' losses",
    settings=ConsensusSettings,
    offers=(Form.LOCAL_MEAN,),
    build=build,
    resolve=resolve,
)
