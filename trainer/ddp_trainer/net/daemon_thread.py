"""Calls that may block forever, such as those of a resolver, in a thread that never delays the end of the process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Answer = TypeVar("Answer")


def run_in_daemon_thread(call: Callable[[], Answer]) -> Future[Answer]:
    """Start a call in a daemon thread and return its future, which cannot be cancelled.

    The threads of an executor would delay the end of the process.
    """
    answer: Future[Answer] = Future()
    answer.set_running_or_notify_cancel()

    def run() -> None:
        try:
            answer.set_result(call())
        except Exception as error:  # noqa: BLE001 - raised where the result is read
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer
