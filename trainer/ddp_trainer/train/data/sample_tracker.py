"""Which samples were seen, and how many were repeated or lost: the run's own account of itself.

The ledger is part of every checkpoint, so it always describes the history that led to the weights it is stored
with. Steps that were done and then lost with a crash are in no surviving ledger, as they are in no surviving weight.
"""

from __future__ import annotations

from typing import Final, TypedDict

import torch
from torch import Tensor

_BITS = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)

_SAMPLES_AT_ONCE: Final = 4096


class LedgerState(TypedDict):
    """What a checkpoint holds of a ledger."""

    samples: int
    seen: Tensor
    """Bitset, uint8: bit ``i % 8`` of byte ``i // 8`` is sample ``i``."""
    committed: int
    repeated: int
    lost: int
    skipped: int


class SampleTracker:
    """Counts over the whole run, and the samples seen in the epoch under way."""

    def __init__(self, samples: int) -> None:
        self._seen = torch.zeros(samples, dtype=torch.bool)
        self._unread: list[Tensor] = []
        """Committed steps that are not in the counts yet: many at once cost hardly more than one."""
        self._repeated = 0
        self.committed = 0
        """Samples that went into a committed step."""
        self.lost = 0
        """Samples that a finished epoch never saw."""
        self.skipped = 0
        """Committed samples that could not be read, and counted with weight 0."""

    def commit(self, ids: Tensor, skipped: int = 0) -> None:
        """A step consumed these samples, and could not read so many of them."""
        self.skipped += skipped
        count = ids.numel()
        self.committed += count
        self._unread.append(ids)
        if len(self._unread) * count >= _SAMPLES_AT_ONCE:
            self._count()

    def _count(self) -> None:
        if not self._unread:
            return
        ids = torch.cat(self._unread)
        self._unread.clear()
        before = int(self._seen.sum())
        self._seen[ids] = True
        self._repeated += len(ids) - (int(self._seen.sum()) - before)

    @property
    def repeated(self) -> int:
        """Samples that an epoch had seen before."""
        self._count()
        return self._repeated

    def close_epoch(self) -> None:
        """The epoch is over: what it has not seen is lost."""
        self._count()
        self.lost += len(self._seen) - int(self._seen.sum())
        self._seen.zero_()

    def state_dict(self) -> LedgerState:
        """Tensors and numbers only, so that it loads with ``weights_only``."""
        self._count()
        return {
            "samples": len(self._seen),
            "seen": pack(self._seen),
            "committed": self.committed,
            "repeated": self.repeated,
            "lost": self.lost,
            "skipped": self.skipped,
        }

    def load_state_dict(self, state: LedgerState) -> None:
        """Go on from a stored account."""
        seen = unpack(state["seen"], state["samples"])
        # A stream without end is as long as the run, which may have been made longer.
        self._seen = torch.zeros(max(len(seen), len(self._seen)), dtype=torch.bool)
        self._seen[: len(seen)] = seen
        self.committed = state["committed"]
        self._unread.clear()
        self._repeated = state["repeated"]
        self.lost = state["lost"]
        self.skipped = state.get("skipped", 0)


def pack(flags: Tensor) -> Tensor:
    """Eight flags to a byte."""
    padded = torch.zeros(-(-len(flags) // 8) * 8, dtype=torch.uint8)
    padded[: len(flags)] = flags
    return (padded.view(-1, 8) * _BITS).sum(1, dtype=torch.uint8)


def unpack(packed: Tensor, length: int) -> Tensor:
    """The inverse of :func:`pack`."""
    return (packed.unsqueeze(1) & _BITS).ne(0).view(-1)[:length].clone()
