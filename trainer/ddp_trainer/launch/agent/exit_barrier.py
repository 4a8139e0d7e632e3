"""The end of a run: its nodes exit together.

The first pod that ends well, or badly for good, tells Kubernetes that the job is over, and what still runs is deleted:
with its log, and with the numbers that nobody has scraped yet. So an agent that has said its last words says Leave, and
exits when the store says Part, which is when all have said theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from ddp_trainer.launch.protocol.messages import FromAgent, FromStore, Leave, Over, Part

PART_SECONDS: Final = 620.0
"""More than the last words of any other node may take."""


class ExitBarrier:
    """One agent's side of it."""

    def __init__(self) -> None:
        self._is_over = False
        self._may_go = asyncio.Event()

    def told(self, message: FromStore) -> None:
        """The store said something."""
        if isinstance(message, Over):
            self._is_over = True
        elif isinstance(message, Part):
            self._may_go.set()

    def alone(self) -> None:
        """The store is gone, or this agent is told to stop: it need not wait for the others any more."""
        if self._is_over:
            self._may_go.set()

    async def wait(self, send: Callable[[FromAgent], None]) -> None:
        """Until all may go; not at all where the run goes on for others."""
        if self._is_over:
            send(Leave())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._may_go.wait(), PART_SECONDS)
