"""One request over the connection pool, and its response."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from urllib3 import BaseHTTPResponse, HTTPHeaderDict, PoolManager, Timeout
from urllib3.exceptions import ProtocolError

from kubectl_ddp.util.bounded_answer import AnswerLimits, check_coding, read_answer

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
    limits: AnswerLimits | None,
) -> Response:
    """Send a request once and return the response; for a stream, only its head.

    Raises:
        ProtocolError: If the connection ended within the response, or the response is damaged.
        HTTPError: If the server cannot be reached, or does not answer in time.
        RefusedAnswer: If the response exceeds the limits.
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
    goes_on = streams and response.status < HTTPStatus.MULTIPLE_CHOICES
    coding = response.headers.get("Content-Encoding", "")
    try:
        check_coding(coding, headers.get("Accept-Encoding", ""))
        data = b"" if goes_on else read_answer(iter(lambda: response.read1(CHUNK_BYTES), b""), limits, coding=coding)
    except (ValueError, zlib.error) as error:  # a chunk of a negative size is a ValueError
        response.close()
        raise ProtocolError(str(error)) from error
    except BaseException:  # unread data must not become the next response
        response.close()
        raise
    if not goes_on:
        response.release_conn()
    return Response(response.status, response.headers, data, response if goes_on else None)
