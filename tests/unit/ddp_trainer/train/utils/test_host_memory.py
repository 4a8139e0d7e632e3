"""Host memory for snapshots: its size, and its locked pages."""

from __future__ import annotations

import ctypes
import mmap

import pytest
import torch

from ddp_trainer.train.checkpoint.snapshot import Snapshot
from ddp_trainer.train.checkpoint.torch_zip_writer import pack
from ddp_trainer.train.utils.host_memory import PageLock, host_memory

ODD_BYTES = (17 << 20) + 1
"""Rounded up to a power of two it would be 32 MiB."""


class CountedLocks(PageLock):
    """Locked pages by address; unlocking reads them first."""

    def __init__(self, error: int = 0) -> None:
        self.error = error
        self.held: dict[int, int] = {}
        self.most_bytes = 0

    def lock(self, address: int, size_bytes: int) -> int:
        assert address % mmap.PAGESIZE == 0
        if not self.error:
            self.held[address] = size_bytes
            self.most_bytes = max(self.most_bytes, sum(self.held.values()))
        return self.error

    def unlock(self, address: int) -> None:
        size_bytes = self.held.pop(address)
        # Ends this process by a signal where the pages have been unmapped before.
        ctypes.string_at(address + size_bytes - 1, 1)


def test_memory_is_rounded_up_to_a_page_and_no_further() -> None:
    locks = CountedLocks()
    memory = host_memory(ODD_BYTES, locks)
    assert memory.numel() == ODD_BYTES
    assert not memory.any()
    assert locks.held == {memory.data_ptr(): (17 << 20) + mmap.PAGESIZE}


def test_pages_are_unlocked_with_the_last_tensor_in_them_and_while_they_are_mapped() -> None:
    locks = CountedLocks()
    memory = host_memory(ODD_BYTES, locks)
    piece = memory[-10:].view(torch.int8)
    del memory
    assert locks.held
    piece.fill_(7)
    assert piece.tolist() == [7] * 10
    del piece
    assert locks.held == {}


def test_a_snapshot_that_grows_never_holds_the_old_memory_beside_the_new() -> None:
    locks = CountedLocks()
    snapshot = Snapshot(torch.device("cpu"), locks)
    snapshot.reserve(ODD_BYTES)
    assert snapshot.capacity_bytes == ODD_BYTES
    taken = snapshot.take(pack({"weights": torch.ones(2 * ODD_BYTES, dtype=torch.uint8)}))
    assert sum(locks.held.values()) == locks.most_bytes == (34 << 20) + mmap.PAGESIZE
    del snapshot
    assert locks.held, "what was taken is still there"
    assert all(bool(copy.all()) for copy in taken.storages)
    del taken
    assert locks.held == {}


def test_without_locked_pages_there_is_a_warning_and_memory_all_the_same() -> None:
    with pytest.warns(UserWarning, match=r"did not lock 17 MiB of host memory for checkpoints \(error 2\)"):
        memory = host_memory(ODD_BYTES, CountedLocks(error=2))
    assert memory.numel() == ODD_BYTES
