"""What all tasks have in common whose samples are images with one label each."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn


class Classification:
    """Cross entropy, and the share of images that were recognised."""

    def losses(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Cross entropy of each image."""
        images, labels = batch
        return nn.functional.cross_entropy(model(images), labels, reduction="none")

    def metrics(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Mapping[str, Tensor]:
        """Summed loss, and the number of images that were recognised."""
        images, labels = batch
        logits = model(images)
        return {
            "loss": nn.functional.cross_entropy(logits, labels, reduction="sum"),
            "accuracy": (logits.argmax(1) == labels).sum(),
        }
