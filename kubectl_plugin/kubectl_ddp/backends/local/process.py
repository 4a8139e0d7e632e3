"""Processes of this machine: identity beyond the reusable pid, and membership in a container.

Linux only, because of ``/proc``. A container here is a process with all its descendants. A process belongs to it if it
descends from it, is in its session, or has its mark in the environment. Orphaned members become children of the engine,
which is a child subreaper.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

MARK: Final = "KUBECTL_DDP_CONTAINER"
"""Environment variable inherited by every process of a container; its value is the container's id."""

_PROC: Final = "/proc"


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of one process, distinct from later processes with the same pid."""

    pid: int
    started: int
    """Clock ticks between boot and the start of the process."""
    boot: str
    host: str

    @classmethod
    def of(cls, pid: int) -> Identity:
        """Return the identity of a live process.

        Raises:
            ProcessLookupError: If the process does not exist.
        """
        return cls(pid, _stat(pid).started, boot_id(), os.uname().nodename)

    @classmethod
    def from_json(cls, document: Any) -> Identity | None:
        """Parse the result of :meth:`to_json`; return None for anything else."""
        try:
            return cls(int(document["pid"]), int(document["started"]), str(document["boot"]), str(document["host"]))
        except (KeyError, TypeError, ValueError):
            return None

    def to_json(self) -> dict[str, Any]:
        """Return the identity as plain JSON."""
        return asdict(self)

    def is_here(self) -> bool:
        """Return True if the process runs on this machine; home directories may be shared between machines."""
        return self.host == os.uname().nodename

    def is_alive(self) -> bool:
        """Return True if the process still runs; a zombie does not count."""
        if self.boot != boot_id():
            return False
        try:
            stat = _stat(self.pid)
        except ProcessLookupError:
            return False
        return stat.started == self.started and stat.state not in "ZX"

    def open(self) -> int | None:
        """Return a pidfd, readable once the process has ended; None if it has ended."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        if self.is_alive():
            return pidfd
        os.close(pidfd)
        return None

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal to this process only; return False if it has ended."""
        pidfd = self.open()
        if pidfd is None:
            return False
        try:
            signal.pidfd_send_signal(pidfd, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(pidfd)
        return True


def _read(name: str) -> bytes:
    """Return the content of a file below /proc.

    pathlib interns every part of a path. Reading thousands of process ids through it makes Python rebuild its table of
    interned strings again and again, and each time the resident memory of a long-lived engine grows by almost 1 MB.
    """
    with open(f"{_PROC}/{name}", "rb") as file:  # noqa: PTH123 - see above
        return file.read()


def boot_id() -> str:
    """Return the id of the current boot."""
    try:
        return _read("sys/kernel/random/boot_id").decode().strip()
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class _Stat:
    parent: int
    session: int
    state: str
    started: int


def _stat(pid: int) -> _Stat:
    try:
        text = _read(f"{pid}/stat").decode(errors="replace")
    except OSError as error:
        raise ProcessLookupError(pid) from error
    # The name in parentheses may contain parentheses too: the fields begin after the last one.
    fields = text[text.rindex(")") + 2 :].split()
    return _Stat(parent=int(fields[1]), session=int(fields[3]), state=fields[0], started=int(fields[19]))


def _processes() -> dict[int, _Stat]:
    found = {}
    for entry in os.scandir(_PROC):
        if entry.name.isdigit():
            with contextlib.suppress(ProcessLookupError):
                found[int(entry.name)] = _stat(int(entry.name))
    return found


def _mark(pid: int) -> str | None:
    try:
        block = _read(f"{pid}/environ")
    except OSError:
        return None
    wanted = MARK.encode() + b"="
    start = 0 if block.startswith(wanted) else block.find(b"\0" + wanted) + 1
    if start == 0 and not block.startswith(wanted):
        return None
    return block[start + len(wanted) :].split(b"\0", 1)[0].decode(errors="replace")


def members(container: str, leader: int) -> list[int]:
    """Return the live processes of a container, found by its mark and its first process; zombies are left out."""
    processes = _processes()
    family = _descendants(leader, processes)
    return [
        pid
        for pid, stat in processes.items()
        if stat.state not in "ZX" and (pid in family or stat.session == leader or _mark(pid) == container)
    ]


def marked(prefix: str) -> list[int]:
    """Return the live processes whose mark has this prefix, such as remains of a job with a dead engine."""
    return [
        pid for pid, stat in _processes().items() if stat.state not in "ZX" and (_mark(pid) or "").startswith(prefix)
    ]


def leader(container: str) -> int | None:
    """Return the first process of a container, whose parent is outside of it; None if none is alive."""
    processes = _processes()
    pids = {pid for pid, stat in processes.items() if stat.state not in "ZX" and _mark(pid) == container}
    return min((pid for pid in pids if processes[pid].parent not in pids), default=None)


def descendants(ancestor: int) -> list[int]:
    """Return the live descendants of a process, without itself."""
    processes = _processes()
    family = _descendants(ancestor, processes) - {ancestor}
    return [pid for pid in family if processes[pid].state not in "ZX"]


def _descendants(ancestor: int, processes: Mapping[int, _Stat]) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, stat in processes.items():
        children.setdefault(stat.parent, []).append(pid)
    family: set[int] = set()
    open_ends = [ancestor] if ancestor in processes else []
    while open_ends:
        pid = open_ends.pop()
        family.add(pid)
        open_ends.extend(child for child in children.get(pid, []) if child not in family)
    return family


def kill(pids: list[int]) -> None:
    """Send SIGKILL to each process that still exists."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36

_libc = ctypes.CDLL(None, use_errno=True)


def set_child_subreaper() -> None:
    """Make this process, instead of init, adopt orphaned descendants."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def set_parent_death_signal(parent: int) -> None:
    """Make the kernel kill the calling process when its parent dies; call it between fork and exec."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent died before the call
        os._exit(128 + signal.SIGKILL)
