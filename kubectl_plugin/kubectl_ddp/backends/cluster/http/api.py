"""Requests to an API server in plain JSON: one request over the connection pool, retries, and pages of long lists.

Requests are retried if that is safe: after a response that requests a retry (429, or 5xx with ``Retry-After``), and for
reads after a gateway error or a broken connection.

The next page of a list is requested while the current one is parsed. A list of ten thousand pods is 80 MB of JSON, of
which a command needs little. Only two pages and the reduced objects are in memory. ``metadata.managedFields`` are
removed before a page is parsed: API servers cannot omit them, nothing here reads them, and decoding them takes half of
the time and memory. Two formats of long lists are supported; a list in any other format is parsed with them.
"""

from __future__ import annotations

import json
import re
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

from urllib3 import BaseHTTPResponse, HTTPHeaderDict, PoolManager, Timeout
from urllib3.exceptions import HTTPError, ProtocolError

from ddp_trainer.common.constants import FIELD_MANAGER
from kubectl_ddp.backends.cluster.http.api_errors import Expired, api_error, call, connection_error
from kubectl_ddp.backends.cluster.http.connection import Connection
from kubectl_ddp.errors import Unreachable
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.util.bounded_response import ResponseLimits, ResponseRejected, check_encoding, read_response
from kubectl_ddp.util.concurrency import Future
from kubectl_ddp.util.process import at_rest
from kubectl_ddp.version import version

CHUNK_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Response:
    """One response, complete and decompressed."""

    status: int
    headers: HTTPHeaderDict
    data: bytes
    stream: BaseHTTPResponse | None = None
    """Open stream, if one was requested."""


def send(
    pool: PoolManager,
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    body: bytes | None,
    timeout: Timeout,
    streams: bool,
    limits: ResponseLimits | None,
) -> Response:
    """Send a request once and return the response; for a stream, only its head.

    Raises:
        ProtocolError: If the connection ended within the response, or the response is damaged.
        HTTPError: If the server cannot be reached, or does not answer in time.
        ResponseRejected: If the response exceeds the limits.
    """
    response = pool.request(
        method,
        url,
        body=body,
        headers=headers,
        timeout=timeout,
        preload_content=False,
        decode_content=False,
        retries=False,
        redirect=False,
    )
    is_stream = streams and response.status < HTTPStatus.MULTIPLE_CHOICES
    coding = response.headers.get("Content-Encoding", "")
    try:
        check_encoding(coding, headers.get("Accept-Encoding", ""))
        data = (
            b"" if is_stream else read_response(iter(lambda: response.read1(CHUNK_BYTES), b""), limits, coding=coding)
        )
    except (ValueError, zlib.error) as error:  # a chunk of a negative size is a ValueError
        response.close()
        raise ProtocolError(str(error)) from error
    except BaseException:  # unread data must not become the next response
        response.close()
        raise
    if not is_stream:
        response.release_conn()
    return Response(response.status, response.headers, data, response if is_stream else None)


Fetch = Callable[[str], bytes]
"""Function that reads the page of a token; the first page for an empty token."""

HEAD_BYTES: Final = 4096
TOKEN: Final = re.compile(rb'^\{(?:"kind":"\w+","apiVersion":"[\w./-]+",)?"metadata":\{[^{}]*?"continue":"([^"\\]+)"')
"""Pattern of the continue token. The API server writes a list's metadata first; otherwise, the page is parsed first."""


def iter_pages(fetch: Fetch) -> Iterator[Object]:
    """Yield the pages of a list. Raises the errors of ``fetch``, and ValueError for anything but a list in JSON."""
    body = fetch("")
    while True:
        found = TOKEN.match(body[:HEAD_BYTES])
        next_page = Future(partial(fetch, found[1].decode())) if found is not None else None
        page = _decode_page(body)
        del body
        yield page
        token = str((page.get("metadata") or {}).get("continue") or "")
        del page
        if not token:
            return
        body = next_page.result() if next_page is not None else fetch(token)


def _decode_page(body: bytes) -> Object:
    """Parse one page. If the removal of ``managedFields`` breaks the JSON, the page is parsed with them."""
    lean = without_records(body)
    try:
        return decode_json(lean)
    except ValueError:
        if lean is body:
            raise
        return decode_json(body)


def decode_json(body: bytes) -> Object:
    """Parse a JSON object. Raises ValueError for any other JSON.

    The garbage collector is disabled meanwhile, because JSON has no cycles and the search for them takes a third of the
    time.
    """
    with at_rest():
        found = json.loads(body)
    if not isinstance(found, dict):
        raise ValueError(f"{type(found).__name__} is not an object")  # noqa: TRY004 - the same class as for invalid JSON
    return found


BEGIN_MARKER: Final = b',"managedFields":['
"""Start of the fields. Quotes in a JSON string are escaped, so this is always a key."""

END_MARKERS: Final[Mapping[bytes, bytes]] = {
    b'{"kind":"PodList",': b']},"spec":',  # in the order of Kubernetes' own types: last field of the metadata
    b'{"apiVersion":"': b'],"name":"',  # in alphabetical order, as in custom resources
}
"""Start of a list → the text after the fields, which cannot be one of their own keys, such as f:spec."""

NEXT_OBJECT: Final = b'"uid":"'
"""Key of the next object. If it is reached, the end of the fields was missed."""


def without_records(body: bytes) -> bytes:
    """Return a list in JSON without the fields if its format is known, else unchanged."""
    end = next((end for head, end in END_MARKERS.items() if body.startswith(head)), None)
    if end is None:
        return body
    parts: list[bytes] = []
    position = 0
    while (begin := body.find(BEGIN_MARKER, position)) >= 0:
        after = body.find(end, begin)
        if after < 0 or body.find(NEXT_OBJECT, begin, after) >= 0:
            return body
        parts.append(body[position:begin])
        position = after + 1
    return b"".join([*parts, body[position:]]) if parts else body


PAGE: Final = 500
"""Objects per page of a list. Larger pages need too much memory of the API server."""

DEFAULT_TIMEOUT: Final = Timeout(connect=10, read=60)

TRIES: Final = 6
"""Maximum number of attempts per request."""

LONGEST_PAUSE_SECONDS: Final = 30.0
"""Upper limit of a pause requested by ``Retry-After``, which may be an hour."""

PAUSE_SECONDS: Final = 0.25
"""Pause before the third and later attempts after broken connections, in seconds."""

REPEATABLE: Final = frozenset({"GET", "PATCH"})
"""Idempotent methods. Our patches contain the uid, or all of the fields they set."""

BROKEN_GATEWAY: Final = frozenset({HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT})

WARNING: Final = re.compile(r'\b299 \S+ "((?:[^"\\]|\\.)*)"')
"""Warning header of RFC 7234; 299 is the code of persistent warnings."""

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"

NOTHING: Final[Mapping[str, str]] = {}
PACKED: Final[Mapping[str, str]] = {"Accept-Encoding": "gzip"}
"""Compression reduces a long list to a fifteenth of its size. Unpacking is cheaper than decrypting the uncompressed
list.
"""


def identity(item: Object) -> Object:
    """Return the object unchanged."""
    return item


class Api:
    """Client of one API server. Methods raise only the errors of :mod:`kubectl_ddp.errors`."""

    def __init__(self, connection: Connection, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self.connection = connection
        self._sleep = sleep
        self._timeout = _request_timeout(connection.request_seconds)
        self._on_warning: Callable[[str], None] = lambda _: None
        self._seen_warnings: set[str] = set()

    def with_warning_handler(self, handler: Callable[[str], None]) -> Api:
        """Return a copy that passes each distinct warning of the API server to ``handler``, such as those of admission
        policies.
        """
        clone = copy(self)
        clone._on_warning = handler  # noqa: SLF001 - the same class
        clone._seen_warnings = set()  # noqa: SLF001
        return clone

    def get(self, path: str, **query: str) -> Object:
        """Return one object, or one page of a list."""
        return self._json("GET", path, query)

    def get_with_accept(self, path: str, accept: str) -> Object:
        """Return a response in the format ``accept``, or in plain JSON if the server does not support that format."""
        answer = self._send("GET", path, {}, extra_headers={"Accept": f"{accept},{JSON}"})
        with self._in_json(path):
            return decode_json(answer.data)

    def items(
        self, path: str, *, reduce: Callable[[Object], Object | None] = identity, **query: str
    ) -> tuple[list[Object], str]:
        """Return all objects of a collection, and the resource version from which to watch them.

        Args:
            path: Path of the collection.
            reduce: Function that returns the part of an object to keep, or ``None`` to skip it. Called as soon as an
                object is read.
            **query: ``labelSelector``, ``fieldSelector``.
        """
        try:
            return self._list_all(path, query, reduce, limit=str(PAGE))
        except Expired:  # a page came too late, and its list has expired: read all in one response
            self._sleep(1.0)
            return self._list_all(path, query, reduce)

    def _list_all(
        self, path: str, query: Mapping[str, str], reduce: Callable[[Object], Object | None], **paging: str
    ) -> tuple[list[Object], str]:
        def fetch(token: str) -> bytes:
            page_query = {**query, **paging, **({"continue": token} if token else {})}
            return self._send("GET", path, page_query, extra_headers=PACKED).data

        found: list[Object] = []
        version = ""
        with self._in_json(path):
            for page in iter_pages(fetch):
                found += [reduced for item in page.get("items") or () if (reduced := reduce(item)) is not None]
                version = str((page.get("metadata") or {}).get("resourceVersion", ""))
        return found, version

    def text(self, path: str, *, limits: ResponseLimits) -> str:
        """Return a response that is not JSON, after a single attempt. Raises Unreachable if it exceeds the limits."""
        seconds = min(limits.most_seconds, self.connection.request_seconds or limits.most_seconds)
        timeout = Timeout(total=seconds)
        limits = replace(limits, most_seconds=seconds)
        return self._send("GET", path, {}, timeout=timeout, tries=1, limits=limits).data.decode(errors="replace")

    def create(self, path: str, body: Object, **query: str) -> Object:
        """Create an object in a collection. Raises AlreadyExists if one of that name exists."""
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict", **query}
        return self._json("POST", path, query, body=body)

    def apply(self, path: str, body: Object, **query: str) -> Object:
        """Set the given fields of an object by server-side apply."""
        query = {"fieldManager": FIELD_MANAGER, "force": "true", "fieldValidation": "Strict", **query}
        return self._json("PATCH", path, query, body=body, content=APPLY_PATCH)

    def merge(self, path: str, patch: Mapping[str, Any], **query: str) -> Object:
        """Change fields of an object by a JSON merge patch (RFC 7386)."""
        return self._json("PATCH", path, {"fieldManager": FIELD_MANAGER, **query}, body=patch, content=MERGE_PATCH)

    def delete(self, path: str, *, uid: str, version: str | None = None) -> None:
        """Delete the object with this uid, and its dependents in the background.

        Raises Conflict if it is another object, or has another ``resourceVersion`` than the given one.
        """
        conditions = {"uid": uid} | ({} if version is None else {"resourceVersion": version})
        options = {"propagationPolicy": "Background", "preconditions": conditions}
        self._send("DELETE", path, {}, body=options)

    def evict(self, pod: Object) -> None:
        """Evict a pod by the eviction API. Raises Unreachable if a PodDisruptionBudget forbids it now."""
        metadata = pod["metadata"]
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": metadata["name"]},
            "deleteOptions": {"preconditions": {"uid": metadata["uid"]}},
        }
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/eviction"
        self._send("POST", path, {}, body=body, tries=1)

    def stream(self, path: str, *, silence_seconds: float, **query: str) -> BaseHTTPResponse:
        """Return a streaming response, which the caller must close. Reading it raises urllib3's errors."""
        timeout = Timeout(connect=self._timeout.connect_timeout, read=silence_seconds)
        answer = self._send("GET", path, query, timeout=timeout, streams=True)
        assert answer.stream is not None  # noqa: S101 - streams=True was requested
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
        """Convert a ValueError of the block, which parses a response, to Unreachable. A login page in HTML is an
        example.
        """
        try:
            yield
        except ValueError as error:
            raise Unreachable(
                f"{self.connection.server}{path} did not return JSON, so it is not a Kubernetes API server.",
                hint="Check the server address in the kubeconfig, and HTTPS_PROXY.",
            ) from error

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        body: Mapping[str, Any] | None = None,
        content: str = JSON,
        timeout: Timeout | None = None,
        streams: bool = False,
        tries: int = TRIES,
        extra_headers: Mapping[str, str] = NOTHING,
        limits: ResponseLimits | None = None,
    ) -> Response:
        """Send a request until its response is final, at most ``tries`` times, and once more with new credentials."""
        to = self.connection
        request = call(method, path, server=to.server, context=to.where, watches="watch" in query)
        url = f"{to.server}{path}" + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": JSON, "Content-Type": content, "User-Agent": f"kubectl-ddp/{version()}", **extra_headers}
        sent = None if body is None else json.dumps(body).encode()
        is_renewed = False
        left = tries
        while True:
            left -= 1
            session = to.login.session()
            try:
                answer = send(
                    session.pool,
                    method,
                    url,
                    headers=session.headers | headers,
                    body=sent,
                    timeout=timeout or self._timeout,
                    streams=streams,
                    limits=limits,
                )
            except ResponseRejected as error:
                raise Unreachable(
                    f"The answer of {to.server}{path} {error}.", hint="Check what serves it, and any proxy on the way."
                ) from error
            except HTTPError as error:
                if not isinstance(error, ProtocolError) or method not in REPEATABLE or not left:
                    raise connection_error(error, request) from error
                if left < tries - 1:  # the first attempt may have used a stale pooled connection
                    self._sleep(PAUSE_SECONDS)
                continue
            if answer.status < HTTPStatus.MULTIPLE_CHOICES:
                self._report_warnings(answer)
                return answer
            if answer.status == HTTPStatus.UNAUTHORIZED and not is_renewed and to.login.discard(session):
                is_renewed = True
                left += 1
                continue
            pause = _pause(answer, method, tried=tries - left)
            if pause is None or not left:
                raise api_error(answer.status, answer.data, request)
            self._sleep(pause)

    def _report_warnings(self, answer: Response) -> None:
        for header in answer.headers.getlist("warning"):
            for warning in WARNING.findall(header):
                if warning not in self._seen_warnings:
                    self._seen_warnings.add(warning)
                    self._on_warning(re.sub(r"\\(.)", r"\1", warning))


def _request_timeout(seconds: float | None) -> Timeout:
    """Return the timeout for ``--request-timeout``; 0 disables it, ``None`` selects the default."""
    return DEFAULT_TIMEOUT if seconds is None else Timeout(connect=seconds or None, read=seconds or None)


def _pause(answer: Response, method: str, *, tried: int) -> float | None:
    """Return the seconds to wait before a retry; ``None`` if a retry is unsafe or useless."""
    retry_after = answer.headers.get("retry-after", "")
    later = answer.status == HTTPStatus.TOO_MANY_REQUESTS or (
        answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR and retry_after
    )
    if later:
        return min(float(retry_after) if retry_after.isdecimal() else 1.0, LONGEST_PAUSE_SECONDS)
    if method == "GET" and answer.status in BROKEN_GATEWAY:
        return 0.25 * 2.0**tried
    return None


def collection(api_version: str, plural: str, namespace: str | None) -> str:
    """Return the path of all objects of a kind in one namespace, or in all of them.

    >>> collection("v1", "pods", "a")
    '/api/v1/namespaces/a/pods'
    >>> collection("kubeflow.org/v1", "pytorchjobs", None)
    '/apis/kubeflow.org/v1/pytorchjobs'
    """
    root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
    return f"{root}/namespaces/{namespace}/{plural}" if namespace else f"{root}/{plural}"


def pod_path(pod: Object) -> str:
    """Return the path of one pod."""
    return f"{collection('v1', 'pods', pod['metadata']['namespace'])}/{pod['metadata']['name']}"
