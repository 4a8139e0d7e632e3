"""Fork server of an agent, as seen from outside: its process, and whether it can fork workers."""

from __future__ import annotations

import os
from pathlib import Path


def children(pid: int) -> list[int]:
    """Return the direct children of a process; empty if it has ended."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def fork_server_pids(agent: int) -> list[int]:
    """Return the fork server of an agent, if any: the oldest child with its command line, which forks share.

    A server that was started again is younger than the first forks. These have another stdout than /dev/null, unless
    the agent writes there itself.
    """
    alike = [child for child in children(agent) if b"fork_server_process.py" in _read(child, "cmdline")]
    return sorted((child for child in alike if _is_silent(child)), key=_started)[:1]


def is_fork_server_ready(agent: int) -> bool:
    """Return whether the agent's fork server has imported all modules and sleeps in a read of its socket."""
    return any(b"unix" in (place := _read(pid, "wchan")) or b"recv" in place for pid in fork_server_pids(agent))


def workers(agent: int) -> list[int]:
    """Return the workers of an agent, started or forked."""
    kinds = (b"bootstrap.py", b"fork_server_process.py")  # a fork has the command line of its fork server
    living = [child for child in children(agent) if any(kind in _read(child, "cmdline") for kind in kinds)]
    return [child for child in living if child not in fork_server_pids(agent)]


def _is_silent(process: int) -> bool:
    """Return whether the process has /dev/null as stdout."""
    try:
        return Path(f"/proc/{process}/fd/1").readlink() == Path(os.devnull)
    except OSError:
        return False


def _started(process: int) -> int:
    """Return the start time of a process, in ticks since boot. Process ids wrap around, so they show no order."""
    fields = _read(process, "stat").rpartition(b")")[2].split()
    return int(fields[19]) if fields else 0


def _read(process: int, file: str) -> bytes:
    try:
        return Path(f"/proc/{process}/{file}").read_bytes()
    except OSError:
        return b""
