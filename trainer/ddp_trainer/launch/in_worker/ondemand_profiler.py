"""Worker's side of ``kubectl ddp profile``: torch's profiler for a few steps of a running script. :func:`listen` is the
main entry point.

A signal starts it, since a busy process reads nothing else. The request is in a file beside the worker's heartbeat
page. The trace begins and ends at the end of ``optimizer.step()``, by the hook that torch has for all optimizers.
Before the signal, nothing is imported or registered with torch. After the trace, nothing is left.

Loaded by path into the processes of user scripts: standard library only, and torch only if the script has imported it.
A failure is reported to the requesting process and never stops training.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself would cost every worker a millisecond
    from collections.abc import Callable
    from typing import Any

BELOW_LAST = 8
"""Distance of the profiler's signal below ``SIGRTMAX``; see ``heartbeat.py`` for the signal next to it."""
REQUEST = ".profile.json"
"""Suffix of a heartbeat page's path: file with the request."""
READY = ".profile.signal"
"""Suffix of a heartbeat page's path: file with the signal number of its worker."""
TRACE = "trace.json.gz"
REFUSAL = "refusal.txt"
"""Name in the requester's folder of the error message. Either this or the trace is written."""
MOST_SECONDS = 60.0
"""Seconds after which a trace ends at the next step, before all requested steps are done."""


def listen(path: str) -> None:
    """Handle the profiler's signal, unless the script uses this signal itself.

    Args:
        path: Path of the worker's heartbeat page.
    """
    number = signal.SIGRTMAX - BELOW_LAST
    try:
        if signal.getsignal(number) is signal.SIG_DFL:
            owner = os.getpid()
            signal.signal(number, lambda *_: _on_signal(path) if os.getpid() == owner else None)
            with open(path + READY, "w") as file:  # noqa: PTH123 - pathlib costs a worker 10 ms
                file.write(str(int(number)))
    except (OSError, ValueError, AttributeError):  # for example not in the main thread: this worker cannot be profiled
        return


def _on_signal(path: str) -> None:
    """Handle the signal. Python calls this between two instructions of the main thread."""
    try:
        with open(path + REQUEST) as file:  # noqa: PTH123
            wanted = json.load(file)
        folder, steps = str(wanted["folder"]), int(wanted["steps"])
    except (OSError, ValueError, KeyError, TypeError):
        return  # the requester has gone
    try:
        window = Window(folder, steps)
        window.remove = hook()(window.on_optimizer_step).remove
    except Exception as error:  # noqa: BLE001 - a profiler must not stop training
        write_error(folder, error)


def hook() -> Any:
    """Return torch's function that registers a call after every step of every optimizer.

    Raises:
        RuntimeError: The script has not imported torch's optimizers.
    """
    register = getattr(sys.modules.get("torch.optim.optimizer"), "register_optimizer_step_post_hook", None)
    if register is None:
        raise RuntimeError("the script has imported no torch optimizer, so steps cannot be counted")
    return register


class Window:
    """Profile of a number of steps. Its :meth:`on_optimizer_step` is called at the end of every step."""

    def __init__(self, folder: str, steps: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.remove: Callable[[], None] = lambda: None
        self._folder = folder
        self._left = steps
        self._clock = clock
        self._optimizer: Any = None
        self._profile: Any = None
        self._until = 0.0

    def on_optimizer_step(self, optimizer: Any, *_: object) -> None:
        """Handle a step of an optimizer. Of several alternating optimizers, only the first one counts."""
        if self._optimizer not in (None, optimizer):
            return
        try:
            self._step(optimizer)
        except Exception as error:  # noqa: BLE001 - a profiler must not stop training
            self._close()
            write_error(self._folder, error)

    def _step(self, optimizer: Any) -> None:
        if self._profile is None:
            if os.path.isdir(self._folder):  # noqa: PTH112
                self._begin(optimizer)
            else:  # the requester has gone
                self._close()
            return
        self._left -= 1
        if self._left <= 0 or self._clock() > self._until:
            profile = self._profile
            self._close()
            self._export(profile)

    def _begin(self, optimizer: Any) -> None:
        import torch  # noqa: PLC0415 - the script has
        from torch.profiler import profile  # noqa: PLC0415 - only for a trace

        # A second profiler would take the first one's records away, and torch lets it.
        if getattr(torch.autograd, "_profiler_enabled", bool)():
            raise RuntimeError("the script runs its own profiler")
        found = profile()
        found.start()
        self._profile, self._optimizer, self._until = found, optimizer, self._clock() + MOST_SECONDS

    def _close(self) -> None:
        """Remove the hook and the profiler from torch."""
        self.remove()
        profile, self._profile, self._optimizer = self._profile, None, None
        if profile is not None:
            profile.stop()

    def _export(self, profile: Any) -> None:
        draft = os.path.join(self._folder, f"draft.{TRACE}")  # noqa: PTH118
        profile.export_chrome_trace(draft)
        os.replace(draft, os.path.join(self._folder, TRACE))  # noqa: PTH105, PTH118


def write_error(folder: str, error: Exception) -> None:
    """Write why there is no trace."""
    draft = os.path.join(folder, f"draft.{REFUSAL}")  # noqa: PTH118
    try:
        with open(draft, "w") as file:  # noqa: PTH123
            file.write(f"{type(error).__name__}: {error}"[:1000])
        os.replace(draft, os.path.join(folder, REFUSAL))  # noqa: PTH105, PTH118
    except OSError:
        return
