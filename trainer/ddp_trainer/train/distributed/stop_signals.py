"""Being told to stop: finish the step with all ranks, save, and leave before the grace period is over.

SIGTERM only raises a flag, which rides in the next vote, so that all ranks stop after the same step. A thread that
waits on the signals' wake-up pipe sees them even while the main thread is inside a collective, where Python cannot
run a handler; it ends the process if the good order takes longer than the grace period allows. Before training
begins there is nothing to save, so it ends the process at once.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ddp_trainer.common.constants import Exit

_MARGIN_SECONDS: Final = 1.0
"""Time left to the launcher to see this process go before the pod is killed."""

INTERRUPTED: Final = Exit.SIGNAL_BASE + signal.SIGINT
"""130: told to stop by Ctrl-C."""


class StopRequest:
    """Whether and how this process was told to stop."""

    def __init__(self, *, grace_seconds: float, leave: Callable[[int, str], None]) -> None:
        """``leave`` ends the process at once with an exit code and a sentence."""
        self.patience_seconds = max(grace_seconds - _MARGIN_SECONDS, grace_seconds / 2)
        """How long good order may take."""
        self._leave = leave
        self._lock = threading.Lock()
        self._training = False
        self._is_told = False
        self._deadline: threading.Timer | None = None
        self.exit_code: int | None = None
        """What to exit with once stopped; None when nobody asked."""
        self.heard: Callable[[], None] = _nothing
        """Called from the listening thread after each request."""

    @property
    def requested(self) -> bool:
        """This process was told to stop."""
        return self.exit_code is not None

    def training_begins(self) -> None:
        """From here on a request waits for the end of the step."""
        with self._lock:
            self._training = True

    def signalled(self, number: int) -> None:
        """A signal arrived."""
        code = Exit.SIGNAL_BASE + number
        with self._lock:
            first, self._is_told = not self._is_told, True
            self.exit_code = self.exit_code if self.exit_code is not None else code
            training = self._training
        if not training:
            self._leave(code, "Told to stop before training began.")
        elif not first and number == signal.SIGINT:
            self._leave(code, "Interrupted again: leaving without saving.")
        elif first:
            late = f"The step did not end within {self.patience_seconds:g} s of the request: leaving without saving."
            self._deadline = threading.Timer(self.patience_seconds, self._leave, (code, late))
            self._deadline.daemon = True
            self._deadline.start()
        self.heard()

    def finished(self) -> None:
        """The process leaves in good order."""
        if self._deadline is not None:
            self._deadline.cancel()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hear SIGTERM and SIGINT; only a process's main thread can, elsewhere this does nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        listener = threading.Thread(target=self._listen, args=(ours,), name="ddp-stop", daemon=True)
        listener.start()
        # The pipe before the handlers: a handler without a pipe would lose the signal.
        wakeup = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        before = {number: signal.signal(number, self._noted) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            self.finished()
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(wakeup)
            theirs.close()
            listener.join()
            ours.close()

    def _noted(self, number: int, _frame: object) -> None:
        """A handler must exist for the wake-up pipe to be written; the thread does the work.

        What the main thread does next, however, comes after the signal, whenever the thread gets its turn.
        """
        if self.exit_code is None:
            self.exit_code = Exit.SIGNAL_BASE + number

    def _listen(self, pipe: socket.socket) -> None:
        while numbers := pipe.recv(64):
            for number in numbers:
                if number in (signal.SIGTERM, signal.SIGINT):
                    self.signalled(number)


def _nothing() -> None:
    """Nobody else has to know."""


def leave_at_once(code: int, sentence: str) -> None:
    """End this process without waiting for threads, groups or exit handlers."""
    os.write(2, f"{sentence}\n".encode())
    os._exit(code)
