"""Log lines about boards that the aggregator cannot read, one per board and reason. A metric counts the boards."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ddp_trainer.metrics.storage.mmap_directory import read_pod_snapshot
from ddp_trainer.metrics.storage.mmap_store import OtherVersion

LOOK_SECONDS: Final = 1.0


@dataclass(slots=True)
class UnreadableFiles:
    """Log of the unreadable boards of one directory."""

    directory: Path
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    _looked_at: float = float("-inf")
    _told: set[tuple[Path, str]] = field(default_factory=set)

    def check_if_due(self) -> None:
        """Check the boards if a check is due, and report new unreadable ones."""
        if self.clock() - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = self.clock()
        for path, why in read_pod_snapshot(self.directory).stale:
            if (path, str(why)) not in self._told:
                self._told.add((path, str(why)))
                self.say(f"{path} is left out, as ddp_exporter_stale_boards counts: {_reason(why)}.")


def _reason(why: Exception) -> str:
    if isinstance(why, OtherVersion):
        own = importlib.metadata.version("kubectl-ddp")
        return f"another version of kubectl-ddp has written it than {own}, which reads it; install one for both"
    return f"it is damaged ({str(why).removesuffix('.')}), until its process is started again"
