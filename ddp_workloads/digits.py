"""Task ``digits``: 1,797 handwritten digits of 8x8 pixels in ten classes.

The file is scikit-learn's copy of the UCI test set "Optical Recognition of Handwritten Digits" (E. Alpaydin and C.
Kaynak, 1998). It is read without importing scikit-learn, which would import scipy and take a second at every restart.
The split is stratified and fixed: 1,437 training and 360 test samples, 36 of every class, by a seeded order. The entry
point is :class:`Digits`.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import zlib
from array import array
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from ddp_trainer.train.data.sample_order import order
from ddp_trainer.train.data.task import rowwise
from ddp_trainer.train.utils.errors import BadData
from ddp_workloads.classification import Classification
from ddp_workloads.model_registry import build

SIDE: Final = 8
CLASSES: Final = 10
_PIXELS: Final = SIDE * SIDE
_BRIGHTEST: Final = 16
_TEST_PER_CLASS: Final = 36
_SPLIT_SEED: Final = 1797


class LabeledImages:
    """Images, float32 ``(n, 64)`` in 0..1, with labels, int64 ``(n,)``."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images = images
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index], self.labels[index]

    @rowwise
    def batch(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the samples with these indices.

        Args:
            ids: Indices, int64 ``(n,)``.

        Returns:
            Images, float32 ``(n, 64)``, and labels, int64 ``(n,)``.
        """
        return self.images[ids], self.labels[ids]


class Digits(Classification):
    """Classify handwritten digits, by default with a perceptron of two hidden layers."""

    name = "digits/1"

    def __init__(self, file: Path | None = None, *, model: str = "mlp") -> None:
        """Read scikit-learn's file, or another of the same format.

        Raises:
            BadData: The file is missing or damaged.
        """
        self._model = model
        raw = _read(file or find_data_file())
        self._digest = hashlib.sha256(raw).hexdigest()
        self._train, self._test = split(*parse(raw))

    def data_digest(self) -> str:
        """Return the SHA-256 digest of the decompressed file."""
        return self._digest

    def model(self) -> nn.Module:
        """Return the model. The default has 26,122 weights and dropout, so restarts must reproduce random streams."""
        return build(self._model, channels=1, side=SIDE, classes=CLASSES)

    def train_samples(self) -> LabeledImages:
        """Return the 1,437 training images."""
        return self._train

    def test_samples(self) -> LabeledImages:
        """Return the 360 test images."""
        return self._test


def find_data_file() -> Path:
    """Return the path of the file in the installed scikit-learn.

    Raises:
        BadData: scikit-learn is not installed.
    """
    found = importlib.util.find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise BadData(
            "The task 'digits' reads its samples from scikit-learn, which is not installed.",
            hint="Install kubectl-ddp[trainer].",
        )
    return Path(found.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")


def _read(file: Path) -> bytes:
    try:
        return gzip.decompress(file.read_bytes())
    except (OSError, EOFError, zlib.error) as err:
        reason = err.strerror if isinstance(err, OSError) and err.strerror else err
        raise BadData(f"The digits cannot be read from {file}: {reason}.", hint="Reinstall scikit-learn.") from None


def parse(raw: bytes) -> tuple[Tensor, Tensor]:
    """Return images and labels from lines of 64 pixel values (0 to 16) and a label.

    Args:
        raw: Decompressed file, comma-separated.

    Returns:
        Images, float32 ``(n, 64)`` in 0..1, and labels, int64 ``(n,)``.

    Raises:
        BadData: A line has another form.
    """
    try:
        numbers = array("f", map(float, raw.decode().replace("\n", ",").rstrip(",").split(",")))
        rows = torch.frombuffer(numbers, dtype=torch.float32).view(-1, _PIXELS + 1)
    except (ValueError, RuntimeError) as err:
        raise BadData(f"The file of digits is damaged: {err}.", hint="Reinstall scikit-learn.") from None
    return rows[:, :_PIXELS] / _BRIGHTEST, rows[:, _PIXELS].long()


def split(images: Tensor, labels: Tensor) -> tuple[LabeledImages, LabeledImages]:
    """Return training and test samples; the same 36 samples of every class are for the test.

    Args:
        images: Images, float32 ``(n, 64)``.
        labels: Labels, int64 ``(n,)``.
    """
    shuffled = order(len(labels), _SPLIT_SEED, 0)
    test = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(CLASSES):
        of_class = shuffled[labels[shuffled] == label]
        test[of_class[:_TEST_PER_CLASS]] = True
    return LabeledImages(images[~test], labels[~test]), LabeledImages(images[test], labels[test])
