"""Reader of HTTP answers with limits, for servers that are not trusted: pods, also behind the API server's proxy.

:func:`read_response` takes the body in chunks, as any HTTP library yields them, so the limits hold for all of them. A
pod can offer an answer without an end, byte by byte, packed a thousandfold, or of lines without text.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final


class ResponseRejected(Exception):
    """The answer exceeds a limit, or has a content coding that was not requested. The message completes "it ..."."""


@dataclass(frozen=True, slots=True)
class ResponseLimits:
    """Limits of one answer."""

    most_bytes: int
    """Largest body in bytes, as received and as unpacked."""
    most_lines: int = 50_000
    """Largest number of lines."""
    most_seconds: float = 30.0
    """Longest time from the first to the last byte of the body, in seconds."""
    most_processor_seconds: float = 0.5
    """Longest processor time of the reading thread, in seconds."""


POD_ANSWER: Final = ResponseLimits(most_bytes=4 << 20, most_seconds=5.0)
"""Limits for metrics, history and hang report of a pod. 16 ranks serve less than 0.3 MB of metrics."""
POD_STATE: Final = ResponseLimits(most_bytes=64 << 10, most_lines=1_000, most_seconds=5.0)
"""Limits for one family of a pod's metrics."""
API_DOCUMENT: Final = ResponseLimits(most_bytes=64 << 20, most_lines=1_000_000, most_processor_seconds=10.0)
"""Limits for a document of the API server, such as a schema, which has up to 2 MB."""


def check_encoding(coding: str, requested: str = "") -> None:
    """Raise ResponseRejected for a content coding that was not requested."""
    if coding.lower() not in {"", "identity", requested}:
        raise ResponseRejected(f"has the content coding '{coding[:40]}', which was not requested")


def read_response(chunks: Iterable[bytes], limits: ResponseLimits | None, *, coding: str = "") -> bytes:
    """Return a whole body.

    Args:
        chunks: Body as received, in pieces of any size. Its errors are passed on.
        limits: Limits of the body; None for a trusted server.
        coding: Content coding of the body, which :func:`check_encoding` has accepted.

    Raises:
        ResponseRejected: If the body exceeds a limit. No further chunk is read then.
        zlib.error: If a packed body is damaged.
    """
    received = b"".join(chunks if limits is None else _within_limits(chunks, limits))
    return _unpack(received, limits) if coding.lower() == "gzip" else received


def _within_limits(chunks: Iterable[bytes], limits: ResponseLimits) -> Iterator[bytes]:
    end, processor_end = time.monotonic() + limits.most_seconds, time.thread_time() + limits.most_processor_seconds
    size = lines = 0
    for chunk in chunks:
        size += len(chunk)
        lines += chunk.count(b"\n")
        if size > limits.most_bytes:
            raise ResponseRejected(f"has more than {limits.most_bytes >> 10} KiB")
        if lines > limits.most_lines:
            raise ResponseRejected(f"has more than {limits.most_lines} lines")
        if time.monotonic() > end:
            raise ResponseRejected(f"was not complete after {limits.most_seconds:g} s")
        if time.thread_time() > processor_end:
            raise ResponseRejected(f"took more than {limits.most_processor_seconds:g} s of processor time")
        yield chunk


def _unpack(packed: bytes, limits: ResponseLimits | None) -> bytes:
    inflating = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    data = inflating.decompress(packed, limits.most_bytes if limits else 0)
    if limits and inflating.unconsumed_tail:
        raise ResponseRejected(f"has more than {limits.most_bytes >> 10} KiB")
    if not inflating.eof:
        raise zlib.error("the packed body has no end")
    return data
