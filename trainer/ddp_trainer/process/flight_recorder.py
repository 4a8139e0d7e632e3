"""Client of torch's flight recorder: reads the collectives that a worker has begun, even while it holds the GIL.

:func:`fetch_record` returns a summary and :func:`fetch_dumps` the complete records. Every worker in a group runs
torch's server (``_WorkerServer``) at a socket beside its heartbeat page, started by
:mod:`ddp_trainer.launch.in_worker.heartbeat`. C++ threads answer its requests. The server does not authenticate its
clients, so the socket is in a folder of this user, and never a port. Standard library only.
"""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ddp_trainer.process.socket_address import short_address

HANDLERS: Final = ("dump_nccl_trace_json", "fr_trace_json", "fr_trace_json?backend=nccl2")
"""Paths of torch's recorders: that of NCCL, which exists only in builds with CUDA, that of gloo, and that of nccl2.

A torch without nccl2 ignores the parameter and returns the record of gloo again.
"""
MOST_BYTES: Final = 1 << 26
"""Largest response in bytes. It fits two thousand collectives, the most that torch keeps."""
MAX_COLLECTIVES: Final = 64
"""Number of last collectives to report: enough to show an order that differs from the other ranks'."""
DEFAULT: Final = "default"
_DEFAULT_GROUP: Final = "default_pg"
_MOST_SHAPE_CHARACTERS: Final = 160


class FlightRecorderError(Exception):
    """No server responds at the socket, or the response is not that of a flight recorder."""


@dataclass(frozen=True, slots=True)
class Position:
    """Last collectives of one process group on one rank: numbers from 1, -1 where torch has no number."""

    enqueued: int
    """Last collective that the rank has begun. On NCCL its kernel may not run yet."""
    completed: int
    """Last collective that has ended."""
    started: int = -1
    """Last collective whose kernel runs or ran; known only for NCCL with ``TORCH_NCCL_ENABLE_TIMING=1``."""
    name: str = ""
    """torch's name of the group, the same on all its ranks; empty where none of its collectives is recorded."""


@dataclass(frozen=True, slots=True)
class Record:
    """Recorded collectives of one worker, of all backends."""

    groups: dict[str, Position] = field(default_factory=dict)
    """Positions by group: ``default``, and the others as ``1``, ``2``, ... in order of creation, those of NCCL
    first."""
    collectives: tuple[str, ...] = ()
    """Last collectives begun in the default group with the shapes of their inputs, the latest last."""
    waits_in: str = ""
    """Oldest collective of any group that has not ended; empty if there is none."""


def recorder_socket_path(page: str | Path) -> Path:
    """Return the path of the socket of the worker that has this heartbeat page."""
    return Path(page).with_suffix(".sock")


def fetch_record(path: Path, seconds: float) -> Record:
    """Return the collectives that a worker has recorded; see :func:`fetch_dumps`."""
    return read(*fetch_dumps(path, seconds).values())


def fetch_dumps(path: Path, seconds: float) -> dict[str, bytes]:
    """Return the JSON documents of a worker's recorders by the names of their handlers.

    When a collective times out, torch writes a record to a file only for the first NCCL group of a process. The server
    returns the records of all groups.

    Args:
        path: Socket of the worker.
        seconds: Time limit of each request.

    Raises:
        FlightRecorderError: If the worker does not respond, or has no flight recorder.
    """
    bodies: dict[str, bytes] = {}
    trouble = "it has no flight recorder"
    for handler in HANDLERS:
        head, body = _post(path, f"/handler/{handler}", seconds)
        if " 200 " in head:
            bodies[handler] = body
        else:
            trouble = head.strip() or trouble
    if not bodies:
        raise FlightRecorderError(f"{path}: {trouble}")
    return bodies


def read(*bodies: bytes) -> Record:
    """Return the merged record of the recorders' JSON documents.

    A build of torch with CUDA has both recorders. The one that no backend of the job uses returns a document without
    groups.

    Args:
        bodies: Documents, that of NCCL first. A default group in two of them is read from the first.

    Raises:
        FlightRecorderError: If a document is not that of a flight recorder.
    """
    try:
        recorders: list[_Recorder] = []
        for recorder in [_recorder(json.loads(body)) for body in bodies]:
            if recorder.statuses and not any(recorder.is_same(other) for other in recorders):
                recorders.append(recorder)
        return _merged(recorders)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise FlightRecorderError(f"no record: {error!r}") from error


@dataclass(frozen=True, slots=True)
class _Recorder:
    entries: list[dict[str, Any]]
    """Recorded collectives, the oldest first."""
    statuses: dict[int, dict[str, Any]]
    """Status of each group, by the group's number."""
    default: int | None
    """Number of the default group; None where none of its collectives is recorded."""

    def is_same(self, other: _Recorder) -> bool:
        """Return whether two documents come from one recorder, read at different times."""
        if self.entries and other.entries:
            return not self._creation_times().isdisjoint(other._creation_times())
        return self.statuses == other.statuses

    def _creation_times(self) -> set[tuple[int, int]]:
        return {
            (int(entry["pg_id"]), int(entry["time_created_ns"])) for entry in self.entries if "time_created_ns" in entry
        }


def _recorder(document: dict[str, Any]) -> _Recorder:
    entries = [entry for entry in document.get("entries", ()) if not entry.get("is_p2p")]
    statuses = {int(number): status for number, status in document.get("pg_status", {}).items()}
    defaults = [int(entry["pg_id"]) for entry in entries if entry["process_group"][1] == _DEFAULT_GROUP]
    return _Recorder(entries, statuses, defaults[-1] if defaults else None)


def _merged(recorders: list[_Recorder]) -> Record:
    # A recorder may have dropped the collectives of the default group, which has the lowest number.
    first = next(
        (recorder for recorder in recorders if recorder.default is not None), recorders[0] if recorders else None
    )
    default: dict[str, Position] = {}
    others: list[Position] = []
    waiting: list[dict[str, Any]] = []
    begun: tuple[str, ...] = ()
    for recorder in recorders:
        # torch keeps the record of every group. Groups before the default one ended with an earlier default group.
        oldest = recorder.default or 0
        names = {int(entry["pg_id"]): str(entry["process_group"][0]) for entry in recorder.entries}
        for number, status in sorted(recorder.statuses.items()):
            position = _position(status, names.get(number, ""))
            if recorder is first and number == oldest:
                default[DEFAULT] = position
                begun = tuple(_describe(entry) for entry in recorder.entries if int(entry["pg_id"]) == number)
            elif number > oldest or recorder.default is None:
                others.append(position)
        live = [entry for entry in recorder.entries if int(entry["pg_id"]) >= oldest]
        waiting += [entry for entry in live if not entry["retired"]][:1]
    oldest_first = sorted(waiting, key=lambda entry: int(entry.get("time_created_ns", 0)))
    return Record(
        groups=default | {str(name): position for name, position in enumerate(others, start=1)},
        collectives=begun,
        waits_in=next(map(_describe, oldest_first), ""),
    )


def _position(status: dict[str, Any], name: str) -> Position:
    numbers = {what: int(status[f"last_{what}_collective"]) for what in ("enqueued", "started", "completed")}
    return Position(**numbers, name=name)


def _describe(entry: dict[str, Any]) -> str:
    name = str(entry["profiling_name"]).rpartition(":")[2]
    return f"{name}{entry['input_sizes']}"[:_MOST_SHAPE_CHARACTERS]


def _post(path: Path, target: str, seconds: float) -> tuple[str, bytes]:
    """Return the status line and the body of an HTTP/1.0 response, which ends with the connection."""
    try:
        with short_address(path) as address, socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(seconds)
            connection.connect(address)
            request = f"POST {target} HTTP/1.0\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
            connection.sendall(request.encode())
            answer = _all_of(connection)
    except OSError as error:
        raise FlightRecorderError(f"{path}: {error}") from error
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.partition(b"\r\n")[0].decode("latin-1"), body


def _all_of(connection: socket.socket) -> bytes:
    parts: list[bytes] = []
    size = 0
    while part := connection.recv(1 << 18):
        parts.append(part)
        size += len(part)
        if size > MOST_BYTES:
            raise OSError(f"an answer of more than {MOST_BYTES} bytes")
    return b"".join(parts)
