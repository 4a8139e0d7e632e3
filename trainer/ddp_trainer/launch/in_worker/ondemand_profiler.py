"""The worker's side of ``kubectl ddp profile``: torch's profiler for a few steps of a script that runs already.

A signal asks for it, since a process that is at work reads nothing else. What is asked stands in a file beside the
worker's pulse. The answer begins and ends where a step does: at the end of ``optimizer.step()``, by the hook that torch
has for all optimizers. Before that signal nothing is imported and nothing is registered with torch; after the window
nothing is left.

Loaded by path into the processes of other people's scripts: standard library only, and torch only where the script has
imported it. Whatever fails here is told to the one who asked, and training goes on.
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
"""The signal is the so manieth real-time signal before the last; see ``heartbeat.py`` for the one beside it."""
ASKED = ".profile.json"
"""Behind the path of a pulse: what is asked for."""
READY = ".profile.signal"
"""Behind the path of a pulse: at which signal its worker looks there."""
TRACE = "trace.json.gz"
REFUSAL = "refusal.txt"
"""Names in the directory in which the asker waits: the one or the other."""
COMPILER = "torch._dynamo"
MOST_SECONDS = 60.0
"""A window is closed after this time, at the next step, however many steps were asked for."""


def listen(path: str) -> None:
    """From now on, look at what is asked when the signal comes; nothing where the script has the signal for itself."""
    number = signal.SIGRTMAX - BELOW_LAST
    try:
        if signal.getsignal(number) is signal.SIG_DFL:
            owner = os.getpid()
            signal.signal(number, lambda *_: _asked(path) if os.getpid() == owner else None)
            with open(path + READY, "w") as file:  # noqa: PTH123 - pathlib costs a worker 10 ms
                file.write(str(int(number)))
    except (OSError, ValueError, AttributeError):  # not the main thread, for one: this worker cannot be profiled
        return


def _asked(path: str) -> None:
    """Called by Python between two of the main thread's instructions."""
    try:
        with open(path + ASKED) as file:  # noqa: PTH123
            wanted = json.load(file)
        folder, steps = str(wanted["folder"]), int(wanted["steps"])
    except (OSError, ValueError, KeyError, TypeError):
        return  # whoever asked has gone
    try:
        window = Window(folder, steps)
        window.remove = hook()(window.stepped).remove
    except Exception as error:  # noqa: BLE001 - training does not fail because somebody looks
        refuse(folder, error)


def hook() -> Any:
    """What calls us after every step of every optimizer. Raises RuntimeError."""
    register = getattr(sys.modules.get("torch.optim.optimizer"), "register_optimizer_step_post_hook", None)
    if register is None:
        raise RuntimeError("the script has imported no optimizer of torch's, by which steps are told")
    return register


class Window:
    """Told of the end of every step, until it has seen as many as were asked for."""

    def __init__(self, folder: str, steps: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.remove: Callable[[], None] = lambda: None
        self._folder = folder
        self._left = steps
        self._clock = clock
        self._optimizer: Any = None
        self._profile: Any = None
        self._until = 0.0

    def stepped(self, optimizer: Any, *_: object) -> None:
        """An optimizer made its step. Of several that take turns, the first one counts."""
        if self._optimizer not in (None, optimizer):
            return
        try:
            self._step(optimizer)
        except Exception as error:  # noqa: BLE001 - training does not fail because somebody looks
            self._close()
            refuse(self._folder, error)

    def _step(self, optimizer: Any) -> None:
        if self._profile is None:
            if os.path.isdir(self._folder):  # noqa: PTH112
                self._begin(optimizer)
            else:  # whoever asked has gone
                self._close()
            return
        self._left -= 1
        if self._left <= 0 or self._clock() > self._until:
            profile = self._profile
            self._close()
            self._export(profile)

    def _begin(self, optimizer: Any) -> None:
        import torch  # noqa: PLC0415 - the script has
        from torch.profiler import profile  # noqa: PLC0415 - only who is asked for it

        # A second profiler would take the first one's records away, and torch lets it.
        if getattr(torch.autograd, "_profiler_enabled", bool)():
            raise RuntimeError("the script has a profiler of its own at work")
        make_way(torch)
        found = profile()
        found.start()
        self._profile, self._optimizer, self._until = found, optimizer, self._clock() + MOST_SECONDS

    def _close(self) -> None:
        """Nothing of it is left with torch."""
        self.remove()
        profile, self._profile, self._optimizer = self._profile, None, None
        if profile is not None:
            profile.stop()

    def _export(self, profile: Any) -> None:
        draft = os.path.join(self._folder, f"draft.{TRACE}")  # noqa: PTH118
        profile.export_chrome_trace(draft)
        os.replace(draft, os.path.join(self._folder, TRACE))  # noqa: PTH105, PTH118


def make_way(torch: Any) -> None:
    """Take away what only stands in for torch's compiler, as in our trainer: the profiler asks the real one."""
    found = sys.modules.get(COMPILER)
    if found is not None and not hasattr(found, "__path__"):
        del sys.modules[COMPILER]
        vars(torch).pop(COMPILER.rpartition(".")[2], None)


def refuse(folder: str, error: Exception) -> None:
    """Say why there is no trace."""
    draft = os.path.join(folder, f"draft.{REFUSAL}")  # noqa: PTH118
    try:
        with open(draft, "w") as file:  # noqa: PTH123
            file.write(f"{type(error).__name__}: {error}"[:1000])
        os.replace(draft, os.path.join(folder, REFUSAL))  # noqa: PTH105, PTH118
    except OSError:
        return
