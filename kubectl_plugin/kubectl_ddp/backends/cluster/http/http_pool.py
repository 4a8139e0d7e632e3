"""Requests through urllib3, for all requests but the plain reads of :mod:`.http1_client`. Imported lazily."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from http import HTTPStatus

from urllib3 import PoolManager, Timeout
from urllib3.exceptions import ConnectTimeoutError, HTTPError, ProtocolError, ReadTimeoutError

from kubectl_ddp.backends.cluster.http.api_errors import Call
from kubectl_ddp.backends.cluster.http.connection_errors import connection_error
from kubectl_ddp.backends.cluster.http.http1_client import CHUNK_BYTES, IncompleteResponse, Response, Timeouts, TooSlow
from kubectl_ddp.errors import Unreachable
from kubectl_ddp.util.bounded_answer import AnswerLimits, check_coding, read_answer


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
    limits: AnswerLimits | None,
) -> Response:
    """Send a request and return the response; for a stream, only its head.

    Raises IncompleteResponse, RefusedAnswer and Unreachable.
    """
    try:
        response = pool.request(
            method,
            url,
            body=body,
            headers=headers,
            timeout=Timeout(connect=patience.connect, read=patience.read, total=patience.total),
            preload_content=False,
            decode_content=False,
            retries=False,
            redirect=False,
        )
    except ProtocolError as error:
        raise IncompleteResponse from error
    except HTTPError as error:
        raise connection_error(error, asked) from error
    goes_on = streams and response.status < HTTPStatus.MULTIPLE_CHOICES
    coding = response.headers.get("Content-Encoding", "")
    try:
        check_coding(coding, headers.get("Accept-Encoding", ""))
        data = b"" if goes_on else read_answer(iter(lambda: response.read1(CHUNK_BYTES), b""), limits, coding=coding)
    except (ProtocolError, ValueError, zlib.error) as error:  # a chunk of a negative size is a ValueError
        response.close()
        raise IncompleteResponse from error
    except HTTPError as error:
        response.close()
        raise connection_error(error, asked) from error
    except BaseException:  # unread data must not become the next response
        response.close()
        raise
    if not goes_on:
        response.release_conn()
    return Response(
        status=response.status,
        headers={name.lower(): tuple(response.headers.getlist(name)) for name in response.headers},
        data=data,
        stream=response if goes_on else None,
    )


def incomplete_response_error(error: IncompleteResponse | TooSlow, asked: Call) -> Unreachable:
    """Return the error for a server that sent no complete response."""
    if isinstance(error, IncompleteResponse):
        known = error.__cause__
        return connection_error(known if isinstance(known, HTTPError) else ProtocolError(), asked)
    late = ConnectTimeoutError() if error.is_connecting else ReadTimeoutError(None, None, "")  # type: ignore[arg-type]
    return connection_error(late, asked)
