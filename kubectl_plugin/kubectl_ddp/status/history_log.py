"""Metrics history of a pod, which its aggregator writes in packed form to the end of the pod's log.

Any program can write to the log, so the input is not trusted. Malformed histories are ignored, and unpacking stops at
:data:`MOST_BYTES`.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Iterable, Iterator
from typing import Final

from ddp_trainer.common.constants import HISTORY_MARK

MOST_BYTES: Final = 8 << 20
LAST_LINES: Final = 64
"""Number of last log lines that contain the history. The launcher writes a few lines after it."""

_LINE: Final = re.compile(rf"^{re.escape(HISTORY_MARK)}(\d{{1,4}})/(\d{{1,4}}) ([A-Za-z0-9+/=]+)$")


def without(lines: Iterable[str]) -> Iterator[str]:
    """Filter the parts of a history from timestamped log lines."""
    return (line for line in lines if not is_part(line.partition(" ")[2]))


def is_part(text: str) -> bool:
    """Return whether a line is a part of a packed history."""
    return text.startswith(HISTORY_MARK) and _LINE.match(text) is not None


def unpacked(lines: Iterable[str]) -> str | None:
    """Return the last complete history in the lines of a log, as JSON; None if there is none."""
    whole: str | None = None
    parts: list[str] = []
    for line in lines:
        if (found := _LINE.match(line)) is None:
            continue
        number, count = int(found[1]), int(found[2])
        parts = parts if number == len(parts) + 1 else []
        if number == len(parts) + 1:
            parts.append(found[3])
        if number == count == len(parts):
            whole, parts = "".join(parts), []
    return _decompress(whole) if whole is not None else None


def _decompress(packed: str) -> str | None:
    try:
        inflating = zlib.decompressobj()
        text = inflating.decompress(base64.b64decode(packed, validate=True), MOST_BYTES)
        return text.decode() if inflating.eof else None
    except (binascii.Error, zlib.error, UnicodeDecodeError):
        return None
