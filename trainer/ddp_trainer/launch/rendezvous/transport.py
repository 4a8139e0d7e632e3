"""How an agent speaks to whoever makes generations: a store across the network, or none at all.

A launch on one node needs no store process: :class:`HereLink` asks the same state machine within the agent. A
static launch knows its group from its flags: :class:`StaticLink` answers by plain arithmetic.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final, Protocol

from ddp_trainer.common.constants import Exit
from ddp_trainer.launch.host.endpoint import addresses_of, is_loopback
from ddp_trainer.launch.protocol import exitcodes
from ddp_trainer.launch.protocol.messages import (
    Alarm,
    Assignment,
    Failed,
    FromAgent,
    FromStore,
    Join,
    Leave,
    Looks,
    Over,
    Part,
    Start,
    Succeeded,
    Verdict,
)
from ddp_trainer.launch.protocol.timeouts import Patience
from ddp_trainer.launch.rendezvous.hang_decision import HangJudge
from ddp_trainer.launch.rendezvous.state_machine import Membership

RESOLVER_SECONDS: Final = 5.0
"""So long the workers of a static group wait for a name server's answer, which is but the way to better defaults."""


class Listener(Protocol):
    """The agent, as a link sees it. Calls come on the agent's event loop."""

    def opening(self, address: str) -> list[FromAgent]:
        """The link is up, from this address of ours; what to say first."""

    def link_down(self) -> None:
        """The link broke; it is being mended."""

    def link_trouble(self, why: str) -> None:
        """A try to connect failed, again and again perhaps; ``why`` ends a sentence."""

    def told(self, message: FromStore) -> None:
        """A message came."""


class Link(Protocol):
    """One agent's way to the store."""

    def start(self, listener: Listener) -> None:
        """Begin to connect; the listener is told from now on."""

    def send(self, message: FromAgent) -> None:
        """Say it if the link is up; the agent says again what matters when it comes up."""

    async def close(self) -> None:
        """Say what is still to be said, and close."""


class HereLink:
    """The state machine of the store, in this process: one node, no network."""

    def __init__(self, loop: asyncio.AbstractEventLoop, address: str) -> None:
        self._loop = loop
        self._address = address
        self._listener: Listener | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._membership = Membership(self._answer, loop.time, patience=Patience(first=0.0))

    def start(self, listener: Listener) -> None:
        """See :class:`Link`."""
        self._listener = listener
        for message in listener.opening(self._address):
            self.send(message)

    def send(self, message: FromAgent) -> None:
        """See :class:`Link`."""
        self._membership.receive(0, message)
        self._watch_deadline()

    async def close(self) -> None:
        """See :class:`Link`."""
        if self._timer:
            self._timer.cancel()

    def _answer(self, _peer: int, message: FromStore) -> None:
        # Later, because neither side expects an answer before it has finished speaking.
        if self._listener:
            self._loop.call_soon(self._listener.told, message)

    def _watch_deadline(self) -> None:
        if self._timer:
            self._timer.cancel()
        deadline = self._membership.deadline()
        self._timer = None if deadline is None else self._loop.call_at(deadline, self._tick)

    def _tick(self) -> None:
        self._membership.tick()
        self._watch_deadline()


class StaticLink:
    """A group that the flags name completely: it forms at once, and its first failure is its last."""

    def __init__(self, loop: asyncio.AbstractEventLoop, place: Assignment, token: str) -> None:
        self._loop = loop
        self._place = place
        self._token = token
        self._listener: Listener | None = None
        self._judge = HangJudge()
        self._task: asyncio.Task[None] | None = None

    def start(self, listener: Listener) -> None:
        """See :class:`Link`."""
        self._listener = listener
        for message in listener.opening(""):
            self.send(message)

    def send(self, message: FromAgent) -> None:
        """See :class:`Link`."""
        match message:
            case Join():
                self._task = self._loop.create_task(self._form())
            case Succeeded():
                self._answer(Over(verdict=Verdict.SUCCEEDED, exit_code=Exit.SUCCESS))
            case Failed():
                code = exitcodes.of_given_up_run(message.failure.exit_code)
                self._answer(Over(verdict=Verdict.FAILED, exit_code=code, failure=message.failure))
            case Leave():
                self._answer(Part())
            case Alarm() | Looks() if self._place.node_count == 1:  # with more there is nobody to compare them all
                if told := self._judge.receive(self._token, message, {self._token}, self._loop.time()):
                    self._answer(told)
            case _:
                pass

    async def close(self) -> None:
        """See :class:`Link`."""
        if self._task:
            self._task.cancel()

    async def _form(self) -> None:
        """With the address of rank 0 beside its name, by which its way is found; workers resolve the name anew."""
        place = self._place
        if place.node_count > 1:
            found = await addresses_of(place.master_address, RESOLVER_SECONDS)
            place = replace(place, peer_addresses=tuple(each for each in found if not is_loopback(each))[:1])
        self._answer(Start(assignment=place))

    def _answer(self, message: FromStore) -> None:
        if self._listener:
            self._loop.call_soon(self._listener.told, message)
