"""Heartbeat page: a worker's section and progress in a shared memory page, readable whatever the worker's state.

The training thread marks its section with two stores of a double, without a lock or a system call. A thread of the
worker (:mod:`ddp_trainer.launch.in_worker.heartbeat`) adds the time at which it last ran, and the number of collectives
begun. The launcher reads the page, even of a process that is stopped, holds the GIL or is dead. Times are seconds of
the monotonic clock, which all processes of a machine share. :func:`create`, :func:`open_page` and :func:`marks` are
the entry points.

Standard library only, and loaded by path inside of workers: do not import modules of this package here.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from typing import Final

VARIABLE: Final = "DDP_HEARTBEAT"
"""Environment variable with the path of a worker's page. :mod:`ddp_trainer.common.constants` has it as
``Env.HEARTBEAT``."""

BYTES: Final = 4096
MAGIC: Final = 20260701.0
"""First cell of a page of this layout."""

# Cells, each a double.
SECTION: Final = 1
"""Number of the training thread's section, from 1; 0 where it has marked none."""
SINCE: Final = 2
"""Time at which the training thread entered the section."""
BEAT: Final = 3
"""Time at which the heartbeat thread of the worker last ran."""
HAS_GROUP: Final = 4
"""1 while torch.distributed has a default group of more than one rank, and the thread watches it."""
SEQUENCE: Final = 5
"""Number of collectives begun in the default group; -1 where torch does not report it."""
TOTAL: Final = 6
"""Number of collectives begun in all groups."""
REQUESTED: Final = 7
"""Number of the launcher's last request for the worker's position and current collective."""
ANSWERED: Final = 8
"""Number of the last request that was answered."""
SIGNAL: Final = 9
"""Signal on which the worker writes its stacks without the GIL; 0 where it has none."""
INIT_SINCE: Final = 10
"""Time at which the worker began to make its first default group; 0 before, and once it has the group."""
WANTED: Final = 11
"""World size that the worker asked torch for; 0 where it is not known."""
LARGEST_GROUP: Final = 12
"""Ranks of the largest default group that the worker has had; 0 before the first."""
HAS_DISTRIBUTED: Final = 13
"""1 once the worker has imported torch.distributed."""

STACKS_BEFORE: Final = ".stacks"
"""Suffix of the file beside a page to which a worker without a group writes its stacks on the signal."""
LAUNCHER: Final = "launcher.sock"
"""Name of the socket, in the folder of the pages, at which the launcher serves its view of the ranks to this user."""
OUTLINE: Final = b"outline\n"
"""Request to the launcher's socket: the facts that the metrics port may show."""
STACKS: Final = b"stacks\n"
"""Request to the launcher's socket: all available facts about the ranks."""

BEAT_SECONDS: Final = 0.25
"""Interval in seconds at which the heartbeat thread inspects its worker."""

IMPORTS: Final = ".imports"
"""Suffix of the file beside a page in which a worker records the names of its imported modules."""


def create(path: str) -> None:
    """Create a blank page at ``path``, replacing any page that a dead worker may still have mapped.

    Raises:
        OSError: If the file cannot be written.
    """
    unfinished = f"{path}.new"
    descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        # Without allocated blocks, a store into the mapping of a file on a full disk raises SIGBUS.
        os.posix_fallocate(descriptor, 0, BYTES)
    finally:
        os.close(descriptor)
    cells = open_page(unfinished, check=False)
    cells[SEQUENCE] = -1.0
    cells[0] = MAGIC
    os.replace(unfinished, path)  # noqa: PTH105 - pathlib costs a worker 10 ms


def open_page(path: str, *, check: bool = True) -> memoryview[float]:
    """Return the page at ``path``, mapped for reading and writing, as cells of doubles.

    Raises:
        OSError: If the page cannot be opened.
        ValueError: If the file is not a page of this version.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        cells = memoryview(mmap.mmap(descriptor, BYTES)).cast("d")
    finally:
        os.close(descriptor)
    if check and cells[0] != MAGIC:
        raise ValueError(f"{path} is not a page of this version.")
    return cells


def marks(environment: Mapping[str, str] = os.environ) -> memoryview[float] | list[float]:
    """Return the cells in which this worker's training thread marks its section.

    Without a launcher that reads them, the cells are a plain list.
    """
    path = environment.get(VARIABLE, "")
    if not path:
        return [0.0, 0.0]
    try:
        return open_page(path)[SECTION : SINCE + 1]
    except (OSError, ValueError):
        return [0.0, 0.0]
