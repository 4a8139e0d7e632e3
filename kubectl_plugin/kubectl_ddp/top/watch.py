"""Live view of a job on a full screen, until a key, the job's end, or Ctrl-C.

A separate thread queries the pods, so that keys work immediately even if a pod does not answer for seconds. The
terminal is restored on every exit: key, Ctrl-C, SIGTERM or error. The shell's lines, cursor and echo come back. Ctrl-Z
also restores it until ``fg``.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, Final, Self

from kubectl_ddp.backends.base import Backend
from kubectl_ddp.errors import DdpError, NotFound
from kubectl_ddp.observe.scrape import scrape
from kubectl_ddp.top.top_view import SPARK_WIDTH, RateWindow, TopView, sparkline
from kubectl_ddp.util.text_table import Style, duration, escape_text, raw

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


FRAME_SECONDS: Final = 1.0
SHARE: Final = 0.25
"""Maximum share of time that the API server spends on our requests."""
LEAVE: Final = frozenset("qQ")
KEYS: Final = "q leaves"


@dataclass(frozen=True, slots=True)
class _Frame:
    """Result of one round of queries."""

    picture: TopView | None = None
    error: DdpError | None = None


class _Poller:
    """Thread that queries the pods repeatedly until stopped; each result wakes the screen."""

    def __init__(self, backend: Backend, name: str, style: Style, wake: Callable[[], None]) -> None:
        self._backend, self._name, self._style, self._wake = backend, name, style, wake
        self._course = RateWindow()
        self._ended = threading.Event()
        self.latest: _Frame | Exception = _Frame()
        # A daemon thread: a pod that does not answer must not delay the end of the command.
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        """Stop querying."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.is_set():
            begun = time.monotonic()
            try:
                self.latest = _Frame(self._build_view())
            except NotFound as error:
                self.latest = error
            except DdpError as error:  # possibly the API server; later queries may succeed
                self.latest = _Frame(error=error)
            except Exception as error:  # noqa: BLE001 - raised where a person is told of it
                self.latest = error
            self._wake()
            took = time.monotonic() - begun
            self._ended.wait(max(FRAME_SECONDS - took, took * (1 / SHARE - 1)))

    def _build_view(self) -> TopView:
        snapshot = self._backend.job(self._name, events=False)
        samples = scrape(self._backend, snapshot)
        state, slow = self._course.frame(snapshot, samples, self._backend.where, time.monotonic())
        course, unicode = self._course, self._style.unicode
        return TopView(
            state=state,
            now=time.time(),
            slow=slow,
            throughput=sparkline(list(course.throughput), SPARK_WIDTH, unicode=unicode),
            step_time=sparkline(list(course.step_seconds), SPARK_WIDTH, unicode=unicode),
            losses=tuple(course.loss),
        )


def watch(backend: Backend, name: str, style: Style) -> TopView | None:
    """Show the job until the user quits (return None) or the job has ended (return the last view).

    Raises:
        NotFound: If the job does not exist or was deleted.
        DdpError: If the first query fails.
    """
    shown: TopView | None = None
    with Terminal() as screen:
        asker = _Poller(backend, name, style, screen.interrupt_wait)
        try:
            while True:
                frame = asker.latest
                if isinstance(frame, Exception):
                    raise frame
                if frame.error is not None and shown is None:
                    raise frame.error
                shown = frame.picture or shown
                _draw(screen, name, style, shown, frame.error)
                if shown is not None and shown.state.is_terminal:
                    return shown
                if LEAVE & set(screen.wait(FRAME_SECONDS)):
                    return None
        finally:
            asker.stop()


def _draw(screen: Terminal, name: str, style: Style, picture: TopView | None, error: DdpError | None) -> None:
    columns, rows = screen.size
    if picture is None:
        screen.draw([f"{name}: asking its pods ...", KEYS])
        return
    age = max(0.0, time.time() - picture.now)
    wrong = [f"{error.message} Shown is what was {duration(age)} ago."] if error is not None else []
    screen.draw(replace(picture, notes=[KEYS, *wrong]).lines(replace(style, width=columns), rows))
