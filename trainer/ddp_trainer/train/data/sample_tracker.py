"""Record of the samples that a run has used, and of how many were repeated or lost.

:class:`SampleTracker` is updated by every committed step and stored in every checkpoint. It therefore describes exactly
the history of the weights that it is stored with. Steps that a crash undid are in neither.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

_SAMPLES_AT_ONCE: Final = 4096
_NUM_BITS: Final = torch.tensor([byte.bit_count() for byte in range(256)])


class SampleTracker:
    """Counts of samples over the whole run, and the samples seen in the current epoch, with one bit for each."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._seen = torch.zeros(-(-samples // 8), dtype=torch.uint8)
        """Bit ``i % 8`` of byte ``i // 8`` is sample ``i``."""
        self._num_seen = 0
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
        """Record the ids of :attr:`_unread`, in time proportional to their number."""
        if not self._unread:
            return
        ids = torch.cat(self._unread)
        self._unread.clear()
        distinct = torch.unique(ids)
        places, bits = distinct >> 3, torch.bitwise_left_shift(1, distinct & 7).to(torch.uint8)
        is_new = (self._seen.index_select(0, places) & bits) == 0
        # Each of these bits occurs once and is not set, so adding it sets it.
        self._seen.index_add_(0, places, bits.mul_(is_new))
        new = int(is_new.sum())
        self._num_seen += new
        self._repeated += len(ids) - new

    @property
    def repeated(self) -> int:
        """Samples that were used again in the same epoch."""
        self._count()
        return self._repeated

    def close_epoch(self) -> None:
        """End the epoch, and count the samples that it did not use as lost."""
        self._count()
        self.lost += self._samples - self._num_seen
        self._num_seen = 0
        self._seen.zero_()

    def state_dict(self) -> dict[str, Any]:
        """Return the state as tensors and numbers only, so that it loads with ``weights_only``.

        ``seen`` is a copy of the bitset: bit ``i % 8`` of byte ``i // 8`` is sample ``i``.
        """
        self._count()
        return {
            "samples": self._samples,
            "seen": self._seen.clone(),
            "committed": self.committed,
            "repeated": self._repeated,
            "lost": self.lost,
            "skipped": self.skipped,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the counts from a checkpoint."""
        seen = state["seen"]
        # A stream without end is as long as the run, and the user may have made the run longer.
        self._samples = max(state["samples"], self._samples)
        self._seen = torch.zeros(-(-self._samples // 8), dtype=torch.uint8)
        self._seen[: len(seen)] = seen
        self._num_seen = int(torch.bincount(seen, minlength=len(_NUM_BITS)) @ _NUM_BITS)
        self.committed = state["committed"]
        self._unread.clear()
        self._repeated = state["repeated"]
        self.lost = state["lost"]
        self.skipped = state["skipped"]
