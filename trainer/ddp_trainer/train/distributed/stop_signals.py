"""Handling of SIGTERM and SIGINT: finish the step with all ranks, save, and exit within the grace period.

:class:`StopRequest` only sets a flag on SIGTERM. The next vote of the ranks carries the flag, so all ranks stop after
the same step. A thread reads the wake-up pipe of the signals. It works even while the main thread is in a collective,
where Python cannot run a handler. The thread ends the process if the orderly stop exceeds the grace period. Before
training starts there is nothing to save, so it ends the process immediately.
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
"""Time for the launcher to notice the exit of this process before the pod is killed."""


class StopRequest:
    """Request to stop this process, set by SIGTERM or SIGINT."""

    def __init__(self, *, grace_seconds: float, leave: Callable[[int, str], None]) -> None:
        """Create a request that is not set.

        Args:
            grace_seconds: Time between SIGTERM and SIGKILL, in seconds.
            leave: Ends the process immediately with an exit code and a message.
        """
        self.patience_seconds = max(grace_seconds - _MARGIN_SECONDS, grace_seconds / 2)
        """Maximum duration of an orderly stop."""
        self._leave = leave
        self._lock = threading.Lock()
        self._training = False
        self._is_requested = False
        self._deadline: threading.Timer | None = None
        self.exit_code: int | None = None
        """Exit code after the stop; None without a request."""
        self.on_stop: Callable[[], None] = lambda: None
        """Callback after each signal, called in the listening thread."""

    def begin_training(self) -> None:
        """Defer requests to the end of the current step from now on."""
        with self._lock:
            self._training = True

    def on_signal(self, number: int) -> None:
        """Handle a signal.

        Before training it ends the process. The first signal in training starts the timer of the orderly stop. A
        repeated SIGINT ends the process without saving.
        """
        code = Exit.SIGNAL_BASE + number
        with self._lock:
            first, self._is_requested = not self._is_requested, True
            self.exit_code = self.exit_code if self.exit_code is not None else code
            training = self._training
        if not training:
            self._leave(code, "Stop requested before training began.")
        elif not first and number == signal.SIGINT:
            self._leave(code, "Interrupted again: leaving without saving.")
        elif first:
            late = f"The step did not end within {self.patience_seconds:g} s of the request: leaving without saving."
            self._deadline = threading.Timer(self.patience_seconds, self._leave, (code, late))
            self._deadline.daemon = True
            self._deadline.start()
        self.on_stop()

    def finished(self) -> None:
        """Cancel the timer, because the process stops in order."""
        if self._deadline is not None:
            self._deadline.cancel()

    @contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Context that handles SIGTERM and SIGINT. Has no effect outside of the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        listener = threading.Thread(target=self._listen, args=(reader,), name="ddp-stop", daemon=True)
        listener.start()
        # Set the pipe before the handlers: a handler without a pipe would lose the signal.
        wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            self.finished()
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(wakeup)
            writer.close()
            listener.join()
            reader.close()

    def _on_signal(self, number: int, _frame: object) -> None:
        """Record the exit code. Python writes to the wake-up pipe only if a handler exists; the thread does the rest.

        The main thread needs the exit code right after the signal, even if the thread has not run yet.
        """
        if self.exit_code is None:
            self.exit_code = Exit.SIGNAL_BASE + number

    def _listen(self, pipe: socket.socket) -> None:
        while numbers := pipe.recv(64):
            for number in numbers:
                if number in (signal.SIGTERM, signal.SIGINT):
                    self.on_signal(number)


def exit_immediately(code: int, sentence: str) -> None:
    """End this process immediately, without waiting for threads, groups or exit handlers."""
    os.write(2, f"{sentence}\n".encode())
    os._exit(code)
