"""Watches a job on a screen until a key, the job's end, or Ctrl-C.

The pods are asked by a thread of its own, so that a key is answered at once, also while a pod is silent for seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from kubectl_ddp.backend import Backend
from kubectl_ddp.errors import DdpError, NotFound
from kubectl_ddp.present import Style, duration
from kubectl_ddp.scrape import scrape
from kubectl_ddp.top.rate_window import RateWindow
from kubectl_ddp.top.sparkline import sparkline
from kubectl_ddp.top.terminal import Terminal
from kubectl_ddp.top.top_view import SPARK_WIDTH, TopView

FRAME_SECONDS: Final = 1.0
SHARE: Final = 0.25
"""Of the time, that we let the API server work for us at most."""
LEAVE: Final = frozenset("qQ")
KEYS: Final = "q leaves"


@dataclass(frozen=True, slots=True)
class _Frame:
    """What one round of questions came to."""

    picture: TopView | None = None
    error: DdpError | None = None


class _Poller:
    """Asks the pods again and again, until told to stop; each answer wakes the screen."""

    def __init__(self, backend: Backend, name: str, looks: Style, wake: Callable[[], None]) -> None:
        self._backend, self._name, self._looks, self._wake = backend, name, looks, wake
        self._course = RateWindow()
        self._ended = threading.Event()
        self.latest: _Frame | Exception = _Frame()
        # A daemon: a pod that does not answer must not hold up the end of the command.
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        """Ask no more."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.is_set():
            begun = time.monotonic()
            try:
                self.latest = _Frame(self._build_view())
            except NotFound as error:
                self.latest = error
            except DdpError as error:  # the API server, perhaps; it may answer again
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
        )


def watch(backend: Backend, name: str, looks: Style) -> TopView | None:
    """Show the job until a person leaves or it has ended; the last picture then.

    Raises:
        NotFound: there is no such job, or it was deleted.
        DdpError: it could not be asked even once.
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
