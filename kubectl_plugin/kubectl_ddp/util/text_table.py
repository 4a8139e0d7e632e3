"""Text for terminals: tables, colors, the format of durations and numbers, and escaping.

During a command, :func:`escaping` replaces stdout and stderr by escaping streams, so no command can forget it: a job's
text cannot send terminal controls. Only the colors of :class:`Style` pass. Text of jobs is also cleaned where it is
read (:func:`ddp_trainer.common.safe_text.clean_text`). This module catches the rest.
"""

from __future__ import annotations

import contextlib
import html
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TextIO

from ddp_trainer.common.safe_text import escape_control_chars, escape_log_line

NOTHING: Final = "-"
"""Placeholder for an unknown value."""

_GAP: Final = 3
_NARROWEST: Final = 12
"""Minimum width to which a column is truncated."""

_COLORS: Final[Mapping[str, str]] = {"green": "32", "yellow": "33", "red": "31", "dim": "2", "bold": "1"} | {
    "on red": "30;41",
    "on green": "30;42",
    "on yellow": "30;43",
    "on blue": "37;44",
    "on magenta": "30;45",
    "on cyan": "30;46",
    "on white": "30;47",
}
COLOR_CODES: Final = frozenset(_COLORS.values())
"""Codes that :meth:`Style.apply_color` may write between ``ESC [`` and ``m``."""


@dataclass(frozen=True, slots=True)
class Style:
    """Display capabilities of the output."""

    color: bool = False
    width: int | None = None
    """Columns of the terminal; None for a pipe, where nothing is truncated."""
    unicode: bool = True
    """True if the output supports characters beyond ASCII, such as blocks and the ellipsis."""

    def apply_color(self, text: str, color: str) -> str:
        """Return the text in a color if colors are enabled. The text must be unambiguous without its color."""
        text = escape_control_chars(text)
        return f"\033[{_COLORS[color]}m{text}\033[0m" if self.color and text and color in _COLORS else text


@dataclass(frozen=True, slots=True)
class Cell:
    """One field of a table."""

    text: str
    color: str = ""
    spans: tuple[Cell, ...] = ()
    """Pieces of the text, each with its own color."""

    def __post_init__(self) -> None:
        """Escape control characters, which would reach the terminal and break the column widths."""
        object.__setattr__(self, "text", escape_control_chars(self.text))

    def styled(self, style: Style, width: int) -> str:
        """Return the text in its colors, truncated to ``width`` columns."""
        if len(self.text) > width:
            return style.apply_color(self.text[: width - 1] + ("…" if style.unicode else "~"), self.color)
        return "".join(style.apply_color(span.text, span.color) for span in self.spans or (self,))


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a header, as kubectl prints them."""

    header: Sequence[str]
    rows: list[Sequence[Cell]] = field(default_factory=list)

    @classmethod
    def from_text(cls, header: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
        """Return a table of texts without colors."""
        return cls(header, [[Cell(text) for text in row] for row in rows])

    def render(self, style: Style, *, has_header: bool = True) -> str:
        """Return the lines of the table. If it exceeds the width of the terminal, the widest columns are truncated."""
        columns = range(len(self.header))
        widths = [max([len(self.header[at]), *(len(row[at].text) for row in self.rows)]) for at in columns]
        if style.width is not None:
            widths = _fit_columns(widths, self.header, style.width)
        lines = [_line([Cell(word, "bold") for word in self.header], widths, style)] if has_header else []
        lines += [_line(row, widths, style) for row in self.rows]
        return "\n".join(lines)

    def render_html(self) -> str:
        """Return the table as HTML, with all text escaped."""
        header = "".join(f"<th>{html.escape(word)}</th>" for word in self.header)
        rows = ("".join(f"<td>{html.escape(cell.text)}</td>" for cell in row) for row in self.rows)
        return f"<table><tr>{header}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _fit_columns(widths: list[int], header: Sequence[str], limit: int) -> list[int]:
    widths = list(widths)
    least = [max(len(word), min(_NARROWEST, width)) for word, width in zip(header, widths, strict=True)]
    while sum(widths) + _GAP * (len(widths) - 1) > limit:
        at = max(range(len(widths)), key=lambda index: widths[index] - least[index])
        if widths[at] <= least[at]:
            break
        widths[at] -= 1
    return widths


def _line(cells: Sequence[Cell], widths: Sequence[int], style: Style) -> str:
    parts = []
    for cell, width in zip(cells, widths, strict=True):
        parts.append(cell.styled(style, width) + " " * max(0, width - len(cell.text)))
    return (" " * _GAP).join(parts).rstrip()


def duration(seconds: float | None) -> str:
    """Format a duration as kubectl does.

    >>> [duration(each) for each in (None, 0.4, 7, 119, 600, 7300, 90_000, 1_000_000)]
    ['-', '0s', '7s', '119s', '10m', '121m', '25h', '11d']
    """
    if seconds is None:
        return NOTHING
    for limit, size, unit in ((120, 1, "s"), (7_380, 60, "m"), (172_800, 3_600, "h")):
        if seconds < limit:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds // 86_400)}d"


def number(value: float | None, *, digits: int = 4) -> str:
    """Format a number with ``digits`` significant digits; large numbers keep all digits before the decimal point.

    >>> [number(each) for each in (None, 0.012345, 3.0, 1234.5678, 98765.4)]
    ['-', '0.01235', '3', '1235', '98765']
    """
    if value is None:
        return NOTHING
    return f"{value:.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def count(value: int | None) -> str:
    """Format an integer."""
    return NOTHING if value is None else str(value)


def pluralize(number: int, noun: str, plural: str = "") -> str:
    """Format a number with its noun.

    >>> pluralize(1, "rank"), pluralize(2, "rank"), pluralize(2, "process", "processes")
    ('1 rank', '2 ranks', '2 processes')
    """
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def percent(share: float | None) -> str:
    """Format a fraction of 1 as a percentage.

    >>> percent(0.4567), percent(None)
    ('45%', '-')
    """
    return NOTHING if share is None else f"{int(share * 100)}%"


def format_ranges(numbers: Iterable[int]) -> str:
    """Format numbers in order, with consecutive ones as a range.

    >>> format_ranges([8, 0, 1, 2, 5, 7]), format_ranges([3])
    ('0-2,5,7-8', '3')
    """
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


PREFIX: Final = re.compile(r"^\[rank(\d+)\] ?")
"""Prefix that the launcher adds to a rank's line (``kubectl_ddp.render.pod.LOG_PREFIX``)."""
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
