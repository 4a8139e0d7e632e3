"""Truncation of lines that contain colour codes to the width of a terminal."""

from __future__ import annotations

import re
from typing import Final

_PIECE: Final = re.compile(r"(\x1b\[[0-9;]*m)|([^\x1b]+)")
_END_OF_COLOR: Final = "\033[0m"


def cut(line: str, width: int) -> str:
    r"""Return the first ``width`` characters of a line; colour codes do not count.

    >>> cut("\033[31mdown\033[0m now", 2), cut("short", 10)
    ('\x1b[31mdo\x1b[0m', 'short')
    """
    kept, room = [], width
    for color, text in _PIECE.findall(line):
        if color and (room > 0 or color == _END_OF_COLOR):
            kept.append(color)
        kept.append(text[: max(0, room)])
        room -= len(text)
    return "".join(kept)
