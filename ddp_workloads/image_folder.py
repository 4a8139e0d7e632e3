"""Task ``image-folder``: classify images in one directory per class, as ``FOLDER/class/image.jpg``.

``FOLDER/train`` and ``FOLDER/test`` (or ``val``) are the two splits if they exist. Otherwise a tenth of each class,
chosen by a fixed order, is for the test. Pillow, an optional dependency, decodes images on demand. Training crops a
random part and mirrors half of the images. The draws depend on (seed, epoch, sample), so an image is the same on every
rank, and different in the next epoch. The entry point is :class:`ImageFolder`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import random
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, nn

from ddp_trainer.train.data.sample_order import order
from ddp_trainer.train.utils.errors import BadData, BadSample
from ddp_workloads.classification import Classification
from ddp_workloads.model_registry import build

if TYPE_CHECKING:
    from PIL.Image import Image

SIZE: Final = 64
SUFFIXES: Final = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})

_CHANNELS: Final = 3
_TEST_SHARE: Final = 10
_SPLIT_SEED: Final = 1000
_LEAST_AREA: Final = 0.25
"""Minimum share of an image's area in a random crop; its aspect ratio is at most 4:3."""
_MARGIN: Final = 8 / 7
"""Shorter side of a test image divided by the side of its center crop."""

Labelled = tuple[Path, int]


class Images:
    """Decoded images, float32 ``(3, size, size)`` in -1..1, with labels, int64."""

    def __init__(self, files: Sequence[Labelled], size: int, *, augment: bool) -> None:
        self._files = files
        self._size = size
        self._augment = augment

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        file, label = self._files[index]
        return self._decode_image(file), torch.tensor(label)

    def _decode_image(self, file: Path) -> Tensor:
        from PIL import Image  # noqa: PLC0415 - optional, and slow to import

        try:
            with Image.open(file) as image:
                # Lets the JPEG decoder skip pixels that would be thrown away.
                image.draft("RGB", (2 * self._size, 2 * self._size))
                cut = random_cut(*image.size) if self._augment else center_crop_box(*image.size)
                pixels = image.convert("RGB").resize((self._size, self._size), Image.Resampling.BILINEAR, box=cut)
        except (  # errors of Pillow's decoders
            OSError,
            ValueError,
            SyntaxError,
            struct.error,
            Image.DecompressionBombError,
        ) as err:
            why = err.strerror if isinstance(err, OSError) and err.strerror else "it is not an image, or it is damaged"
            raise BadSample(f"The image {file} cannot be read: {why}.", hint=_SKIP) from None
        # Torch's generator would work too; both are seeded before each sample.
        return _tensor(pixels, mirrored=self._augment and random.random() < 0.5)  # noqa: S311 - no secret


class ImageFolder(Classification):
    """Classify images, by default with a small convolutional network."""

    def __init__(self, *, data: Path, image_size: int = SIZE, model: str = "cnn") -> None:
        """List the folder without decoding images.

        Raises:
            BadData: Pillow is not installed, the folder is missing, or a class has no images in one split.
        """
        if not isinstance(data, Path):
            raise BadData(
                f"The task 'image-folder' cannot read {data}.",
                hint="Give --data a directory, or write shards with ddp_trainer.train.data.shards.write_shards.",
            )
        if importlib.util.find_spec("PIL") is None:
            raise BadData("The task 'image-folder' needs Pillow, which is not installed.", hint=_INSTALL)
        self.name = f"image-folder/{image_size}"
        self._size = image_size
        self._model = model
        self.classes, self._train, self._test = list_splits(data)
        self._digest = _digest(data, [*self._train, *self._test])

    def data_digest(self) -> str:
        """Return the SHA-256 digest of the names, labels and sizes of all files.

        Reading all images at each start would take too long.
        """
        return self._digest

    def model(self) -> nn.Module:
        """Return the model for this number of classes."""
        return build(self._model, channels=_CHANNELS, side=self._size, classes=len(self.classes))

    def train_samples(self) -> Images:
        """Return the training images, randomly cropped and mirrored."""
        return Images(self._train, self._size, augment=True)

    def test_samples(self) -> Images:
        """Return the test images, cropped at the center."""
        return Images(self._test, self._size, augment=False)


def list_splits(folder: Path) -> tuple[list[str], list[Labelled], list[Labelled]]:
    """Return the names of the classes, the training files and the test files.

    Raises:
        BadData: The folder does not exist, or a class is missing or empty.
    """
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise BadData(f"The folder of images {folder} {what}.", hint="Give --data a folder with one folder per class.")
    other = next((folder / name for name in ("test", "val") if (folder / name).is_dir()), None)
    if other is None or not (folder / "train").is_dir():
        classes, files = list_images(folder)
        return classes, *_split(files, len(classes))
    own, others = class_names(folder / "train"), class_names(other)
    for name in sorted(set(own) ^ set(others)):
        lacks = other if name in own else folder / "train"
        raise BadData(f"The class {name!r} is missing in {lacks}.", hint="Let both folders have the same classes.")
    classes, train = list_images(folder / "train")
    return classes, train, list_images(other)[1]


def class_names(folder: Path) -> list[str]:
    """Return the sorted names of the visible subdirectories."""
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def list_images(folder: Path) -> tuple[list[str], list[Labelled]]:
    """Return the sorted names of the classes, and each image with its class number.

    Raises:
        BadData: There are fewer than two classes, or a class has no images.
    """
    classes = class_names(folder)
    if len(classes) < 2:
        found = f"one class only, {classes[0]!r}" if classes else "no classes"
        raise BadData(f"The folder of images {folder} has {found}.", hint="Give it one folder per class, two or more.")
    files: list[Labelled] = []
    for label, name in enumerate(classes):
        of_class = sorted(file for file in (folder / name).rglob("*") if file.suffix.lower() in SUFFIXES)
        if not of_class:
            raise BadData(
                f"The class {name!r} in {folder} has no images.",
                hint=f"Put some there ({', '.join(sorted(SUFFIXES))}), or remove the folder.",
            )
        files += [(file, label) for file in of_class]
    return classes, files


def _split(files: list[Labelled], classes: int) -> tuple[list[Labelled], list[Labelled]]:
    """Take a tenth of each class for the test, at least one image, but none of a class with a single image."""
    test: set[int] = set()
    for label in range(classes):
        of_class = [index for index, (_, other) in enumerate(files) if other == label]
        count = max(len(of_class) // _TEST_SHARE, min(1, len(of_class) - 1))
        test.update(of_class[place] for place in order(len(of_class), _SPLIT_SEED, label)[:count].tolist())
    train_files = [entry for index, entry in enumerate(files) if index not in test]
    return train_files, [entry for index, entry in enumerate(files) if index in test]


def random_cut(width: int, height: int) -> tuple[float, float, float, float]:
    """Return a random crop of at least a quarter of the image: left, top, right, bottom, in pixels."""
    area = width * height * random.uniform(_LEAST_AREA, 1.0)  # noqa: S311 - no secret
    ratio = math.exp(random.uniform(-math.log(4 / 3), math.log(4 / 3)))  # noqa: S311 - no secret
    across, down = min(width, math.sqrt(area * ratio)), min(height, math.sqrt(area / ratio))
    left, top = random.uniform(0, width - across), random.uniform(0, height - down)  # noqa: S311 - no secret
    return left, top, left + across, top + down


def center_crop_box(width: int, height: int) -> tuple[float, float, float, float]:
    """Return the center square, 7/8 of the shorter side: left, top, right, bottom, in pixels.

    >>> center_crop_box(80, 160)
    (5.0, 45.0, 75.0, 115.0)
    """
    side = min(width, height) / _MARGIN
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def _tensor(image: Image, *, mirrored: bool) -> Tensor:
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(image.height, image.width, _CHANNELS)
    channels = pixels.permute(2, 0, 1).float() / 127.5 - 1
    return channels.flip(2) if mirrored else channels.contiguous()


def _digest(folder: Path, files: Sequence[Labelled]) -> str:
    sha = hashlib.sha256()
    for file, label in files:
        sha.update(f"{file.relative_to(folder).as_posix()} {label} {file.stat().st_size}\n".encode())
    return sha.hexdigest()


_SKIP: Final = "Repair or remove it, or give --on-bad-sample skip."
_INSTALL: Final = "Install kubectl-ddp[images]."
