"""Write one checkpoint in the training thread or in a background thread.

:class:`Writing` uses a thread instead of a process: writing, hashing and syncing release the GIL, and a thread cannot
outlive the training. A background write costs the steps not the GIL but a core: torch splits an operation over all
cores and waits for the slowest part. A thread that holds one core for a scheduler slice thus delays all cores, so the
background thread lowers its priority. Measured with two threads computing steps of 0.50 ms on two cores, during a write
of 500 MB. At equal priority, a step took 1.85 ms (1.34 ms with a separate process). At the lower priority, it took 0.53
ms (process: 0.55 ms), and the write took 0.9 s instead of 0.7 s. ``bench checkpoint`` measures it.
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
from ddp_trainer.train.checkpoint.sharded_writer import Write
from ddp_trainer.train.checkpoint.torch_zip_writer import Archive

_NICENESS: Final = 10
"""Added to the thread's nice value. It gives a tenth of an equal share when every core is busy. At the lowest priority,
the write could starve, and the next save would wait for it."""


class Writing:
    """One write of one archive."""

    def __init__(self, write: Write, draft: Manifest, archive: Archive, began: float) -> None:
        """Prepare the write.

        Args:
            write: Writes the archive.
            draft: Manifest without digest and size.
            archive: State to write.
            began: Start of the save, by :func:`time.monotonic`.
        """
        self.step = draft.step
        self.blocking_seconds = 0.0
        """Time that training has waited for this save so far, in seconds."""
        self.error: BaseException | None = None
        """Error of the write; None if there is none."""
        self.size_bytes = 0
        """Size of all files of the checkpoint, in bytes, once it is durable."""
        self.seconds = 0.0
        """Time from the start of the save to the end of the write, in seconds."""
        self._began = began
        self._work: Callable[[], Manifest] | None = lambda: write(draft, archive)
        self._thread: threading.Thread | None = None

    @property
    def is_over(self) -> bool:
        """True once the checkpoint is durable or has failed."""
        return self._thread is None or not self._thread.is_alive()

    def start(self) -> None:
        """Write in a background thread."""
        self._thread = threading.Thread(target=self._run_low_priority, name="ddp-checkpoint", daemon=True)
        self._thread.start()

    def _run_low_priority(self) -> None:
        """Write at a lower priority."""
        lower_thread_priority()
        self.run()

    def run(self) -> None:
        """Write in this thread; an error is stored for the training thread."""
        assert self._work is not None  # noqa: S101 - written once
        try:
            self.size_bytes = self._work().total_bytes
        except BaseException as err:  # noqa: BLE001 - raised again, or reported, on the thread that trains
            self.error = err
        self.seconds = time.monotonic() - self._began
        # Frees the state, which the archive refers to.
        self._work = None

    def wait(self, timeout_seconds: float | None = None) -> None:
        """Block until the write has ended, or the timeout has passed."""
        if self._thread is not None:
            self._thread.join(timeout_seconds)


def lower_thread_priority() -> None:
    """Lower this thread's priority for good; does nothing except on Linux, which has one per thread."""
    if sys.platform == "linux":
        own = threading.get_native_id()
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, own) + _NICENESS)
