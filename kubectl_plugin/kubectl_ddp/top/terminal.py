"""Full-screen terminal session: alternate screen, single keys, and the current window size.

The terminal is restored on every exit: key, Ctrl-C, SIGTERM or error. The shell's lines, cursor and echo come back.
Ctrl-Z also restores it until ``fg``.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Sequence
from types import FrameType
from typing import Any, Final, Self

from kubectl_ddp.util.terminal import escape_text, raw

_ENTER: Final = "\033[?1049h\033[?25l\033[?7l\033[2J"
"""Alternate screen, hidden cursor, no line wrapping."""
_LEAVE: Final = "\033[?7h\033[?25h\033[?1049l"
_HOME, _TO_LINE_END, _TO_SCREEN_END = "\033[H", "\033[K", "\033[J"
_FALLBACK: Final = (80, 24)


class Terminal:
    """Terminal of stdout and stdin, as a context manager."""

    def __init__(self) -> None:
        self._stdin = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._modes: list[Any] | None = None
        self._handlers: dict[signal.Signals, Any] = {}
        self._is_to_stop = False
        self._wakeup_before = -1
        self._woken, self._waker = os.pipe()
        for end in (self._woken, self._waker):
            os.set_blocking(end, False)

    def __enter__(self) -> Self:
        for number, handler in ((signal.SIGWINCH, _ignore), (signal.SIGTSTP, self._stop), (signal.SIGTERM, _end)):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._handlers[number] = signal.signal(number, handler)
        self._wakeup_before = signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        self._take()
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()
        signal.set_wakeup_fd(self._wakeup_before)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._woken)
        os.close(self._waker)

    @property
    def size(self) -> tuple[int, int]:
        """Current number of columns and rows."""
        try:
            columns, rows = os.get_terminal_size(sys.stdout.fileno())
        except OSError:
            return shutil.get_terminal_size(_FALLBACK)
        return columns or _FALLBACK[0], rows or _FALLBACK[1]

    def draw(self, lines: Sequence[str]) -> None:
        """Replace the screen's content with these lines."""
        text = _HOME + "\n".join(f"{escape_text(line)}{_TO_LINE_END}" for line in lines) + _TO_SCREEN_END
        _write(text)

    def interrupt_wait(self) -> None:
        """Interrupt :meth:`wait`; may be called from any thread."""
        with contextlib.suppress(OSError):  # full: already awake; closed: no wait is running
            os.write(self._waker, b"\0")

    def wait(self, seconds: float | None) -> str:
        """Wait for a key, a resize, an interrupt or the timeout, and return the typed keys (empty for none)."""
        # A signal just before select would not interrupt it; its byte in the pipe does.
        sources = [self._woken] if self._stdin is None else [self._woken, self._stdin]
        ready = select.select(sources, [], [], seconds)[0]
        if self._woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._woken, 4096)
        if self._is_to_stop:
            self._pause()
        if self._stdin is None or self._stdin not in ready:
            return ""
        typed = os.read(self._stdin, 1024)
        if not typed:  # the terminal is gone, and select would always report it as ready
            self._stdin = None
        return typed.decode(errors="replace")

    def _take(self) -> None:
        if self._stdin is not None:
            self._modes = termios.tcgetattr(self._stdin)
            tty.setcbreak(self._stdin, termios.TCSADRAIN)  # Ctrl-C stays a signal
        _write(_ENTER)

    def _restore(self) -> None:
        with contextlib.suppress(OSError):  # the terminal may be gone
            _write(_LEAVE)
        if self._stdin is not None and self._modes is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._stdin, termios.TCSADRAIN, self._modes)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._is_to_stop = True

    def _pause(self) -> None:
        self._is_to_stop = False
        self._restore()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take()


def _write(text: str) -> None:
    """Write text to stdout and replace characters that its encoding lacks, such as letters of a pod's name."""
    stdout = raw(sys.stdout)
    encoding = stdout.encoding or "ascii"
    stdout.write(text.encode(encoding, "replace").decode(encoding))
    stdout.flush()


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Ignore the signal; its byte in the wake-up pipe is enough."""


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
