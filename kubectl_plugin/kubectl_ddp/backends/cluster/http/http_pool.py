"""Requests through urllib3, for all requests but the plain reads of :mod:`.http1_client`. Imported lazily."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from urllib3 import BaseHTTPResponse, PoolManager, Timeout
from urllib3.exceptions import ConnectTimeoutError, HTTPError, ProtocolError, ReadTimeoutError

from kubectl_ddp.backends.cluster.http.api_errors import Call
from kubectl_ddp.backends.cluster.http.connection_errors import connection_error
from kubectl_ddp.backends.cluster.http.http1_client import IncompleteResponse, Response, Timeouts, TooSlow
from kubectl_ddp.errors import Unreachable


def send(
    pool: PoolManager,
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    body: bytes | None,
    patience: Timeouts,
    asked: Call,
    streams: bool,
) -> Response:
    """Send a request and return the response; for a stream, only its head. Raises IncompleteResponse and
    Unreachable.
    """
    try:
        response = pool.request(
            method,
            url,
            body=body,
            headers=headers,
            timeout=Timeout(connect=patience.connect, read=patience.read, total=patience.total),
            preload_content=not streams,
            retries=False,
            redirect=False,
        )
    except ProtocolError as error:
        raise IncompleteResponse from error
    except HTTPError as error:
        raise connection_error(error, asked) from error
    goes_on = streams and response.status < HTTPStatus.MULTIPLE_CHOICES
    return Response(
        status=response.status,
        headers={name.lower(): tuple(response.headers.getlist(name)) for name in response.headers},
        data=b"" if goes_on else _all_of(response),
        stream=response if goes_on else None,
    )


def _all_of(response: BaseHTTPResponse) -> bytes:
    data = response.data
    response.release_conn()
    return data


def incomplete_response_error(error: IncompleteResponse | TooSlow, asked: Call) -> Unreachable:
    """Return the error for a server that sent no complete response."""
    if isinstance(error, IncompleteResponse):
        known = error.__cause__
        return connection_error(known if isinstance(known, HTTPError) else ProtocolError(), asked)
    late = ConnectTimeoutError() if error.is_connecting else ReadTimeoutError(None, None, "")  # type: ignore[arg-type]
    return connection_error(late, asked)
