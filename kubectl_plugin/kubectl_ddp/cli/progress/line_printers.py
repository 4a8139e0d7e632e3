"""Output of the progress: a line that is rewritten in place on a terminal, and plain lines in a pipe.

Both write only what differs from what they wrote last.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Final, Protocol, TextIO

from ddp_trainer.common.safe_text.control_chars import escape_control_chars
from kubectl_ddp.cli.progress.progress_line import ProgressLine

QUIET_SECONDS: Final = 1.0
"""Seconds without log lines after which the erased line returns."""

SHORTEST_SECONDS: Final = 10.0
"""Minimum seconds between plain lines of one phase."""
LONGEST_SECONDS: Final = 300.0
"""Maximum of that time. Some CI systems end a command that prints nothing for ten minutes."""
SHARE: Final = 0.1
"""Share of the time so far for which a plain line is enough. A day of training takes some 300 lines."""

_ERASE: Final = "\r\033[K"
_NO_WRAP, _WRAP = "\033[?7l", "\033[?7h"


class LinePrinter(Protocol):
    """Place where the progress is shown."""

    def show(self, line: ProgressLine) -> None:
        """Show the line, unless it is shown already."""

    def paused(self) -> AbstractContextManager[None]:
        """Make room for other output inside the block."""

    def close(self) -> None:
        """Remove what is not to stay. Nothing is shown afterwards."""


class RewrittenLine:
    """The last line of a terminal, rewritten in place and cut to its width. Its methods may be called by any thread."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        """Create a line.

        Args:
            stream: Stream of the terminal, without escaping.
            clock: Source of monotonic time.
        """
        self._stream = stream
        self._clock = clock
        self._lock = threading.Lock()
        self._shown = ""
        self._quiet_from = 0.0
        self._is_closed = False

    def show(self, line: ProgressLine) -> None:
        """Replace the line, unless other output was printed within the last second.

        The width is read each time, so a resized window gets a line of its new width.
        """
        text = escape_control_chars(str(line))[: max(0, self._width() - 1)]
        with self._lock:
            if self._is_closed or text == self._shown or self._clock() < self._quiet_from:
                return
            self._shown = text
            # Without wrapping, a character of two columns cannot push the end of the line into the next one.
            self._write(f"{_NO_WRAP}{_ERASE}{text}{_WRAP}")

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Erase the line before other output. It returns once no such output has followed for a second."""
        with self._lock:
            self._erase()
            yield
            self._quiet_from = self._clock() + QUIET_SECONDS

    def close(self) -> None:
        """Erase the line for good."""
        with self._lock:
            self._erase()
            self._is_closed = True

    def _erase(self) -> None:
        if self._shown:
            self._write(_ERASE)
        self._shown = ""

    def _width(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or 80
        except OSError:
            return 80

    def _write(self, text: str) -> None:
        encoding = self._stream.encoding or "ascii"
        self._stream.write(text.encode(encoding, "replace").decode(encoding))
        self._stream.flush()


class PlainLines:
    """One line per phase and per new cause, and further lines of the same phase at growing intervals."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        """Create a printer.

        Args:
            write: Function that prints a line.
            clock: Source of monotonic time.
        """
        self._write_line = write
        self._clock = clock
        self._last: ProgressLine | None = None
        self._begun = self._printed = clock()
        self._is_closed = False

    def show(self, line: ProgressLine) -> None:
        """Print the line if its phase or cause is new, or if it differs and the last line is old enough."""
        last, now = self._last, self._clock()
        if self._is_closed or line == last:
            return
        is_news = last is None or (line.phase, line.cause) != (last.phase, last.cause)
        age = min(max(SHORTEST_SECONDS, SHARE * (now - self._begun)), LONGEST_SECONDS)
        if is_news or now - self._printed >= age:
            self._last, self._printed = line, now
            self._write_line(str(line))

    def paused(self) -> AbstractContextManager[None]:
        """Do nothing: whole lines leave room for other lines."""
        return contextlib.nullcontext()

    def close(self) -> None:
        """Print nothing from now on."""
        self._is_closed = True
