"""A pulse: what a worker is doing now, in a page of memory that others can read whatever became of the worker.

The training thread marks where it is with two stores of a double, no lock and no system call. A thread of the worker
(:mod:`ddp_trainer.launch.in_worker.heartbeat`) adds that it got its turn, and how many collectives were begun. The
launcher reads the page, also of a process that is stopped, holds the GIL or is dead. Times are of the monotonic clock,
which all processes of a machine share.

Standard library only, and loaded by path inside of workers: import nothing of ours here.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from typing import Final

VARIABLE: Final = "DDP_PULSE"
"""Environment variable of a worker: its page. The contract has it as ``Env.PULSE``."""

BYTES: Final = 4096
MAGIC: Final = 20260701.0
"""First cell of a page of this layout."""

# Cells, each a double.
SECTION: Final = 1
"""Number of the section that the training thread is in, from 1; 0 where it has told none."""
SINCE: Final = 2
"""When it entered that section."""
BEAT: Final = 3
"""When the thread of the worker last had its turn."""
HAS_GROUP: Final = 4
"""1 while torch.distributed has a default group of more than one rank, and the thread watches it."""
SEQUENCE: Final = 5
"""Collectives begun in the default group; -1 where torch does not tell."""
TOTAL: Final = 6
"""Collectives begun in all groups."""
ASKED: Final = 7
"""Number of the last question of the launcher: where are you, and in which collective?"""
ANSWERED: Final = 8
"""Number of the last question that was answered."""
SIGNAL: Final = 9
"""The signal at which the worker writes its stacks without needing the GIL; 0 where it has none."""

LAUNCHER: Final = "launcher.sock"
"""Socket in the folder of the pages at which the launcher serves pages about its ranks to this user."""
OUTLINE: Final = b"outline\n"
"""Request there: what the metrics port may show."""
STACKS: Final = b"stacks\n"
"""Request there: all that can be had of the ranks."""

BEAT_SECONDS: Final = 0.25
"""A worker that gets a turn looks at itself so often."""

IMPORTS: Final = ".imports"
"""Behind the path of a page, the file in which its worker leaves the names of what it has imported."""


def create(path: str) -> None:
    """Put a blank page at ``path``, in place of any that a dead worker may still have mapped. Raises OSError."""
    unfinished = f"{path}.new"
    descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        # Without its blocks allocated, a store into the mapping of a file on a full disk is answered by SIGBUS.
        os.posix_fallocate(descriptor, 0, BYTES)
    finally:
        os.close(descriptor)
    cells = open_cells(unfinished, check=False)
    cells[SEQUENCE] = -1.0
    cells[0] = MAGIC
    os.replace(unfinished, path)  # noqa: PTH105 - pathlib costs a worker 10 ms


def open_cells(path: str, *, check: bool = True) -> memoryview[float]:
    """The page at ``path``, mapped to be read and written. Raises OSError; ValueError where it is no such page."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        cells = memoryview(mmap.mmap(descriptor, BYTES)).cast("d")
    finally:
        os.close(descriptor)
    if check and cells[0] != MAGIC:
        raise ValueError(f"{path} is no page of this version.")
    return cells


def marks(environment: Mapping[str, str] = os.environ) -> memoryview[float] | list[float]:
    """Where the training thread of this worker marks its section; leads nowhere without a launcher that asks."""
    path = environment.get(VARIABLE, "")
    if not path:
        return [0.0, 0.0]
    try:
        return open_cells(path)[SECTION : SINCE + 1]
    except (OSError, ValueError):
        return [0.0, 0.0]
