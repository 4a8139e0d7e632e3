"""A socket at which a flight recorder's answer is given, as torch's server gives it."""

from __future__ import annotations

import contextlib
import json
import socketserver
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.support.serving import in_thread


def entry(number: int, name: str = "gloo:all_reduce", *, group: int = 0, over: bool = True) -> dict[str, Any]:
    """One collective."""
    return {
        "collective_seq_id": number,
        "input_sizes": [[4]],
        "is_p2p": False,
        "pg_id": group,
        "process_group": [str(group), "undefined" if group else "default_pg"],
        "profiling_name": name,
        "retired": over,
    }


def record(groups: Mapping[int, tuple[int, int]], *entries: dict[str, Any]) -> bytes:
    """What torch 2.13 answers: of each group, the last collective that was begun, and that is over."""
    status = {
        str(number): {
            "last_enqueued_collective": str(begun),
            "last_completed_collective": str(over),
            "last_started_collective": "-1",
        }
        for number, (begun, over) in groups.items()
    }
    return json.dumps({"entries": entries, "pg_status": status, "version": "2.10"}).encode()


@contextlib.contextmanager
def recorder_at(path: Path, answers: Mapping[str, bytes]) -> Iterator[None]:
    """A server at ``path`` with these handlers."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            target = self.rfile.readline().split()[1].decode()
            while self.rfile.readline().strip():
                pass
            body = answers.get(target.removeprefix("/handler/"))
            status = b"404 Not Found" if body is None else b"200 OK"
            self.wfile.write(b"HTTP/1.1 " + status + b"\r\nConnection: close\r\n\r\n" + (body or b""))

    with in_thread(socketserver.UnixStreamServer(str(path), Handler)):
        yield
