"""Models of images: a multilayer perceptron, a small convolutional network, ResNet-18 and ResNet-50.

The residual networks are those of "Deep Residual Learning for Image Recognition" (He et al., 2015).

Checkpoints of torchvision's models fit. Names of weights, their initial distribution and the stride in the 3x3
convolution of a bottleneck ("v1.5") are those of torchvision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

import torch
from torch import Tensor, nn

from ddp_workloads.model_registry import at_least, share


class Mlp(nn.Sequential):
    """Hidden layers of one width, each with ReLU and dropout.

    The input is images ``(n, …)``, the output logits ``(n, classes)``.
    """

    def __init__(
        self, *, channels: int, side: int, classes: int, hidden: int = 128, layers: int = 2, dropout: float = 0.2
    ) -> None:
        at_least(1, hidden=hidden, layers=layers)
        share(dropout=dropout)
        width = channels * side * side
        parts: list[nn.Module] = []
        for _ in range(layers):
            parts += [nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(dropout)]
            width = hidden
        super().__init__(*parts, nn.Linear(width, classes))

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, shape ``(n, classes)``. Images of any shape are flattened.

        Args:
            images: Float images, ``(n, …)``.
        """
        return super().forward(torch.flatten(images, 1))  # type: ignore[no-any-return, no-untyped-call] # torch's


class Cnn(nn.Module):
    """Two 3x3 convolutions, each followed by pooling to half the size, and two linear layers.

    The input is images ``(n, channels, side, side)``, or flat ``(n, channels * side * side)``. The output is logits
    ``(n, classes)``.
    """

    def __init__(
        self, *, channels: int, side: int, classes: int, width: int = 32, hidden: int = 128, dropout: float = 0.25
    ) -> None:
        super().__init__()
        at_least(1, width=width, hidden=hidden)
        at_least(4, side=side)
        share(dropout=dropout)
        self._shape = (channels, side, side)
        self.features = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Sequential(
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(2 * width * (side // 4) ** 2, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, shape ``(n, classes)``.

        Args:
            images: Float images, ``(n, channels, side, side)`` or flat ``(n, channels * side * side)``.
        """
        return self.head(self.features(images.view(-1, *self._shape)))  # type: ignore[no-any-return] # a Module's call


_SHRINKS: Final = 32
"""Ratio of the sides of the image and the last feature map.

A feature map of 1x1 gives BatchNorm no variance in a single sample.
"""


def resnet18(*, channels: int, side: int, classes: int) -> nn.Module:
    """Return a ResNet-18, which has 11,689,512 weights at 1,000 classes.

    Args:
        channels: Channels of an image.
        side: Height and width of an image, in pixels; at least 33.
        classes: Number of classes.
    """
    return ResNet(Basic, (2, 2, 2, 2), channels=channels, side=side, classes=classes)


def resnet50(*, channels: int, side: int, classes: int) -> nn.Module:
    """Return a ResNet-50, which has 25,557,032 weights at 1,000 classes.

    Args:
        channels: Channels of an image.
        side: Height and width of an image, in pixels; at least 33.
        classes: Number of classes.
    """
    return ResNet(Bottleneck, (3, 4, 6, 3), channels=channels, side=side, classes=classes)


class Basic(nn.Module):
    """Residual block of two 3x3 convolutions with a shortcut."""

    expansion: ClassVar[int] = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(inputs, width, stride)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return feature maps whose side is ``1/stride`` of the input's.

        Args:
            inputs: Float feature maps, ``(n, inputs, side, side)``.

        Returns:
            Float feature maps, ``(n, width, side / stride, side / stride)``.
        """
        out = self.relu(self.bn1(self.conv1(inputs)))
        out = self.bn2(self.conv2(out))
        return self.relu(out + self.downsample(inputs))  # type: ignore[no-any-return] # a Module's call


class Bottleneck(nn.Module):
    """Residual block with a shortcut: a 3x3 convolution between two of 1x1 that reduce and restore the width."""

    expansion: ClassVar[int] = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = _conv(inputs, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _conv(width, outputs, 1)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(inputs, outputs, stride)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return feature maps whose side is ``1/stride`` of the input's.

        Args:
            inputs: Float feature maps, ``(n, inputs, side, side)``.

        Returns:
            Float feature maps, ``(n, 4 * width, side / stride, side / stride)``.
        """
        out = self.relu(self.bn1(self.conv1(inputs)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return self.relu(out + self.downsample(inputs))  # type: ignore[no-any-return] # a Module's call


class ResNet(nn.Module):
    """ResNet: a stem, four stages of residual blocks, a mean over the pixels and a linear layer.

    The input is images ``(n, channels, side, side)``, or flat. The output is logits ``(n, classes)``.
    """

    def __init__(
        self, block: type[Basic | Bottleneck], depths: Sequence[int], *, channels: int, side: int, classes: int
    ) -> None:
        super().__init__()
        at_least(_SHRINKS + 1, side=side)
        self._shape = (channels, side, side)
        self.conv1 = _conv(channels, 64, 7, 2)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        stages = [_stage(block, 64, 64, depths[0], 1)]
        for number, depth in enumerate(depths[1:], start=1):
            width = 64 << number
            stages.append(_stage(block, width // 2 * block.expansion, width, depth, 2))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512 * block.expansion, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, shape ``(n, classes)``.

        Args:
            images: Float images, ``(n, channels, side, side)`` or flat ``(n, channels * side * side)``.
        """
        out = self.maxpool(self.relu(self.bn1(self.conv1(images.view(-1, *self._shape)))))
        out = self.layer4(self.layer3(self.layer2(self.layer1(out))))
        return self.fc(self.avgpool(out).flatten(1))  # type: ignore[no-any-return] # a Module's call


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    """Return a convolution without bias, because the BatchNorm after it has one."""
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(_conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


def _stage(block: type[Basic | Bottleneck], inputs: int, width: int, depth: int, stride: int) -> nn.Sequential:
    first = block(inputs, width, stride)
    return nn.Sequential(first, *(block(width * block.expansion, width, 1) for _ in range(depth - 1)))
