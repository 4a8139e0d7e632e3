"""An API server's verbs over plain JSON.

Asks again where asking again is safe: when the server said *later* (429, or 5xx with ``Retry-After``), and for reads
that met a broken gateway or a connection that had gone stale.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from ddp_trainer.common.constants import FIELD_MANAGER
from kubectl_ddp.backend import Object
from kubectl_ddp.cluster.api_errors import Call, Expired, api_error, call
from kubectl_ddp.cluster.connection import Connection
from kubectl_ddp.cluster.credentials import merge_headers
from kubectl_ddp.cluster.pagination import decode_json, iter_pages
from kubectl_ddp.cluster.wire import IncompleteResponse, Response, Timeouts, TooSlow, UnsupportedResponse
from kubectl_ddp.errors import Unreachable
from kubectl_ddp.version import version

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

PAGE: Final = 500
"""Objects per answer of a list; larger answers cost the API server memory it may not have."""

PATIENCE: Final = Timeouts(connect=10, read=60)

TRIES: Final = 6
"""How often one request is sent at most."""

LONGEST_PAUSE_SECONDS: Final = 30.0
"""A server may say ``Retry-After: 3600``; nobody at a prompt waits that long."""

PAUSE_SECONDS: Final = 0.25
"""Before a request is sent again over a new connection, when the one before broke, too."""

REPEATABLE: Final = frozenset({"GET", "PATCH"})
"""Methods that change nothing when they are done twice; our patches name the uid or the whole of what they change."""

BROKEN_GATEWAY: Final = frozenset({HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT})

WARNING: Final = re.compile(r'\b299 \S+ "((?:[^"\\]|\\.)*)"')
"""A warning as RFC 7234 writes it into a header; 299 is the code of those that last."""

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"

NOTHING: Final[Mapping[str, str]] = {}
PACKED: Final[Mapping[str, str]] = {"Accept-Encoding": "gzip"}
"""A long list then comes in a fifteenth of its bytes; to unpack it is less work than to decrypt it."""


def identity(item: Object) -> Object:
    """The object as it is."""
    return item


class Api:
    """Requests to one API server. Every method raises the errors of :mod:`kubectl_ddp.errors`, and nothing else."""

    def __init__(self, connection: Connection, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self.connection = connection
        self._sleep = sleep
        self._patience = _request_timeouts(connection.request_seconds)
        self._hear: Callable[[str], None] = lambda _: None
        self._heard: set[str] = set()

    def with_warning_handler(self, hear: Callable[[str], None]) -> Api:
        """The same, with somebody who is told each warning of the API server once, as admission policies give them."""
        told = copy(self)
        told._hear = hear  # noqa: SLF001 - our own
        told._heard = set()  # noqa: SLF001
        return told

    def get(self, path: str, **query: str) -> Object:
        """One object, or one page of a list."""
        return self._json("GET", path, query)

    def get_with_accept(self, path: str, accept: str) -> Object:
        """One answer in a form of its own, which ``accept`` names; a server that has no such form answers as ever."""
        answer = self._send("GET", path, {}, ask={"Accept": f"{accept},{JSON}"})
        with self._in_json(path):
            return decode_json(answer.data)

    def items(
        self, path: str, *, reduce: Callable[[Object], Object | None] = identity, **query: str
    ) -> tuple[list[Object], str]:
        """All objects of a collection, and the resource version to watch them from.

        Args:
            path: of the collection.
            reduce: what is kept of each object, as soon as it is read; ``None`` for one that does not count.
            **query: ``labelSelector``, ``fieldSelector``.
        """
        try:
            return self._list_all(path, query, reduce, limit=str(PAGE))
        except Expired:  # a page came so late that the server forgot the list's moment: all in one answer, then
            self._sleep(1.0)
            return self._list_all(path, query, reduce)

    def _list_all(
        self, path: str, query: Mapping[str, str], reduce: Callable[[Object], Object | None], **paging: str
    ) -> tuple[list[Object], str]:
        def fetch(token: str) -> bytes:
            asked = {**query, **paging, **({"continue": token} if token else {})}
            return self._send("GET", path, asked, ask=PACKED).data

        found: list[Object] = []
        version = ""
        with self._in_json(path):
            for page in iter_pages(fetch):
                found += [kept for item in page.get("items") or () if (kept := reduce(item)) is not None]
                version = str((page.get("metadata") or {}).get("resourceVersion", ""))
        return found, version

    def text(self, path: str, *, seconds: float) -> str:
        """An answer that is not JSON, asked for once and waited for no longer than ``seconds``."""
        limit = min(seconds, self.connection.request_seconds or seconds)
        patience = Timeouts(connect=limit, read=limit, total=limit)
        return self._send("GET", path, {}, patience=patience, tries=1).data.decode(errors="replace")

    def create(self, path: str, body: Object, **query: str) -> Object:
        """Create an object in a collection. Raises AlreadyExists when there is one of that name."""
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict", **query}
        return self._json("POST", path, query, body=body)

    def apply(self, path: str, body: Object, **query: str) -> Object:
        """Server-side apply: make the object's fields that we name what we say."""
        query = {"fieldManager": FIELD_MANAGER, "force": "true", "fieldValidation": "Strict", **query}
        return self._json("PATCH", path, query, body=body, content=APPLY_PATCH)

    def merge(self, path: str, patch: Mapping[str, Any]) -> Object:
        """Change some fields of an object (JSON merge patch, RFC 7386)."""
        return self._json("PATCH", path, {"fieldManager": FIELD_MANAGER}, body=patch, content=MERGE_PATCH)

    def delete(self, path: str, *, uid: str) -> None:
        """Delete this very object, not its successor of the same name, and in the background what it owns."""
        options = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        self._send("DELETE", path, {}, body=options)

    def stream(self, path: str, *, silence_seconds: float, **query: str) -> BaseHTTPResponse:
        """An answer that goes on; whoever asks closes it. Reading it raises urllib3's errors."""
        patience = Timeouts(connect=self._patience.connect, read=silence_seconds)
        answer = self._send("GET", path, query, patience=patience, streams=True)
        assert answer.stream is not None  # noqa: S101 - what was asked for as a stream
        return answer.stream

    def _json(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        body: Mapping[str, Any] | None = None,
        content: str = JSON,
    ) -> Object:
        answer = self._send(method, path, query, body=body, content=content)
        with self._in_json(path):
            return decode_json(answer.data)

    @contextmanager
    def _in_json(self, path: str) -> Iterator[None]:
        """What is inside takes an answer apart; a page of HTML, as a login page is one, raises Unreachable."""
        try:
            yield
        except ValueError as error:
            raise Unreachable(
                f"Something that is no API server answers at {self.connection.server}{path}: no JSON.",
                hint="Check the address in the kubeconfig, and HTTPS_PROXY.",
            ) from error

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        body: Mapping[str, Any] | None = None,
        content: str = JSON,
        patience: Timeouts | None = None,
        streams: bool = False,
        tries: int = TRIES,
        ask: Mapping[str, str] = NOTHING,
    ) -> Response:
        """Send until there is an answer that is not *later*, at most so many times."""
        to = self.connection
        asked = call(method, path, server=to.server, context=to.where, watches="watch" in query)
        target = path + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": JSON, "Content-Type": content, "User-Agent": f"kubectl-ddp/{version()}", **ask}
        sent = None if body is None else json.dumps(body).encode()
        for left in reversed(range(tries)):
            try:
                answer = self._once(asked, method, target, headers, sent, patience or self._patience, streams=streams)
            except (IncompleteResponse, TooSlow) as error:
                if isinstance(error, IncompleteResponse) and method in REPEATABLE and left:
                    if left < tries - 1:  # the first may have been one out of the pool that had been closed meanwhile
                        self._sleep(PAUSE_SECONDS)
                    continue
                from kubectl_ddp.cluster.http_pool import incomplete_response_error  # noqa: PLC0415 - imports urllib3

                raise incomplete_response_error(error, asked) from error
            if answer.status < HTTPStatus.MULTIPLE_CHOICES:
                self._report_warnings(answer)
                return answer
            pause = _pause(answer, method, tried=tries - left)
            if pause is None or not left:
                raise api_error(answer.status, answer.data, asked)
            self._sleep(pause)
        raise AssertionError("unreachable: the last try returns or raises")

    def _once(
        self,
        asked: Call,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        patience: Timeouts,
        *,
        streams: bool,
    ) -> Response:
        """One answer, over the wire where it is a plain read. Raises Broken, TooSlow, Unreachable."""
        to = self.connection
        headers = merge_headers(headers, to.authorization())
        if to.wire is not None and method == "GET" and not streams:
            with suppress(UnsupportedResponse):
                return to.wire.get(target, headers, patience)
        from kubectl_ddp.cluster.http_pool import send  # noqa: PLC0415 - imports urllib3, which takes 70 ms

        url = f"{to.server}{target}"
        return send(to.pool, method, url, headers=headers, body=body, patience=patience, asked=asked, streams=streams)

    def _report_warnings(self, answer: Response) -> None:
        for header in answer.headers.get("warning", ()):
            for said in WARNING.findall(header):
                if said not in self._heard:
                    self._heard.add(said)
                    self._hear(re.sub(r"\\(.)", r"\1", said))


def _request_timeouts(seconds: float | None) -> Timeouts:
    """How long one request may stay unanswered; 0 is as long as it takes, ``None`` leaves it to us."""
    return PATIENCE if seconds is None else Timeouts(connect=seconds or None, read=seconds or None)


def _pause(answer: Response, method: str, *, tried: int) -> float | None:
    """Seconds to wait before the request is sent again; ``None`` when that would not be safe or of use."""
    said = answer.header("retry-after")
    later = answer.status == HTTPStatus.TOO_MANY_REQUESTS or (
        answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR and said
    )
    if later:
        return min(float(said) if said.isdecimal() else 1.0, LONGEST_PAUSE_SECONDS)
    if method == "GET" and answer.status in BROKEN_GATEWAY:
        return 0.25 * 2.0**tried
    return None
