"""The border between text and the reader's terminal: no control of a job's text crosses it.

While a command runs, :func:`escaping` puts an escaping stream in the place of stdout and stderr, so that no command can
forget it. Only the colours of :class:`~kubectl_ddp.present.Style` pass. Text of jobs is also cleaned where it is read
(:func:`ddp_trainer.common.safe_text.clean_text`); this border catches the rest.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from typing import Any, Final, TextIO

from ddp_trainer.common.safe_text.control_chars import escape_control_chars, escape_log_line
from kubectl_ddp.log_stream import PREFIX
from kubectl_ddp.present import COLOR_CODES

_OWN_COLOR: Final = re.compile(rf"(\x1b\[(?:0|{'|'.join(sorted(COLOR_CODES))})m)")


def escape_text(text: str) -> str:
    r"""Return a text in which the colours of this program alone are left of all terminal controls.

    >>> escape_text("\x1b[32mRunning\x1b[0m \x1b[8mhidden\x1b]0;title\x07")
    '\x1b[32mRunning\x1b[0m \\x1b[8mhidden\\x1b]0;title\\x07'
    """
    if "\x1b" not in text:
        return escape_control_chars(text)
    pieces = _OWN_COLOR.split(text)
    return "".join(piece if at % 2 else escape_control_chars(piece) for at, piece in enumerate(pieces))


class EscapingStream:
    """A text stream whose every write is escaped; everything else is that of the stream behind it.

    It has no ``buffer``, since click would write past it where the locale is ASCII.
    """

    def __init__(self, behind: TextIO) -> None:
        self.behind = behind

    def write(self, text: str) -> int:
        """Write a text, with a question mark for each letter that the encoding lacks."""
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
    """Let stdout and stderr escape what is written to them."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (EscapingStream(stream) if stream else stream for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def raw(stream: TextIO) -> TextIO:
    """Return the stream behind an escaping one, for archives, for the raw lines of a log, and for the screen of top."""
    return stream.behind if isinstance(stream, EscapingStream) else stream


def write_log_line(stream: TextIO, line: str) -> None:
    """Write a line of a log: unchanged to a file or a pipe, with its colours alone to a terminal."""
    behind = raw(stream)
    if behind.isatty():
        prefix = PREFIX.match(line)
        start = prefix.end() if prefix is not None else 0
        line = line[:start] + escape_log_line(line[start:])
    encoding = behind.encoding or "utf-8"
    behind.write(f"{line}\n".encode(encoding, "replace").decode(encoding))
