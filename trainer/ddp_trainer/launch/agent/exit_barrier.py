"""Exit barrier at the end of a run: its nodes exit together. The first pod that exits for good ends the job in
Kubernetes. Kubernetes then deletes the running pods, with their logs and with metrics that were not scraped yet. So
:class:`ExitBarrier` sends Leave after the agent's final reports, and waits for the store's Part. The store sends Part
when all agents have sent Leave.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from ddp_trainer.launch.protocol.messages import FromAgent, FromStore, Leave, Over, Part

PART_SECONDS: Final = 620.0
"""Seconds to wait for Part; more than the final reports of any other node take."""


class ExitBarrier:
    """Exit barrier of one agent."""

    def __init__(self) -> None:
        self._is_over = False
        self._may_go = asyncio.Event()

    def on_message(self, message: FromStore) -> None:
        """Handle a message of the store."""
        if isinstance(message, Over):
            self._is_over = True
        elif isinstance(message, Part):
            self._may_go.set()

    def stop_waiting(self) -> None:
        """Stop waiting for the other nodes: the store is gone, or this agent received a signal to stop."""
        if self._is_over:
            self._may_go.set()

    async def wait(self, send: Callable[[FromAgent], None]) -> None:
        """Wait until all nodes may exit; do not wait if the run continues on other nodes."""
        if self._is_over:
            send(Leave())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._may_go.wait(), PART_SECONDS)
