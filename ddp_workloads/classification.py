"""Base class of tasks that classify images with one label each."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn


class Classification:
    """Loss (cross entropy) and accuracy of image classification."""

    def losses(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the cross entropy of each image, shape ``(n,)``.

        Args:
            model: Maps images to float logits ``(n, classes)``.
            batch: Float images ``(n, …)`` and int64 labels ``(n,)``.
        """
        images, labels = batch
        return nn.functional.cross_entropy(model(images), labels, reduction="none")

    def metrics(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Mapping[str, Tensor]:
        """Return the summed loss, and the number of correctly classified images as ``accuracy``.

        Args:
            model: Maps images to float logits ``(n, classes)``.
            batch: Float images ``(n, …)`` and int64 labels ``(n,)``.

        Returns:
            Scalars on the device: ``loss`` in nats (float) and ``accuracy`` (int64).
        """
        images, labels = batch
        logits = model(images)
        return {
            "loss": nn.functional.cross_entropy(logits, labels, reduction="sum"),
            "accuracy": (logits.argmax(1) == labels).sum(),
        }
