"""Directory of a pod's metrics files: their file names, and the choice of the current metrics file of each rank.

:func:`read_pod_snapshot` reads all metrics files of a directory with the state of their processes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ddp_trainer.common.metric_names import MetricLabel
from ddp_trainer.metrics.storage.mmap_store import AGENT, RANK, FileSnapshot, InvalidMetricsFileError, read
from ddp_trainer.metrics.storage.process import ProcessStats, read_process_stats

LOCAL_WORLD_SIZE: Final = "local_world_size"
"""Key in a rank's identity: number of ranks of its pod."""

_RANK_FILE: Final = re.compile(r"rank-\d{1,6}\.board")


def rank_metrics_path(directory: Path, local_rank: int) -> Path:
    """Return the path of a local rank's metrics file."""
    return directory / f"rank-{local_rank}.board"


def agent_metrics_path(directory: Path) -> Path:
    """Return the path of the launcher's metrics file."""
    return directory / "agent.board"


@dataclass(frozen=True, slots=True)
class Slot:
    """A metrics file with the state of its process from ``/proc``."""

    file: FileSnapshot
    vitals: ProcessStats | None
    """State of the process; None if it has ended."""

    @property
    def rank(self) -> int:
        """Global rank; -1 if not reported."""
        return int(self.file.identity.get(MetricLabel.RANK, -1))

    @property
    def local_rank(self) -> int:
        """Rank within the pod; -1 if not reported."""
        return int(self.file.identity.get(MetricLabel.LOCAL_RANK, -1))

    @property
    def local_world_size(self) -> int:
        """Number of ranks of the pod when the process started; 0 if not reported."""
        return int(self.file.identity.get(LOCAL_WORLD_SIZE, 0))


@dataclass(frozen=True, slots=True)
class PodSnapshot:
    """All metrics files of a pod at one moment."""

    agent: Slot | None
    ranks: tuple[Slot, ...]
    """One per rank, in order of local rank."""
    stale: tuple[tuple[Path, Exception], ...]
    """Metrics files that cannot be read, and the errors."""


def read_pod_snapshot(directory: Path) -> PodSnapshot:
    """Read every metrics file of a directory. A missing or unreadable directory has no metrics files."""
    stale: list[tuple[Path, Exception]] = []
    agent: Slot | None = None
    slots: list[Slot] = []
    for path in _metrics_paths(directory):
        is_agent = path == agent_metrics_path(directory)
        try:
            metrics_file = read(path, AGENT if is_agent else RANK)
            slot = Slot(metrics_file, read_process_stats(metrics_file.owner))
            known = is_agent or (slot.rank >= 0 and slot.local_rank >= 0 and slot.local_world_size > 0)
        except FileNotFoundError:
            continue
        except (InvalidMetricsFileError, OSError, ValueError, TypeError) as error:
            stale.append((path, error))
            continue
        if is_agent:
            agent = slot
        elif known:
            slots.append(slot)
    return PodSnapshot(agent, current(slots), tuple(stale))


def current(slots: Iterable[Slot]) -> tuple[Slot, ...]:
    """Return the slots of the current ranks, in order of local rank.

    The newest process holds the current number of ranks of its pod, so slots beyond that number are left over from a
    larger pod. If two slots claim one rank, the newer process owns it: the older one got another rank or has ended.
    """
    newest_first = sorted(slots, key=lambda slot: (slot.vitals is not None, slot.file.owner.start), reverse=True)
    taken: dict[int, Slot] = {}
    for slot in newest_first:
        if slot.local_rank < newest_first[0].local_world_size:
            taken.setdefault(slot.rank, slot)
    return tuple(sorted(taken.values(), key=lambda slot: slot.local_rank))


def rank_metrics_paths(directory: Path) -> list[Path]:
    """Return the paths of all metrics files of ranks; empty if the directory is missing or unreadable."""
    return [path for path in _metrics_paths(directory) if path != agent_metrics_path(directory)]


def _metrics_paths(directory: Path) -> Iterator[Path]:
    try:
        paths = sorted(directory.iterdir())
    except OSError:
        return
    yield from (path for path in paths if _RANK_FILE.fullmatch(path.name) or path == agent_metrics_path(directory))
