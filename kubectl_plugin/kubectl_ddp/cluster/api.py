"""An API server's verbs over plain JSON.

Asks again where asking again is safe: when the server said *later* (429, or 5xx with ``Retry-After``), and for reads
that met a broken gateway or a connection that had gone stale.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

from urllib3 import BaseHTTPResponse, Timeout
from urllib3.exceptions import HTTPError, ProtocolError

from ddp_trainer.contract import FIELD_MANAGER
from kubectl_ddp.backend import Object
from kubectl_ddp.cluster.connection import Connection
from kubectl_ddp.cluster.refusals import Call, Expired, call, refused
from kubectl_ddp.cluster.silence import unreachable
from kubectl_ddp.version import version

PAGE: Final = 500
"""Objects per answer of a list; larger answers cost the API server memory it may not have."""

TIMEOUT: Final = Timeout(connect=10, read=60)

TRIES: Final = 6
"""How often one request is sent at most."""

LONGEST_PAUSE_SECONDS: Final = 30.0
"""A server may say ``Retry-After: 3600``; nobody at a prompt waits that long."""

BROKEN_GATEWAY: Final = frozenset({HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT})

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"


class Api:
    """Requests to one API server. Every method raises the errors of :mod:`kubectl_ddp.errors`, and nothing else."""

    def __init__(self, connection: Connection, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self.connection = connection
        self._sleep = sleep

    def get(self, path: str, **query: str) -> Object:
        """One object, or one page of a list."""
        return self._json("GET", path, query)

    def negotiated(self, path: str, accept: str) -> Object:
        """One answer in a form of its own, which ``accept`` names; a server that has no such form answers as ever."""
        answer: Object = json.loads(self._send("GET", path, {}, accept=f"{accept},{JSON}").data)
        return answer

    def items(self, path: str, **query: str) -> tuple[list[Object], str]:
        """All objects of a collection, and the resource version to watch them from."""
        while True:
            try:
                return self._pages(path, query)
            except Expired:  # a page came so late that the server forgot the list's moment: begin anew
                self._sleep(1.0)

    def _pages(self, path: str, query: Mapping[str, str]) -> tuple[list[Object], str]:
        found: list[Object] = []
        token: dict[str, str] = {}
        while True:
            page = self._json("GET", path, {**query, "limit": str(PAGE), **token})
            found += page.get("items") or []
            about = page.get("metadata") or {}
            if not about.get("continue"):
                return found, str(about.get("resourceVersion", ""))
            token = {"continue": about["continue"]}

    def text(self, path: str, *, seconds: float) -> str:
        """An answer that is not JSON, asked for once and waited for no longer than ``seconds``."""
        return self._send("GET", path, {}, timeout=Timeout(total=seconds), tries=1).data.decode(errors="replace")

    def create(self, path: str, body: Object, **query: str) -> Object:
        """Create an object in a collection. Raises NameTaken when there is one of that name."""
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
        timeout = Timeout(connect=TIMEOUT.connect_timeout, read=silence_seconds)
        return self._send("GET", path, query, timeout=timeout, streams=True)

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
        decoded: Object = json.loads(answer.data)
        return decoded

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        body: Mapping[str, Any] | None = None,
        content: str = JSON,
        timeout: Timeout = TIMEOUT,
        streams: bool = False,
        tries: int = TRIES,
        accept: str = JSON,
    ) -> BaseHTTPResponse:
        """Send until there is an answer that is not *later*, at most so many times."""
        to = self.connection
        asked = call(method, path, server=to.server, context=to.where, watches="watch" in query)
        url = f"{to.server}{path}" + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": accept, "Content-Type": content, "User-Agent": f"kubectl-ddp/{version()}"}
        for left in reversed(range(tries)):
            try:
                answer = to.pool.request(
                    method,
                    url,
                    body=None if body is None else json.dumps(body).encode(),
                    headers={**headers, **to.authorization()},
                    timeout=timeout,
                    preload_content=not streams,
                    retries=False,
                )
            except ProtocolError as error:
                if method == "GET" and left:
                    continue  # a connection out of the pool that the server had closed meanwhile
                raise unreachable(error, asked) from error
            except HTTPError as error:
                raise unreachable(error, asked) from error
            if answer.status < HTTPStatus.MULTIPLE_CHOICES:
                return answer
            refusal = _refusal(answer, asked)
            pause = _pause(answer, method, tried=tries - left)
            if pause is None or not left:
                raise refusal
            self._sleep(pause)
        raise AssertionError("unreachable: the last try returns or raises")


def _refusal(answer: BaseHTTPResponse, asked: Call) -> Exception:
    body = answer.data
    answer.release_conn()
    return refused(answer.status, body, asked)


def _pause(answer: BaseHTTPResponse, method: str, *, tried: int) -> float | None:
    """Seconds to wait before the request is sent again; ``None`` when that would not be safe or of use."""
    said = answer.headers.get("Retry-After", "")
    later = answer.status == HTTPStatus.TOO_MANY_REQUESTS or (
        answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR and said
    )
    if later:
        return min(float(said) if said.isdecimal() else 1.0, LONGEST_PAUSE_SECONDS)
    if method == "GET" and answer.status in BROKEN_GATEWAY:
        return 0.25 * 2.0**tried
    return None
