"""Task ``text``: predict the next byte of the text in any folder or object store.

Text in an object store, or too large for memory, is read in windows; each rank reads its part of the files.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, cast

import torch
from torch import Tensor, nn

from ddp_trainer.train.data.sample_order import BlockTable, uniform_blocks
from ddp_trainer.train.data.shards.sharded_samples import ShardReader
from ddp_trainer.train.data.task import rowwise
from ddp_trainer.train.storage.object_storage import ObjectStorage, open_storage
from ddp_trainer.train.utils.errors import BadData
from ddp_trainer.train.utils.locations import StorageUrl
from ddp_workloads.model_registry import build

if TYPE_CHECKING:
    from ddp_workloads.gpt import Gpt

BLOCK_BYTES: Final = 1 << 20
_READERS: Final = 16


class StoredWindows:
    """Adjacent windows of text; inputs and targets, int64 ``(window,)`` each."""

    def __init__(self, reader: ShardReader, start: int, stop: int, window: int) -> None:
        """Create the windows of the bytes from ``start`` to ``stop`` of the files."""
        self._reader, self._start, self._window = reader, start, window
        count = (stop - start - 1) // window
        self.blocks: BlockTable = uniform_blocks(torch.tensor([count]), max(1, BLOCK_BYTES // window))
        """Blocks of windows that are read with one request, or two at the border of files."""

    def __len__(self) -> int:
        return self.blocks.samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.decode(self.read_block(index, 1)[0])

    def read_block(self, first: int, count: int) -> list[bytes]:
        """Return the bytes of adjacent windows, with the byte after each.

        Raises:
            BadData: A file is missing or has changed.
            StorageError: It cannot be read.
        """
        window = self._window
        text = self._reader.read_joined(self._start + first * window, count * window + 1)
        return [text[at : at + window + 1] for at in range(0, count * window, window)]

    def decode(self, record: bytes) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets of a window."""
        text = torch.frombuffer(bytearray(record), dtype=torch.uint8).long()
        return text[:-1], text[1:]


@dataclass(frozen=True, slots=True)
class StoredCorpus:
    """Text files of a storage, split into training and test bytes."""

    reader: ShardReader
    """The training files, and after them the test files."""
    train_bytes: int
    sha256: str
    """SHA-256 digest of the names and sizes."""

    def train(self, window: int) -> StoredWindows:
        """Return all windows of the training bytes."""
        return StoredWindows(self.reader, 0, self.train_bytes, window)

    def test(self, window: int, most: int) -> Tensor:
        """Return at most ``most`` windows of the test bytes, evenly spaced: uint8, ``(windows, window + 1)``."""
        windows = StoredWindows(self.reader, self.train_bytes, self.reader.total_bytes, window)
        taken = min(len(windows), most)
        with ThreadPoolExecutor(_READERS, "ddp-test-windows") as threads:
            records = threads.map(lambda number: windows.read_block(number * len(windows) // taken, 1)[0], range(taken))
            return torch.frombuffer(bytearray(b"".join(records)), dtype=torch.uint8).view(taken, window + 1)


def list_corpus(
    storage: ObjectStorage, *, least: int, is_text: Callable[[PurePosixPath], bool], is_for_test: Callable[[str], bool]
) -> StoredCorpus:
    """Return the text files below a URL, without reading them.

    Args:
        storage: The files.
        least: Least number of bytes of either split. If a split has fewer, the test is the last tenth of all text.
        is_text: Returns whether a file is used, by its path.
        is_for_test: Returns whether a file is for the test, by its name.

    Raises:
        BadData: There is too little text.
        StorageError: The files cannot be listed.
    """
    files = [file for file in storage.list() if file.size_bytes and is_text(PurePosixPath(file.key))]
    sha = hashlib.sha256("".join(f"{file.key} {file.size_bytes}\n" for file in files).encode())
    files.sort(key=lambda file: is_for_test(file.key))
    train_bytes = sum(file.size_bytes for file in files if not is_for_test(file.key))
    reader = ShardReader(storage, files)
    if min(train_bytes, reader.total_bytes - train_bytes) < least:
        train_bytes = reader.total_bytes - max(reader.total_bytes // 10, least)
    if train_bytes < least:
        raise BadData(
            f"{storage.url} has {reader.total_bytes} bytes of text in {len(files)} files, and two windows need "
            f"{2 * least}.",
            hint="Give --data a place with more text, or a smaller --window.",
        )
    return StoredCorpus(reader, train_bytes, sha.hexdigest())


VOCABULARY: Final = 256
WINDOW: Final = 128
MOST_TEST_WINDOWS: Final = 2048
"""Maximum number of windows in an evaluation, evenly spaced over all test bytes. More would take longer without a
better estimate."""

MOST_BYTES: Final = 1 << 30
"""Largest folder that is read into memory."""
SHOWN_BYTES: Final = 120
SHOWN_START: Final = b"def "
TEMPERATURE: Final = 0.8

_TEST_SHARE: Final = 10
_SNIFF_BYTES: Final = 8192
_SKIPPED: Final = frozenset({"__pycache__", "site-packages", "dist-packages", "node_modules"})
"""Directories that tools create; their text was not written by the user."""


class Windows:
    """Windows of text, adjacent or evenly spaced; inputs and targets, int64 ``(n, window)`` each."""

    def __init__(self, text: Tensor, window: int, *, most: int | None = None) -> None:
        """Create the windows.

        Args:
            text: uint8 ``(bytes,)``, at least one byte longer than a window.
            window: Length of a window, in bytes.
            most: Maximum number of windows; None for all.
        """
        self._text = text
        self._offsets = torch.arange(window + 1)
        count = (len(text) - 1) // window
        taken = count if most is None else min(count, most)
        self._starts = torch.arange(taken) * count // max(taken, 1) * window

    @classmethod
    def of_rows(cls, rows: Tensor) -> Windows:
        """Return the windows in the rows of a tensor, each with the byte after it: uint8 ``(n, window + 1)``.

        Args:
            rows: uint8, shape ``(n, window + 1)``.
        """
        windows = cls(rows.reshape(-1), rows.shape[1] - 1, most=0)
        windows._starts = torch.arange(len(rows)) * rows.shape[1]
        return windows

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, targets = self.batch(torch.tensor([index]))
        return inputs[0], targets[0]

    @rowwise
    def batch(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the windows with these indices.

        Args:
            ids: Indices, int64, shape ``(n,)``.

        Returns:
            Inputs and targets, int64, shape ``(n, window)`` each.
        """
        taken = self._text[self._starts[ids].unsqueeze(1) + self._offsets].long()
        return taken[:, :-1], taken[:, 1:]


@dataclass(frozen=True, slots=True)
class Corpus:
    """Text of a folder, split into training and test bytes."""

    train: Tensor
    """Training bytes, uint8."""
    test: Tensor
    """Test bytes, uint8."""
    sha256: str
    """SHA-256 digest of names and contents."""


class Text:
    """Predict the next byte."""

    def __init__(self, *, data: Path | StorageUrl, window: int = WINDOW, model: str = "gpt") -> None:
        """Read the folder, or list the files where they are not read into memory.

        Raises:
            BadData: The folder is missing, has no text, or has too little for one window in either split.
            StorageError: The store cannot be read, or its package is missing.
        """
        self.name = f"text/{window}"
        self._window = window
        self._model = model
        self._corpus = open_corpus(data, least=window + 1)

    def data_digest(self) -> str:
        """Return the SHA-256 digest of the names and contents of all files; of names and sizes if they are not read."""
        return self._corpus.sha256

    def model(self) -> nn.Module:
        """Return the model, by default a GPT of four layers with 0.8 million weights."""
        return build(self._model, vocabulary=VOCABULARY, window=self._window)

    def init_weight(self, model: nn.Module, name: str, weight: Tensor) -> None:
        """Fill one weight of the GPT, which is the only model for text."""
        cast("Gpt", model).init_weight(name, weight)

    def train_samples(self) -> Windows | StoredWindows:
        """Return all windows of the training bytes."""
        if isinstance(self._corpus, StoredCorpus):
            return self._corpus.train(self._window)
        return Windows(self._corpus.train, self._window)

    def test_samples(self) -> Windows:
        """Return windows of the test bytes, at most :data:`MOST_TEST_WINDOWS`."""
        if isinstance(self._corpus, StoredCorpus):
            return Windows.of_rows(self._corpus.test(self._window, MOST_TEST_WINDOWS))
        return Windows(self._corpus.test, self._window, most=MOST_TEST_WINDOWS)

    def losses(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the cross entropy of each window, in nats per byte, shape ``(n,)``.

        Args:
            model: Returns logits ``(n, window, 256)``.
            batch: Inputs and targets, int64, shape ``(n, window)`` each.
        """
        inputs, targets = batch
        logits = model(inputs)
        return nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none").mean(1)

    def metrics(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Mapping[str, Tensor]:
        """Return sums over the windows: loss in nats per byte, loss in bits per byte, and accuracy per byte.

        Args:
            model: Returns logits ``(n, window, 256)``.
            batch: Inputs and targets, int64, shape ``(n, window)`` each.

        Returns:
            Name → scalar, float.
        """
        inputs, targets = batch
        logits = model(inputs).transpose(1, 2)
        loss = nn.functional.cross_entropy(logits, targets, reduction="none").mean(1).sum()
        foretold = (logits.argmax(1) == targets).double().mean(1).sum()
        return {"loss": loss, "bits_per_byte": loss / math.log(2), "accuracy": foretold}

    def show(self, model: nn.Module) -> str:
        """Return the model's continuation of :data:`SHOWN_START`."""
        return "The model writes:\n" + generate_text(model, SHOWN_START, SHOWN_BYTES, self._window)


def generate_text(model: nn.Module, start: bytes, count: int, window: int) -> str:
    """Return ``start`` and ``count`` bytes drawn from the model's predictions; deterministic.

    The bytes are drawn at :data:`TEMPERATURE`, because the long tail of a small model's distribution is noise.

    Args:
        model: Returns logits ``(batch, length, 256)``.
        start: First bytes.
        count: Number of bytes to draw.
        window: Maximum length of the model's input, in bytes. The model is causal, so zeros after the text change
            nothing. All inputs have one length: a new one costs a compilation, or the layout of each operation.
    """
    chance = torch.Generator().manual_seed(0)
    device = next(model.parameters()).device
    written = list(start)
    length = min(window, len(start) + count)
    for _ in range(count):
        seen = written[-length:]
        padded = torch.tensor([seen + [0] * (length - len(seen))], device=device)
        logits = model(padded)[0, len(seen) - 1].float().cpu()
        written.append(int(torch.multinomial((logits / TEMPERATURE).softmax(0), 1, generator=chance)))
    return bytes(written).decode(errors="replace")


def open_corpus(place: Path | StorageUrl, *, least: int) -> Corpus | StoredCorpus:
    """Return the text of a folder, in memory unless it is larger than :data:`MOST_BYTES`, or of a URL.

    Raises:
        BadData: There is no text, or too little.
        StorageError: The store cannot be read.
    """
    if isinstance(place, Path) and _is_small(place):
        return read(place, least=least)
    return list_corpus(open_storage(place), least=least, is_text=_is_text_file, is_for_test=_is_for_test)


def _is_small(folder: Path) -> bool:
    """Return whether a folder, or what is in its place, is read into memory."""
    total = 0
    for directory, _, names in os.walk(folder):
        total += sum(os.lstat(Path(directory, name)).st_size for name in names)
        if total > MOST_BYTES:
            return False
    return True


def _is_text_file(file: PurePosixPath) -> bool:
    """Return whether a stored file is text, by its name alone."""
    return not any(part.startswith(".") or part in _SKIPPED for part in file.parts)


def _is_for_test(name: str) -> bool:
    return hashlib.sha256(name.encode()).digest()[0] % _TEST_SHARE == 0


def read(folder: Path, *, least: int) -> Corpus:
    """Read all text below a folder.

    Raises:
        BadData: The folder is missing, a file cannot be read, or a split has fewer than ``least`` bytes.
    """
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise BadData(f"The folder of text {folder} {what}.", hint="Give --data a folder with text files.")
    sha = hashlib.sha256()
    sides = bytearray(), bytearray()
    for name, content in _files(folder):
        sha.update(f"{name} {len(content)}\n".encode())
        sha.update(content)
        sides[_is_for_test(name)].extend(content)
    train, test = sides
    if min(len(train), len(test)) < least:
        everything = train + test
        size = len(everything) - max(len(everything) // _TEST_SHARE, least)
        train, test = everything[: max(size, 0)], everything[max(size, 0) :]
    if len(train) < least or len(test) < least:
        found = len(train) + len(test)
        raise BadData(
            f"The folder {folder} has {found} bytes of text, and two windows need {2 * least}.",
            hint="Give --data a folder with more text, or a smaller --window.",
        )
    return Corpus(_tensor(train), _tensor(test), sha.hexdigest())


def _tensor(content: bytearray) -> Tensor:
    return torch.frombuffer(content, dtype=torch.uint8)


def _files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each text file, by name. Hidden files and files with an early zero byte are skipped."""
    for directory, below, names in os.walk(folder):
        below[:] = sorted(name for name in below if not name.startswith(".") and name not in _SKIPPED)
        for name in sorted(names):
            file = Path(directory, name)
            if name.startswith(".") or not file.is_file():
                continue
            try:
                with file.open("rb") as stream:
                    start = stream.read(_SNIFF_BYTES)
                    if b"\0" in start:
                        continue
                    content = start + stream.read()
            except OSError as err:
                raise BadData(f"The text {file} cannot be read: {err.strerror}.", hint=_READABLE) from None
            yield file.relative_to(folder).as_posix(), content


_READABLE: Final = "Make it readable, or take it out of the folder."
