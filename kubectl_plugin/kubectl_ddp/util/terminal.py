"""Escaping of text on its way to the terminal, so that a job's text cannot send terminal controls.

During a command, :func:`escaping` replaces stdout and stderr by escaping streams, so no command can forget it. Only the
colors of :class:`~kubectl_ddp.util.text_table.Style` pass. Text of jobs is also cleaned where it is read
(:func:`ddp_trainer.common.safe_text.clean_text`). This module catches the rest.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from typing import Any, Final, TextIO

from ddp_trainer.common.safe_text import escape_control_chars, escape_log_line
from kubectl_ddp.util.text_table import COLOR_CODES

PREFIX: Final = re.compile(r"^\[rank(\d+)\] ?")
"""Prefix that the launcher adds to a rank's line (``contract.LOG_PREFIX``)."""
_OWN_COLOR: Final = re.compile(rf"(\x1b\[(?:0|{'|'.join(sorted(COLOR_CODES))})m)")


def escape_text(text: str) -> str:
    r"""Return the text with all terminal controls escaped, except this program's own colors.

    >>> escape_text("\x1b[32mRunning\x1b[0m \x1b[8mhidden\x1b]0;title\x07")
    '\x1b[32mRunning\x1b[0m \\x1b[8mhidden\\x1b]0;title\\x07'
    """
    if "\x1b" not in text:
        return escape_control_chars(text)
    pieces = _OWN_COLOR.split(text)
    return "".join(piece if at % 2 else escape_control_chars(piece) for at, piece in enumerate(pieces))


class EscapingStream:
    """Text stream that escapes everything written to it; other attributes are those of the wrapped stream.

    It has no ``buffer``, because click would write to that directly if the locale is ASCII.
    """

    def __init__(self, behind: TextIO) -> None:
        self.behind = behind

    def write(self, text: str) -> int:
        """Write the text escaped, with a question mark for each character that the encoding lacks."""
        if not isinstance(text, str):
            raise TypeError(f"a text stream takes str, not {type(text).__name__}")
        encoding = self.behind.encoding or "utf-8"
        self.behind.write(escape_text(text).encode(encoding, "replace").decode(encoding))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":
            raise AttributeError(name)
        return getattr(self.behind, name)


@contextlib.contextmanager
def escaping() -> Iterator[None]:
    """Escape everything written to stdout and stderr inside the block."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (EscapingStream(stream) if stream else stream for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def raw(stream: TextIO) -> TextIO:
    """Return the wrapped stream of an escaping one, for archives, raw log lines and the screen of top."""
    return stream.behind if isinstance(stream, EscapingStream) else stream


def write_log_line(stream: TextIO, line: str) -> None:
    """Write a log line: unchanged to a file or a pipe, with only its colors to a terminal."""
    behind = raw(stream)
    if behind.isatty():
        prefix = PREFIX.match(line)
        start = prefix.end() if prefix is not None else 0
        line = line[:start] + escape_log_line(line[start:])
    encoding = behind.encoding or "utf-8"
    behind.write(f"{line}\n".encode(encoding, "replace").decode(encoding))
