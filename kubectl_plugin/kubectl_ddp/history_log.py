"""What a pod's numbers have been, as its aggregator leaves it packed at the end of the pod's log.

A program may write what it likes into its log, so nothing here trusts a line: what is no history is none, and one that
would unpack to more than :data:`MOST_BYTES` is not unpacked.
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
"""Of a log, among which the history is: the launcher says a few words after it."""

_LINE: Final = re.compile(rf"^{re.escape(HISTORY_MARK)}(\d{{1,4}})/(\d{{1,4}}) ([A-Za-z0-9+/=]+)$")


def without(lines: Iterable[str]) -> Iterator[str]:
    """Lines of a log, each with its time in front, that people are shown."""
    return (line for line in lines if not is_part(line.partition(" ")[2]))


def is_part(text: str) -> bool:
    """Whether a line is a part of a history, which is nothing to look at."""
    return text.startswith(HISTORY_MARK) and _LINE.match(text) is not None


def unpacked(lines: Iterable[str]) -> str | None:
    """The last whole history among the lines of a log, as JSON; None where there is none."""
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
