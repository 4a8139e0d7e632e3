"""torch's flight recorder, asked from outside: which collectives a worker has begun, also while it holds the GIL.

Every worker in a group has a server of torch's (``_WorkerServer``) at a socket beside its pulse, started by
:mod:`ddp_trainer.launch.beat`. Threads of C++ answer there. It obeys whoever reaches it, so it is a socket of this
file system, in a folder of our own user's, and never a port. Standard library only.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

HANDLERS: Final = ("fr_trace_json", "dump_nccl_trace_json")
"""What the recorder is called there, in torch 2.13 and before."""
MOST_BYTES: Final = 1 << 26
"""Of an answer; two thousand collectives, as many as torch keeps, take one."""
MOST_TOLD: Final = 64
"""Of its collectives, the last ones that are worth telling: they show an order that is unlike the others'."""
DEFAULT: Final = "default"
_DEFAULT_GROUP: Final = "default_pg"
_MOST_SHAPE_CHARACTERS: Final = 160


class Silent(Exception):
    """Nobody answers at the socket, or not with what a flight recorder says."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far a rank is in one process group; numbers begin at 1."""

    enqueued: int
    """The last collective that it has begun."""
    completed: int
    """The last one that is over; -1 where torch does not tell."""


@dataclass(frozen=True, slots=True)
class Record:
    """What one worker's recorder says."""

    groups: dict[str, Position] = field(default_factory=dict)
    """``default``, and the others as ``1``, ``2``, ... in the order in which they were made."""
    collectives: tuple[str, ...] = ()
    """The last ones begun in the default group with the shapes of their inputs, the latest last."""
    waits_in: str = ""
    """The last one of any group that is not over."""


def socket_beside(pulse: str | Path) -> Path:
    """Where the server of the worker with this pulse listens."""
    return Path(pulse).with_suffix(".sock")


def ask(path: Path, seconds: float) -> Record:
    """What the worker at this socket has recorded. Raises Silent."""
    trouble = "it has no flight recorder"
    for handler in HANDLERS:
        head, body = _post(path, f"/handler/{handler}", seconds)
        if " 200 " in head:
            return read(body)
        trouble = head.strip() or trouble
    raise Silent(f"{path}: {trouble}")


def read(body: bytes) -> Record:
    """A record out of the recorder's JSON. Raises Silent for anything else."""
    try:
        told: dict[str, Any] = json.loads(body)
        entries = [entry for entry in told.get("entries", ()) if not entry.get("is_p2p")]
        default = next((int(each["pg_id"]) for each in reversed(entries) if _is_default(each)), 0)
        statuses = {int(number): status for number, status in told.get("pg_status", {}).items()}
        # torch forgets no group; those before the default one went with a default group that is no more.
        others = sorted(number for number in statuses if number > default)
        names = {default: DEFAULT} | {number: str(name) for name, number in enumerate(others, start=1)}
        return Record(
            groups={name: _position(statuses[number]) for number, name in names.items() if number in statuses},
            collectives=tuple(_what(each) for each in entries if int(each["pg_id"]) == default),
            waits_in=next((_what(each) for each in reversed(entries) if not each["retired"]), ""),
        )
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise Silent(f"no record: {error!r}") from error


def _is_default(entry: dict[str, Any]) -> bool:
    return bool(entry["process_group"][1] == _DEFAULT_GROUP)


def _position(status: dict[str, Any]) -> Position:
    return Position(int(status["last_enqueued_collective"]), int(status["last_completed_collective"]))


def _what(entry: dict[str, Any]) -> str:
    name = str(entry["profiling_name"]).rpartition(":")[2]
    return f"{name}{entry['input_sizes']}"[:_MOST_SHAPE_CHARACTERS]


def _post(path: Path, target: str, seconds: float) -> tuple[str, bytes]:
    """Status line and body. HTTP/1.0 by hand: one answer, then the end of the connection."""
    try:
        folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(seconds)
                # The address of a socket has 107 bytes, and a path may have more.
                connection.connect(f"/proc/self/fd/{folder}/{path.name}")
                request = f"POST {target} HTTP/1.0\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
                connection.sendall(request.encode())
                answer = _all_of(connection)
        finally:
            os.close(folder)
    except OSError as error:
        raise Silent(f"{path}: {error}") from error
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.partition(b"\r\n")[0].decode("latin-1"), body


def dump(path: Path, seconds: float) -> dict[str, Any]:
    """Return what the recorders of the worker at this socket hold, by the names of their handlers; empty ones left out.

    Of NCCL's groups only the first of a process writes its record to a file when a collective times out. The server
    answers for all of them.

    Args:
        path: Socket of the worker.
        seconds: Time limit of each request.

    Raises:
        Silent: The worker does not answer.
    """
    found: dict[str, Any] = {}
    for handler in HANDLERS:
        head, body = _post(path, f"/handler/{handler}", seconds)
        try:
            told = json.loads(body) if " 200 " in head else {}
        except ValueError as error:
            raise Silent(f"no record: {error!r}") from error
        if isinstance(told, dict) and told.get("entries"):
            found[handler] = told
    return found


def _all_of(connection: socket.socket) -> bytes:
    parts: list[bytes] = []
    size = 0
    while part := connection.recv(1 << 18):
        parts.append(part)
        size += len(part)
        if size > MOST_BYTES:
            raise OSError(f"an answer of more than {MOST_BYTES} bytes")
    return b"".join(parts)
