"""Current copy of a list, as in client-go's Reflector: read once, then watched from its resource version.

Watches end often: after their time limit, with their connection, or with their API server. They resume from the last
resource version. If the server has dropped that version (410), the list is read again.
"""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any, Final

from urllib3 import BaseHTTPResponse
from urllib3.exceptions import HTTPError

from kubectl_ddp.backends.cluster.http.api import CHUNK_BYTES, Api, identity
from kubectl_ddp.backends.cluster.http.api_errors import Expired, api_error, call
from kubectl_ddp.errors import DdpError, Unreachable
from kubectl_ddp.kube.objects import Object

WATCH_SECONDS: Final = 240
"""Time limit of one watch, in seconds. Many load balancers cut connections that are silent for five minutes."""

MAX_UNAVAILABLE_SECONDS: Final = 300.0
"""Seconds of unavailability after which a watch ends with an error: longer than an upgrade of an API server."""

PAUSE_SECONDS: Final = 0.25
"""Pause between two watches, in seconds; doubled while the server is unavailable."""

LONGEST_PAUSE_SECONDS: Final = 10.0
MOST_EVENT_BYTES: Final = 4 << 20
"""Longest line of a watch. An object has at most 1.5 MiB."""


class Reflector:
    """Copy of one collection or a selection of it, with notification of every change."""

    def __init__(
        self, api: Api, path: str, *, reduce: Callable[[Object], Object | None] = identity, **query: str
    ) -> None:
        """Create a reflector. Call :meth:`read` before :meth:`objects`.

        Args:
            api: API server.
            path: Path of the collection.
            reduce: Function that returns the part of an object to keep, or ``None`` to skip it.
            query: ``labelSelector``, ``fieldSelector``.
        """
        self._api = api
        self._path = path
        self._reduce = reduce
        self._query = query
        self._version = ""
        self._objects: dict[str, Object] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._response: BaseHTTPResponse | None = None

    def objects(self) -> list[Object]:
        """Return the current objects."""
        with self._lock:
            return list(self._objects.values())

    @property
    def revision(self) -> str:
        """Resource version of the copy. The objects have not changed while it is the same."""
        return self._version

    def read(self) -> None:
        """Read the list. Raises the errors of the API server."""
        items, version = self._api.items(self._path, reduce=self._reduce, **self._query)
        with self._lock:
            self._objects = {item["metadata"]["uid"]: item for item in items}
            self._version = version

    def run(self, changed: Callable[[], None]) -> None:
        """Watch until :meth:`stop`, and call ``changed`` after every change.

        Raises:
            Unreachable: If the API server was unavailable for longer than :data:`MAX_UNAVAILABLE_SECONDS`.
            Forbidden: If the watch is no longer allowed.
        """
        failing_since: float | None = None
        pause = PAUSE_SECONDS
        while not self._stopped.is_set():
            try:
                for is_change in self._events():
                    failing_since, pause = None, PAUSE_SECONDS
                    if is_change:
                        changed()
            except Expired:
                self._version = ""
            except (Unreachable, HTTPError) as error:
                now = time.monotonic()
                failing_since = failing_since or now
                if now - failing_since > MAX_UNAVAILABLE_SECONDS and isinstance(error, Unreachable):
                    raise
            self._stopped.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS) if failing_since else PAUSE_SECONDS

    def stop(self) -> None:
        """End :meth:`run`, even while it waits for the server."""
        self._stopped.set()
        with self._lock:
            response = self._response
        if response is not None:
            cut(response)

    def _events(self) -> Iterator[bool]:
        """Run one watch. Yields once when it is open, and for each event: true if there is a change to report."""
        if not self._version:
            self.read()
            yield True
        query = {**self._query, "watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_SECONDS)}
        response = self._api.stream(
            self._path, silence_seconds=WATCH_SECONDS + 30, resourceVersion=self._version, **query
        )
        with self._lock:
            self._response = response
        try:
            if self._stopped.is_set():
                return
            yield False
            for line in lines(response, MOST_EVENT_BYTES):
                event = _decode_event(line)
                if event is None:
                    return
                yield self._take(event)
        finally:
            with self._lock:
                self._response = None
            response.close()

    def _take(self, event: dict[str, Any]) -> bool:
        """Apply one event. Returns true if a selected object changed."""
        kind, item = event["type"], event["object"]
        if kind == "ERROR":
            raise self._error(item)
        metadata = item["metadata"]
        with self._lock:
            self._version = metadata["resourceVersion"]
            if kind == "BOOKMARK":
                return False
            reduced = None if kind == "DELETED" else self._reduce(item)
            if reduced is None:
                return self._objects.pop(metadata["uid"], None) is not None
            self._objects[metadata["uid"]] = reduced
            return True

    def _error(self, status: Object) -> DdpError:
        code = int(status.get("code") or HTTPStatus.INTERNAL_SERVER_ERROR)
        to = self._api.connection
        request = call("GET", self._path, server=to.server, context=to.where, watches=True)
        return api_error(code, json.dumps(status).encode(), request)


def _decode_event(line: bytes) -> dict[str, Any] | None:
    """Parse an event; ``None`` for a truncated one, which a load balancer leaves if it closes a broken connection
    normally.
    """
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("object"), dict) else None


def cut(response: BaseHTTPResponse) -> None:
    """End a stream that another thread reads."""
    with contextlib.suppress(ValueError, RuntimeError, OSError):  # the connection has just ended
        response.shutdown()


def lines(response: BaseHTTPResponse, most_bytes: int) -> Iterator[bytes]:
    """Yield the lines of a response as they arrive, without line ends, each cut after ``most_bytes``.

    A last line without an end is included.
    """
    parts: list[bytes] = []
    remaining = most_bytes
    while chunk := response.read1(CHUNK_BYTES):
        *complete, rest = chunk.split(b"\n")
        if complete:
            yield b"".join([*parts, complete[0][:remaining]])
            yield from (line[:most_bytes] for line in complete[1:])
            parts, remaining = [], most_bytes
        if rest and remaining:
            parts.append(rest[:remaining])
            remaining -= len(parts[-1])
    if parts:
        yield b"".join(parts)


def watch_into_queue(reflector: Reflector, changes: queue.SimpleQueue[Exception | None]) -> None:
    """Run a reflector in a thread, and put its changes and its final error into the queue."""
    try:
        reflector.run(lambda: changes.put(None))
    except Exception as error:  # noqa: BLE001 - raised again where snapshots are read
        changes.put(error)


def wait(changes: queue.SimpleQueue[Exception | None]) -> None:
    """Wait for a change, and combine it with all further changes in the queue. Raises the error that ended a watch."""
    errors = [changes.get()]
    with contextlib.suppress(queue.Empty):
        while True:
            errors.append(changes.get_nowait())
    for error in errors:
        if error is not None:
            raise error
