"""The small networks. Each is a function (channels, image_size, classes, **options) -> nn.Module.

Input: float images [B, channels, image_size, image_size] with values in [0, 1]; output: logits [B, classes].

ReLU comes after max-pooling: both orders have the same values and the same derivatives, bit for bit (the
maximum of a window is positive if and only if its rectified one is, and then the same entry is picked), but
this one touches a quarter of the numbers. Where entries of a window tie, the derivative is that of the first.
Nothing works in place: derivatives of derivatives need every intermediate value.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from pipeline.models.pooling import MaxPool2x2


class Normalise(nn.Module):
    """(x - mean) / deviation, channel by channel: [B, C, H, W] -> [B, C, H, W]."""

    def __init__(self, means: tuple[float, ...], deviations: tuple[float, ...]) -> None:
        super().__init__()
        self.means, self.deviations = means, deviations

    def forward(self, x: Tensor) -> Tensor:
        mean, deviation = (
            torch.tensor(values, dtype=x.dtype, device=x.device)[:, None, None]
            for values in (self.means, self.deviations)
        )
        return (x - mean) / deviation


def _dense(*widths: int) -> list[nn.Module]:
    """Linear layers of these widths with ReLU between them."""
    if any(isinstance(width, bool) or not isinstance(width, int) or width < 1 for width in widths):
        raise ValueError(f"layer widths must be whole numbers >= 1, not {list(widths[1:-1])}")
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return layers[:-1]


def _two_convolutions(
    channels: int, image_size: int, filters: tuple[int, int], padding: int, dense: tuple[int, ...]
) -> nn.Module:
    """Two of (5x5 convolution, 2x2 max-pooling, ReLU), then dense layers; the first one pads."""
    side = ((image_size + 2 * padding - 4) // 2 - 4) // 2
    if side < 1:
        raise ValueError(f"images of {image_size} x {image_size} are too small for two 5x5 convolutions")
    first, second = filters
    return nn.Sequential(
        *(nn.Conv2d(channels, first, 5, padding=padding), MaxPool2x2(), nn.ReLU()),
        *(nn.Conv2d(first, second, 5), MaxPool2x2(), nn.ReLU()),
        nn.Flatten(),
        *_dense(second * side * side, *dense),
    )


def _normalised(mean_and_std: Sequence[float]) -> list[nn.Module]:
    """The layer, if there is one."""
    if not mean_and_std:
        return []
    numbers = [value for value in mean_and_std if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) != 2 or len(mean_and_std) != 2 or numbers[1] <= 0:
        raise ValueError(f"normalise must be [mean, std] with std > 0, not {list(mean_and_std)}")
    return [Normalise((numbers[0],), (numbers[1],))]


def linear(channels: int, image_size: int, classes: int) -> nn.Module:
    """Multinomial logistic regression with bias: the cross-entropy is convex in its parameters."""
    return mlp(channels, image_size, classes, hidden=())


def mlp(
    channels: int, image_size: int, classes: int, *, hidden: Sequence[int] = (200,), normalise: Sequence[float] = ()
) -> nn.Module:
    """784-200-10 at 28x28 (159,010 parameters): the MNIST network of FedNest and SimFBO.

    normalise: [mean, std] of the pixels, to be subtracted and divided by first; [0.1307, 0.3081] there.
    """
    return nn.Sequential(*_normalised(normalise), nn.Flatten(), *_dense(channels * image_size**2, *hidden, classes))


def mlp3(
    channels: int, image_size: int, classes: int, *, hidden: Sequence[int] = (200, 100), normalise: Sequence[float] = ()
) -> nn.Module:
    """784-200-100-10 at 28x28 (178,110 parameters): the three-layer network of FedNest's experiments."""
    return mlp(channels, image_size, classes, hidden=hidden, normalise=normalise)


def lenet5(channels: int, image_size: int, classes: int) -> nn.Module:
    """LeNet-5 (LeCun et al., 1998) with ReLU and max-pooling; 61,706 parameters for 28x28 grey images.

    It was made for 32x32: smaller images are padded by 2, as in the primal-dual paper's experiments, so that
    28x28 and 32x32 images both end in 16 x 5 x 5 = 400 features.
    """
    return _two_convolutions(channels, image_size, (6, 16), 2 if image_size < 32 else 0, (120, 84, classes))


def cnn(channels: int, image_size: int, classes: int, *, normalise: Sequence[float] = ()) -> nn.Module:
    """SimFBO's "7-layer CNN" for CIFAR-10 (2 convolutions, 2 poolings, 3 dense): 61,156 + 850 parameters.

    LeNet-5 that never pads: ``lenet5`` itself at 32x32, while 28x28 images end in 16 x 4 x 4 = 256 features.
    normalise: as in ``mlp``; the paper's on CIFAR-10 are [0.5, 0.5].
    """
    network = _two_convolutions(channels, image_size, (6, 16), 0, (120, 84, classes))
    return nn.Sequential(*_normalised(normalise), network) if normalise else network


def conv4(channels: int, image_size: int, classes: int, *, width: int = 64, groups: int = 4) -> nn.Module:
    """The network of few-shot learning: four blocks of 3x3 convolution, normalisation, 2x2 max-pooling and ReLU.

    At 28x28 it ends in 64 features (111,936 parameters). GroupNorm(groups) instead of batch normalisation, whose
    statistics would mix clients.
    """
    if image_size < 16:
        raise ValueError(f"images of {image_size} x {image_size} are too small for four poolings")
    layers: list[nn.Module] = []
    for inputs in (channels, width, width, width):
        layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.GroupNorm(groups, width), MaxPool2x2(), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width * (image_size // 16) ** 2, classes))


def lenet_wide(channels: int, image_size: int, classes: int) -> nn.Module:
    """The wide LeNet of the A-FedPD experiments: filters 64, 64, dense 384, 192; no padding.

    At 32x32 in colour 797,962 parameters for 10 classes and 815,332 for 100.
    """
    return _two_convolutions(channels, image_size, (64, 64), 0, (384, 192, classes))
