"""Run a process's one coroutine, and end without a word about signals that come meanwhile; standard library only."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """As :func:`asyncio.run`.

    A loop closes the pipe that signals are written to before it takes its handlers back, and a signal in between,
    as of a child that just then ends, prints a traceback. So signals are no longer written anywhere once ``main`` is
    done; the handlers, which do nothing but write there, stay until the loop takes them back.
    """
    with asyncio.Runner() as runner:
        try:
            return runner.run(main)
        finally:
            signal.set_wakeup_fd(-1)
