"""A list that is kept current, as client-go's Reflector keeps one: read once, then watched from where it stood.

A watch ends all the time: by its own time limit, with the connection, with the API server that answered it. It goes on
from the last resource version that was seen; when the server does not remember that any more (410), the list is read
again.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any, Final

from urllib3 import BaseHTTPResponse
from urllib3.exceptions import HTTPError

from kubectl_ddp.backend import Object
from kubectl_ddp.cluster.api import Api
from kubectl_ddp.cluster.api_errors import Expired, api_error, call
from kubectl_ddp.errors import DdpError, Unreachable

WATCH_SECONDS: Final = 240
"""How long the server keeps one watch open. Many load balancers cut what is silent for five minutes."""

PATIENCE_SECONDS: Final = 300.0
"""How long an API server may be away before a watch is given up: longer than an upgrade of it takes."""

PAUSE_SECONDS: Final = 0.25
"""Between two watches; longer and longer while the server is away."""

LONGEST_PAUSE_SECONDS: Final = 10.0


class Reflector:
    """One collection, or a selection of it, and every change of it."""

    def __init__(self, api: Api, path: str, *, keep: Callable[[Object], bool] = lambda _: True, **query: str) -> None:
        """A selection that was not read yet.

        Args:
            api: where it is.
            path: of the collection.
            keep: which of the objects count; for what no selector can say.
            query: ``labelSelector``, ``fieldSelector``.
        """
        self._api = api
        self._path = path
        self._keep = keep
        self._query = query
        self._version = ""
        self._objects: dict[str, Object] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._response: BaseHTTPResponse | None = None

    def objects(self) -> list[Object]:
        """The objects as they are now, to this reflector's knowledge."""
        with self._lock:
            return list(self._objects.values())

    def read(self) -> None:
        """Read the list. Raises what the API server says to it."""
        items, version = self._api.items(
            self._path, reduce=lambda item: item if self._keep(item) else None, **self._query
        )
        with self._lock:
            self._objects = {item["metadata"]["uid"]: item for item in items}
            self._version = version

    def run(self, changed: Callable[[], None]) -> None:
        """Watch until :meth:`stop`, and call ``changed`` after every change.

        Raises:
            Unreachable: the API server was away for longer than :data:`PATIENCE_SECONDS`.
            Forbidden: we may not watch any more.
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
                if now - failing_since > PATIENCE_SECONDS and isinstance(error, Unreachable):
                    raise
            self._stopped.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS) if failing_since else PAUSE_SECONDS

    def stop(self) -> None:
        """End :meth:`run`, also where it waits for the server's next word."""
        self._stopped.set()
        with self._lock:
            response = self._response
        if response is not None:
            with contextlib.suppress(ValueError, RuntimeError, OSError):  # it has just ended by itself
                response.shutdown()

    def _events(self) -> Iterator[bool]:
        """One watch; yields when the server answered, and whether there is a change to tell of."""
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
            for line in lines(response):
                event = _decode_event(line)
                if event is None:
                    return
                yield self._take(event)
        finally:
            with self._lock:
                self._response = None
            response.close()

    def _take(self, event: dict[str, Any]) -> bool:
        """Take one event in; returns whether it changed anything that counts."""
        kind, item = event["type"], event["object"]
        if kind == "ERROR":
            raise self._error(item)
        about = item["metadata"]
        with self._lock:
            self._version = about["resourceVersion"]
            if kind == "BOOKMARK" or not self._keep(item):
                return False
            if kind == "DELETED":
                return self._objects.pop(about["uid"], None) is not None
            self._objects[about["uid"]] = item
            return True

    def _error(self, status: Object) -> DdpError:
        code = int(status.get("code") or HTTPStatus.INTERNAL_SERVER_ERROR)
        to = self._api.connection
        asked = call("GET", self._path, server=to.server, context=to.where, watches=True)
        return api_error(code, json.dumps(status).encode(), asked)


def _decode_event(line: bytes) -> dict[str, Any] | None:
    """An event; ``None`` for a torn one, which a load balancer leaves that ends a broken connection in good order."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("object"), dict) else None


def lines(response: BaseHTTPResponse) -> Iterator[bytes]:
    """The lines of an answer as they arrive, without their ends; what follows the last end comes last."""
    rest = b""
    while chunk := response.read1(1 << 16):
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole
    if rest:
        yield rest
