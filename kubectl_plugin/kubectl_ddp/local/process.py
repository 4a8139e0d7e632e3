"""Processes of this machine: who one is, beyond its reusable number, and which belong to a container.

Linux only, for ``/proc``. A container here is a process with everything it started. Its members are found by
three signs, any of which will do: they descend from it, they are of its session, or they carry its mark in their
environment. Whatever its members leave behind becomes the engine's child, since the engine is a child subreaper.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

MARK: Final = "KUBECTL_DDP_CONTAINER"
"""Environment variable that every process of a container inherits; its value is the container's id."""

_PROC: Final = Path("/proc")


@dataclass(frozen=True, slots=True)
class Identity:
    """One process, told from a later one with the same number."""

    pid: int
    started: int
    """Clock ticks between boot and its start."""
    boot: str
    host: str

    @classmethod
    def of(cls, pid: int) -> Identity:
        """Identity of a live process. Raises ProcessLookupError."""
        return cls(pid, _stat(pid).started, boot_id(), os.uname().nodename)

    @classmethod
    def from_json(cls, document: Any) -> Identity | None:
        """What :meth:`to_json` made, or None when it is something else."""
        try:
            return cls(int(document["pid"]), int(document["started"]), str(document["boot"]), str(document["host"]))
        except (KeyError, TypeError, ValueError):
            return None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)

    def is_here(self) -> bool:
        """Whether this machine is the one it runs on: home directories may be shared between machines."""
        return self.host == os.uname().nodename

    def is_alive(self) -> bool:
        """Whether it still runs; a zombie does not."""
        if self.boot != boot_id():
            return False
        try:
            stat = _stat(self.pid)
        except ProcessLookupError:
            return False
        return stat.started == self.started and stat.state not in "ZX"

    def open(self) -> int | None:
        """A pidfd of it, readable once it has ended; None when it is gone."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        if self.is_alive():
            return pidfd
        os.close(pidfd)
        return None

    def signal(self, number: signal.Signals) -> bool:
        """Send it a signal, and none to a successor of its number; False when it is gone."""
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


def boot_id() -> str:
    """Changes with every boot."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
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
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError as error:
        raise ProcessLookupError(pid) from error
    # The name in parentheses may hold anything, parentheses too: the fields begin after the last one.
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
        block = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    wanted = MARK.encode() + b"="
    start = 0 if block.startswith(wanted) else block.find(b"\0" + wanted) + 1
    if start == 0 and not block.startswith(wanted):
        return None
    return block[start + len(wanted) :].split(b"\0", 1)[0].decode(errors="replace")


def members(container: str, leader: int) -> list[int]:
    """Live processes of a container, by its mark and by the process it was started as; zombies are left out."""
    processes = _processes()
    family = _descendants(leader, processes)
    return [
        pid
        for pid, stat in processes.items()
        if stat.state not in "ZX" and (pid in family or stat.session == leader or _mark(pid) == container)
    ]


def marked(prefix: str) -> list[int]:
    """Live processes whose mark begins so: what a dead engine left of its job."""
    return [
        pid for pid, stat in _processes().items() if stat.state not in "ZX" and (_mark(pid) or "").startswith(prefix)
    ]


def leader(container: str) -> int | None:
    """The first process of a container: the one that no other process of it has started; None when none lives."""
    processes = _processes()
    mine = {pid for pid, stat in processes.items() if stat.state not in "ZX" and _mark(pid) == container}
    return min((pid for pid in mine if processes[pid].parent not in mine), default=None)


def descendants(ancestor: int) -> list[int]:
    """Live processes below one, itself not included."""
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
    """SIGKILL to each that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
