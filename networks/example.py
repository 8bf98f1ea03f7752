"""A custom network: any function (channels, image_size, classes, **options) -> torch.nn.Module.

No batch normalisation and no dropout: the network must be a function of its parameters and the images alone.
"""

from torch import nn


def small(channels: int, image_size: int, classes: int, width: int = 8) -> nn.Module:
    """One strided convolution and a linear layer. `model.options: {width: 16}` changes the width."""
    side = (image_size - 5) // 2 + 1
    return nn.Sequential(
        nn.Conv2d(channels, width, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(width * side**2, classes)
    )
