"""One checkpoint on its way to the disk: in the thread that trains, or in one beside it.

A thread, and not a process: writing, summing and syncing are calls that let other threads run, and a thread cannot
outlive the training it belongs to. What it takes from the steps beside it is not the GIL but a core: torch splits an
operation over all cores and waits for the slowest part, so a thread that holds one core for a scheduler's slice holds
them all. At a lower priority it gives way. Two threads computing steps of 0.50 ms on two cores, beside a write of
500 MB: 1.85 ms as they were (a process of its own: 1.34), 0.53 with the lower priority (a process: 0.55), and a write
of 0.9 s in place of 0.7. ``bench checkpoint`` measures it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from ddp_trainer.train.checkpoint.manifest import Manifest
from ddp_trainer.train.checkpoint.sharded_writer import Target
from ddp_trainer.train.checkpoint.torch_zip_writer import Archive

_NICENESS: Final = 10
"""A tenth of an equal share where every core is wanted; the lowest priority of all could starve there, with the next
save waiting for it."""


class Writing:
    """Writes one archive, once."""

    def __init__(self, target: Target, draft: Manifest, archive: Archive, began: float) -> None:
        """``began`` is when the save began, by the clock of :func:`time.monotonic`."""
        self.step = draft.step
        self.blocking_seconds = 0.0
        """How long the training has waited for it so far."""
        self.error: BaseException | None = None
        """Why it did not become durable."""
        self.size_bytes = 0
        """Of all that was written, once it is durable."""
        self.seconds = 0.0
        """From the beginning of the save until it was durable."""
        self._began = began
        self._work: Callable[[], Manifest] | None = lambda: target.write(draft, archive)
        self._thread: threading.Thread | None = None

    @property
    def is_over(self) -> bool:
        """It is durable, or has failed."""
        return self._thread is None or not self._thread.is_alive()

    def start(self) -> None:
        """Write beside what else happens."""
        self._thread = threading.Thread(target=self._run_behind, name="ddp-checkpoint", daemon=True)
        self._thread.start()

    def _run_behind(self) -> None:
        """Write with what the training leaves over."""
        give_way()
        self.run()

    def run(self) -> None:
        """Write now; errors are kept for the thread that trains."""
        assert self._work is not None  # noqa: S101 - written once
        try:
            self.size_bytes = self._work().total_bytes
        except BaseException as err:  # noqa: BLE001 - raised again, or reported, on the thread that trains
            self.error = err
        self.seconds = time.monotonic() - self._began
        # The archive holds the state; nobody needs it any more.
        self._work = None

    def wait(self, timeout_seconds: float | None = None) -> None:
        """Return when it is over, or after the timeout."""
        if self._thread is not None:
            self._thread.join(timeout_seconds)


def give_way() -> None:
    """Lower this thread's priority; only Linux has one for each thread, and it cannot be raised again."""
    if sys.platform == "linux":
        own = threading.get_native_id()
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, own) + _NICENESS)
