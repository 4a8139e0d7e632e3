"""One checkpoint on its way to the disk: in the thread that trains, or in one beside it.

A thread, and not a process: writing, summing and syncing are calls that let other threads run, and a thread cannot
outlive the training it belongs to. ``bench checkpoint`` measures what it does to the steps beside it; a process has not
been measured against it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ddp_trainer.train.archive import Archive
from ddp_trainer.train.checkpoint import CheckpointDirectory
from ddp_trainer.train.manifest import Manifest


class Writing:
    """Writes one archive, once."""

    def __init__(self, directory: CheckpointDirectory, draft: Manifest, archive: Archive, began: float) -> None:
        """``began`` is when the save began, by the clock of :func:`time.monotonic`."""
        self.step = draft.step
        self.blocking_seconds = 0.0
        """How long the training has waited for it so far."""
        self.error: BaseException | None = None
        """Why it did not become durable."""
        self.size_bytes = 0
        """Of the payload, once it is durable."""
        self.seconds = 0.0
        """From the beginning of the save until it was durable."""
        self._began = began
        self._work: Callable[[], Manifest] | None = lambda: directory.write(draft, archive)
        self._thread: threading.Thread | None = None

    @property
    def is_over(self) -> bool:
        """It is durable, or has failed."""
        return self._thread is None or not self._thread.is_alive()

    def start(self) -> None:
        """Write beside what else happens."""
        self._thread = threading.Thread(target=self.run, name="ddp-checkpoint", daemon=True)
        self._thread.start()

    def run(self) -> None:
        """Write now; errors are kept for the thread that trains."""
        assert self._work is not None  # noqa: S101 - written once
        try:
            self.size_bytes = self._work().size_bytes
        except BaseException as err:  # noqa: BLE001 - raised again, or reported, on the thread that trains
            self.error = err
        self.seconds = time.monotonic() - self._began
        # The archive holds the state; nobody needs it any more.
        self._work = None

    def wait(self, timeout_seconds: float | None = None) -> None:
        """Return when it is over, or after the timeout."""
        if self._thread is not None:
            self._thread.join(timeout_seconds)
