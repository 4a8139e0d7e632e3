"""Record of the samples that a run has used, and of how many were repeated or lost.

:class:`SampleTracker` is updated by every committed step and stored in every checkpoint. It therefore describes exactly
the history of the weights that it is stored with. Steps that a crash undid are in neither.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

_BITS = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)

_SAMPLES_AT_ONCE: Final = 4096


class SampleTracker:
    """Counts of samples over the whole run, and the samples seen in the current epoch."""

    def __init__(self, samples: int) -> None:
        self._seen = torch.zeros(samples, dtype=torch.bool)
        self._unread: list[Tensor] = []
        """Sample ids of committed steps that are not counted yet. Counting many costs hardly more than counting one."""
        self._repeated = 0
        self.committed = 0
        """Samples in committed steps."""
        self.lost = 0
        """Samples that a finished epoch did not use."""
        self.skipped = 0
        """Committed samples that could not be read and had weight 0."""

    def commit(self, ids: Tensor, skipped: int = 0) -> None:
        """Record the samples of a committed step.

        Args:
            ids: Sample ids, int64, shape ``(n,)``.
            skipped: Number of these samples that could not be read.
        """
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
        """Samples that were used again in the same epoch."""
        self._count()
        return self._repeated

    def close_epoch(self) -> None:
        """End the epoch, and count the samples that it did not use as lost."""
        self._count()
        self.lost += len(self._seen) - int(self._seen.sum())
        self._seen.zero_()

    def state_dict(self) -> dict[str, Any]:
        """Return the state as tensors and numbers only, so that it loads with ``weights_only``.

        ``seen`` is a bitset, as of :func:`pack`.
        """
        self._count()
        return {
            "samples": len(self._seen),
            "seen": pack(self._seen),
            "committed": self.committed,
            "repeated": self.repeated,
            "lost": self.lost,
            "skipped": self.skipped,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the counts from a checkpoint."""
        seen = unpack(state["seen"], state["samples"])
        # A stream without end is as long as the run, and the user may have made the run longer.
        self._seen = torch.zeros(max(len(seen), len(self._seen)), dtype=torch.bool)
        self._seen[: len(seen)] = seen
        self.committed = state["committed"]
        self._unread.clear()
        self._repeated = state["repeated"]
        self.lost = state["lost"]
        self.skipped = state["skipped"]


def pack(flags: Tensor) -> Tensor:
    """Return boolean flags as a bitset.

    Args:
        flags: bool, shape ``(n,)``.

    Returns:
        uint8, shape ``(ceil(n / 8),)``. Bit ``i % 8`` of byte ``i // 8`` is flag ``i``.
    """
    padded = torch.zeros(-(-len(flags) // 8) * 8, dtype=torch.uint8)
    padded[: len(flags)] = flags
    return (padded.view(-1, 8) * _BITS).sum(1, dtype=torch.uint8)


def unpack(packed: Tensor, length: int) -> Tensor:
    """Return the first ``length`` flags of a bitset; the inverse of :func:`pack`.

    Args:
        packed: Bits, uint8, shape ``(ceil(length / 8),)``.
        length: Number of flags.

    Returns:
        Flags, bool, shape ``(length,)``.
    """
    return (packed.unsqueeze(1) & _BITS).ne(0).view(-1)[:length].clone()
