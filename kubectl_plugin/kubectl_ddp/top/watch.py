"""Live view of a job, until a key, the job's end, or Ctrl-C.

A separate thread queries the pods, so that keys work immediately even if a pod does not answer for seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from kubectl_ddp.backends.base import Backend
from kubectl_ddp.errors import DdpError, NotFound
from kubectl_ddp.observe.scrape import scrape
from kubectl_ddp.top.drawing import sparkline
from kubectl_ddp.top.rate_window import RateWindow
from kubectl_ddp.top.terminal import Terminal
from kubectl_ddp.top.top_view import SPARK_WIDTH, TopView
from kubectl_ddp.util.text_table import Style, duration

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

    def __init__(self, backend: Backend, name: str, looks: Style, wake: Callable[[], None]) -> None:
        self._backend, self._name, self._looks, self._wake = backend, name, looks, wake
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
        course, unicode = self._course, self._looks.unicode
        return TopView(
            state=state,
            now=time.time(),
            slow=slow,
            throughput=sparkline(list(course.throughput), SPARK_WIDTH, unicode=unicode),
            step_time=sparkline(list(course.step_seconds), SPARK_WIDTH, unicode=unicode),
            losses=tuple(course.loss),
        )


def watch(backend: Backend, name: str, looks: Style) -> TopView | None:
    """Show the job until the user quits (return None) or the job has ended (return the last view).

    Raises:
        NotFound: If the job does not exist or was deleted.
        DdpError: If the first query fails.
    """
    shown: TopView | None = None
    with Terminal() as screen:
        asker = _Poller(backend, name, looks, screen.interrupt_wait)
        try:
            while True:
                frame = asker.latest
                if isinstance(frame, Exception):
                    raise frame
                if frame.error is not None and shown is None:
                    raise frame.error
                shown = frame.picture or shown
                _draw(screen, name, looks, shown, frame.error)
                if shown is not None and shown.state.is_terminal:
                    return shown
                if LEAVE & set(screen.wait(FRAME_SECONDS)):
                    return None
        finally:
            asker.stop()


def _draw(screen: Terminal, name: str, looks: Style, picture: TopView | None, error: DdpError | None) -> None:
    columns, rows = screen.size
    if picture is None:
        screen.draw([f"{name}: asking its pods ...", KEYS])
        return
    age = max(0.0, time.time() - picture.now)
    wrong = [f"{error.message} Shown is what was {duration(age)} ago."] if error is not None else []
    screen.draw(replace(picture, notes=[KEYS, *wrong]).lines(replace(looks, width=columns), rows))
