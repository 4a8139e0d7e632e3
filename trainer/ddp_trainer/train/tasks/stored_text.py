"""Text in an object store, or too large for memory: windows that each rank reads from its part of the files.

The files are taken as one sequence of bytes, in the order of their names, as in memory. :class:`StoredWindows` are the
training samples of :class:`~ddp_trainer.train.tasks.text.Text`. Test windows are few, and are read into memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

import torch
from torch import Tensor

from ddp_trainer.train.data.sample_order import BlockTable, uniform_blocks
from ddp_trainer.train.data.shards.sharded_samples import ShardReader
from ddp_trainer.train.storage.object_storage import ObjectStorage
from ddp_trainer.train.utils.errors import BadData

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
