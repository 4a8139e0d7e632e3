"""Links between an agent and the state machine that makes generations.

The agent implements :class:`LinkCallbacks` and uses a :class:`Link`.
:class:`~ddp_trainer.launch.rendezvous.client.TcpLink` connects to a store across the network. A launch on one node
needs no store process: :class:`HereLink` runs the same state machine in the agent. A static launch has its group in its
flags: :class:`StaticLink` replies to the agent without a state machine.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final, Protocol

from ddp_trainer.common.constants import Exit, OutsideReason
from ddp_trainer.launch.host.endpoint import addresses_of
from ddp_trainer.launch.protocol import exit_codes, messages
from ddp_trainer.launch.protocol.generation import Assignment
from ddp_trainer.launch.protocol.timeouts import Timeouts
from ddp_trainer.launch.rendezvous.hang_decision import HangAnalyzer
from ddp_trainer.launch.rendezvous.membership import Membership
from ddp_trainer.net.addresses import is_loopback

RESOLVER_SECONDS: Final = 5.0
"""Longest wait of a static group's workers for a name server. The result only improves defaults."""


class LinkCallbacks(Protocol):
    """The agent, as seen by its link. The link calls it on the agent's event loop."""

    def initial_messages(self, address: str) -> list[messages.FromAgent]:
        """Return the first messages of a new connection.

        Args:
            address: Address of this node on the connection.
        """

    def link_down(self) -> None:
        """Handle a broken connection, which the link reopens."""

    def link_failed(self, why: str, reason: OutsideReason) -> None:
        """Handle a failed attempt to connect, of which there may be many.

        Args:
            why: What failed, as the end of a sentence.
            reason: Stage of the attempt that failed.
        """

    def on_message(self, message: messages.FromStore) -> None:
        """Process a message of the store."""


class Link(Protocol):
    """Connection of one agent to the store."""

    def start(self, listener: LinkCallbacks) -> None:
        """Start to connect. The listener receives all further events."""

    def send(self, message: messages.FromAgent) -> None:
        """Send a message if the link is up. The agent repeats important messages after a reconnect."""

    async def close(self) -> None:
        """Send what is still unsent, and close."""


class _LocalLink(Link):
    """Link without a connection: it replies in this process, at the earliest when the agent's call has returned."""

    def __init__(self, loop: asyncio.AbstractEventLoop, address: str) -> None:
        self._loop = loop
        self._address = address
        self._listener: LinkCallbacks | None = None

    def start(self, listener: LinkCallbacks) -> None:
        """See :class:`Link`."""
        self._listener = listener
        for message in listener.initial_messages(self._address):
            self.send(message)

    def _notify_listener(self, message: messages.FromStore) -> None:
        if self._listener:
            self._loop.call_soon(self._listener.on_message, message)


class HereLink(_LocalLink):
    """Link to a state machine in this process: one node, no network."""

    def __init__(self, loop: asyncio.AbstractEventLoop, address: str) -> None:
        super().__init__(loop, address)
        self._timer: asyncio.TimerHandle | None = None
        self._membership = Membership(
            lambda _peer, message: self._notify_listener(message),
            loop.time,
            timeouts=Timeouts(first=0.0),
            check_message=None,
        )

    def send(self, message: messages.FromAgent) -> None:
        """See :class:`Link`."""
        self._membership.handle_message(0, message)
        self._reconcile()

    async def close(self) -> None:
        """See :class:`Link`."""
        if self._timer:
            self._timer.cancel()

    def _reconcile(self) -> None:
        deadline = self._membership.reconcile()
        if self._timer:
            self._timer.cancel()
        self._timer = None if deadline is None else self._loop.call_at(deadline, self._reconcile)


class StaticLink(_LocalLink):
    """Link of a group that the flags define completely. It needs no store, and its first failure ends the run."""

    def __init__(self, loop: asyncio.AbstractEventLoop, place: Assignment, token: str) -> None:
        super().__init__(loop, address="")
        self._place = place
        self._token = token
        self._hangs = HangAnalyzer()
        self._task: asyncio.Task[None] | None = None

    def send(self, message: messages.FromAgent) -> None:
        """See :class:`Link`."""
        match message:
            case messages.Join():
                self._task = self._loop.create_task(self._form())
            case messages.Succeeded():
                self._notify_listener(messages.Over(verdict=messages.Verdict.SUCCEEDED, exit_code=Exit.SUCCESS))
            case messages.Failed():
                code = exit_codes.of_given_up_run(message.failure.exit_code)
                self._notify_listener(
                    messages.Over(verdict=messages.Verdict.FAILED, exit_code=code, failure=message.failure)
                )
            case messages.Leave():
                self._notify_listener(messages.Part())
            case messages.SuspectHang() | messages.RankStates() if (
                self._place.node_count == 1
            ):  # with more nodes, none has all states
                if reply := self._hangs.update(self._token, message, {self._token}, self._loop.time()):
                    self._notify_listener(reply)

    async def close(self) -> None:
        """See :class:`Link`."""
        if self._task:
            self._task.cancel()

    async def _form(self) -> None:
        """Start the group, with the resolved address of rank 0 for the choice of the network interface.

        Workers resolve the name themselves.
        """
        place = self._place
        if place.node_count > 1:
            found = await addresses_of(place.master_address, RESOLVER_SECONDS)
            place = replace(place, peer_addresses=tuple(address for address in found if not is_loopback(address))[:1])
        self._notify_listener(messages.Start(assignment=place))
