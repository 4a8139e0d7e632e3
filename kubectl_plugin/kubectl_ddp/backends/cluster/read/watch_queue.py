"""Queue of changes from several watches: ``None`` for a change, or the error that ended a watch."""

from __future__ import annotations

import contextlib
import queue

from kubectl_ddp.backends.cluster.read.reflector import Reflector


def watch_into_queue(reflector: Reflector, changes: queue.SimpleQueue[Exception | None]) -> None:
    """Run a reflector in a thread, and put its changes and its final error into the queue."""
    try:
        reflector.run(lambda: changes.put(None))
    except Exception as error:  # noqa: BLE001 - raised again where snapshots are read
        changes.put(error)


def wait(changes: queue.SimpleQueue[Exception | None]) -> None:
    """Wait for a change, and combine it with all further changes in the queue. Raises the error that ended a watch."""
    news = [changes.get()]
    with contextlib.suppress(queue.Empty):
        while True:
            news.append(changes.get_nowait())
    for error in news:
        if error is not None:
            raise error
