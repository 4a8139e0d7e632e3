"""Small convolutional network, as in a first tutorial."""

from __future__ import annotations

from torch import Tensor, nn

from ddp_trainer.train.models.registry import at_least, share


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
