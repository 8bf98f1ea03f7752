"""ResNet-18 with group normalisation: no running statistics, so all its state is in its parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class _Block(nn.Module):
    """Two 3x3 convolutions around an identity, or a 1x1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.GroupNorm(groups, outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.GroupNorm(groups, outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.GroupNorm(groups, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class _GlobalMean(nn.Module):
    """Mean over the pixels: [B, C, H, W] -> [B, C]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def resnet18(channels: int, image_size: int, classes: int, *, groups: int = 2) -> nn.Module:
    """ResNet-18 (He et al., 2016) in its ImageNet form, every batch norm replaced by GroupNorm(groups).

    7x7 stem of stride 2 and max-pooling kept, as in the A-FedPD experiments: for colour images 11,181,642
    parameters with 10 classes, 11,227,812 with 100. Convolutions start as in He et al., 2015 (fan-out).
    """
    layers: list[nn.Module] = [
        nn.Conv2d(channels, 64, 7, 2, padding=3, bias=False),
        nn.GroupNorm(groups, 64),
        nn.MaxPool2d(3, 2, padding=1),
        nn.ReLU(),
    ]
    width = 64
    for outputs in (64, 128, 256, 512):
        layers += [
            _Block(width, outputs, 1 if outputs == 64 else 2, groups),
            _Block(outputs, outputs, 1, groups),
        ]
        width = outputs
    network = nn.Sequential(*layers, _GlobalMean(), nn.Linear(width, classes))
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return network
