"""The zygote of an agent of ours, seen from outside: which process it is, and whether workers can be forked from it."""

from __future__ import annotations

from pathlib import Path


def children(pid: int) -> list[int]:
    """Direct children of a process; empty once it is gone."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def zygote_pids(agent: int) -> list[int]:
    """The zygote of an agent, if it has one: the oldest child of that command line, which its forks bear too."""
    alike = [child for child in children(agent) if b"fork_server_process.py" in _read(child, "cmdline")]
    return sorted(alike, key=_started)[:1]


def has_ready_zygote(agent: int) -> bool:
    """Whether its zygote waits for a request, asleep in a read of its socket: all is imported."""
    return any(b"unix" in (place := _read(zygote, "wchan")) or b"recv" in place for zygote in zygote_pids(agent))


def workers(agent: int) -> list[int]:
    """The workers of an agent of ours, started or forked."""
    kinds = (b"bootstrap.py", b"fork_server_process.py")  # a fork bears the command line of its zygote
    living = [child for child in children(agent) if any(kind in _read(child, "cmdline") for kind in kinds)]
    return [child for child in living if child not in zygote_pids(agent)]


def _started(process: int) -> int:
    """When a process began, in ticks since boot: numbers of processes begin anew at some time, and say nothing."""
    fields = _read(process, "stat").rpartition(b")")[2].split()
    return int(fields[19]) if fields else 0


def _read(process: int, file: str) -> bytes:
    try:
        return Path(f"/proc/{process}/{file}").read_bytes()
    except OSError:
        return b""
