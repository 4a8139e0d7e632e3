"""Heat map as a PNG with one pixel per value, so that a thousand ranks need only kilobytes.

The colours are viridis, from dark (low) to yellow (high), which colour-blind readers can read (Nuñez, Anderton and
Renslow 2018). Missing values are transparent.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from typing import Final

from kubectl_ddp.report.timeline import Values

STOPS: Final = ("440154", "482878", "3e4989", "31688e", "26828e", "1f9e89", "35b779", "6ece58", "b5de2b", "fde725")
"""Colours at equal distances, from low to high."""

_LEVELS: Final = 64


def grid(rows: Sequence[Values], low: float, high: float) -> str:
    """Return the image as a data URL.

    Args:
        rows: Rows from top to bottom, at least one, each with at least one value.
        low: Value of the darkest colour.
        high: Value of the brightest colour.
    """
    width = len(rows[0])
    lines = b"".join(b"\0" + bytes(_level(value, low, high) for value in row) for row in rows)
    header = struct.pack(">IIBBBBB", width, len(rows), 8, 3, 0, 0, 0)  # 8 bits per pixel, with a palette
    palette = bytes(3) + b"".join(bytes.fromhex(color(index / (_LEVELS - 1))) for index in range(_LEVELS))
    picture = (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", header)
        + _chunk(b"PLTE", palette)
        + _chunk(b"tRNS", b"\0")  # the first palette colour is transparent
        + _chunk(b"IDAT", zlib.compress(lines, 9))
        + _chunk(b"IEND", b"")
    )
    return f"data:image/png;base64,{base64.b64encode(picture).decode()}"


def color(share: float) -> str:
    """Return the colour at a share between low (0) and high (1), as six hexadecimal digits.

    >>> color(0), color(1)
    ('440154', 'fde725')
    """
    place = min(1.0, max(0.0, share)) * (len(STOPS) - 1)
    index = min(int(place), len(STOPS) - 2)
    pairs = zip(bytes.fromhex(STOPS[index]), bytes.fromhex(STOPS[index + 1]), strict=True)
    return bytes(round(one + (other - one) * (place - index)) for one, other in pairs).hex()


def bounds(rows: Sequence[Values]) -> tuple[float, float]:
    """Return the value range of the colours: nearly all values, but wide enough that noise does not fill it."""
    values = sorted(value for row in rows for value in row if value is not None)
    if not values:
        return 0.0, 1.0
    low, middle, high = (values[round((len(values) - 1) * share)] for share in (0.02, 0.5, 0.98))
    return min(low, middle * 0.9), max(high, middle * 1.1, low + 1e-9)


def _level(value: float | None, low: float, high: float) -> int:
    if value is None:
        return 0
    return 1 + min(_LEVELS - 1, max(0, int((value - low) / (high - low) * _LEVELS)))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
