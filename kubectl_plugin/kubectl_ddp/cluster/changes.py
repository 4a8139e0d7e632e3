"""What several watches see, as one row of words: that something changed, or what ended a watch."""

from __future__ import annotations

import contextlib
import queue

from kubectl_ddp.cluster.reflector import Reflector


def watch_into_queue(reflector: Reflector, changes: queue.SimpleQueue[Exception | None]) -> None:
    """Body of a watching thread: every change is a word into the queue, and so is what ends the watch."""
    try:
        reflector.run(lambda: changes.put(None))
    except Exception as error:  # noqa: BLE001 - raised again where snapshots are read
        changes.put(error)


def wait(changes: queue.SimpleQueue[Exception | None]) -> None:
    """Wait for a change, and take all that have come meanwhile as one. Raises what ended a watch."""
    news = [changes.get()]
    with contextlib.suppress(queue.Empty):
        while True:
            news.append(changes.get_nowait())
    for error in news:
        if error is not None:
            raise error
