"""Escaping of terminal controls in text of a job, so that a terminal shows them and does not obey them.

:func:`escape_control_chars` is the entry point for text, :func:`escape_log_line` for lines of a log.
"""

from __future__ import annotations

import re
from typing import Final

_BIDIRECTIONAL: Final = ("\u061c", "\u200e-\u200f", "\u202a-\u202e", "\u2066-\u206f")
_INVISIBLE: Final = ("\u00ad", "\u200b", "\u2028-\u2029", "\u2060-\u2064", "\ufeff", "\ufff9-\ufffb")
_HALVES: Final = "\ud800-\udfff"
"""Surrogates: halves of characters, which no encoding can write."""

_CONTROL: Final = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{''.join((*_BIDIRECTIONAL, *_INVISIBLE))}{_HALVES}]")
"""Controls to escape: C0 without tab and newline, DEL, C1, direction controls, invisible separators. The zero-width
joiner and non-joiner stay, since emoji and several scripts need them."""

_SURROGATE: Final = re.compile(f"[{_HALVES}]")
_ABOVE_ASCII: Final = "".join(
    map(chr, (*range(0x7F, 0x100), *range(0x600, 0x700), *range(0x2000, 0x2100), 0xFEFF, *range(0xFFF9, 0xFFFC)))
)

_COLOR: Final = re.compile(r"(\x1b\[[0-9;]{0,32}m)")

_ESCAPED: Final = {
    **{code: f"\\x{code:02x}" for code in range(0x20) if chr(code) not in "\t\n"},
    ord("\r"): "\\r",
    **{ord(character): f"\\u{ord(character):04x}" for character in _CONTROL.findall(_ABOVE_ASCII)},
}
"""Escapes by code point. Above ASCII they have the form that strings of JSON and YAML share, so that a document
stays valid."""


def escape_control_chars(text: str) -> str:
    r"""Return the text with every terminal control written as an escape; newlines and tabs stay.

    >>> escape_control_chars("a\x1b[2Jb\u202e")
    'a\\x1b[2Jb\\u202e'
    """
    if not _CONTROL.search(text):
        return text
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text.translate(_ESCAPED))


def escape_log_line(line: str) -> str:
    r"""Return a line of a log that is safe for a terminal: colours stay, other controls are escaped.

    A carriage return starts the line again, as progress bars do: only the text after the last one is shown.

    A carriage return starts the line again, as progress bars do: only the text after the last one is shown.

    >>> escape_log_line("\r10%\r\x1b[32m20%\x1b[0m\x1b]52;c;eA==\x07\r")
    '\x1b[32m20%\x1b[0m\\x1b]52;c;eA==\\x07\x1b[0m'
    """
    if not _CONTROL.search(line):
        return line
    last = line.rstrip("\r").rpartition("\r")[2]
    pieces = _COLOR.split(last)
    shown = "".join(piece if at % 2 else escape_control_chars(piece) for at, piece in enumerate(pieces))
    return f"{shown}\x1b[0m" if len(pieces) > 1 and not shown.endswith(("\x1b[0m", "\x1b[m")) else shown
