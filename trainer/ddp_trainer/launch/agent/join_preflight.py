"""The preflights that an agent takes part in when a node joins: its own before it is taken in, and those of others.

See :mod:`ddp_trainer.launch.rendezvous.join_checks` for who is to meet with whom.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from ddp_trainer.launch.agent.agent_state import AgentStateMachine
from ddp_trainer.launch.agent.preflight_policy import Preflight, PreflightPolicy, Verdict
from ddp_trainer.launch.protocol.messages import Assignment, FromAgent, Meet, Met
from ddp_trainer.launch.rendezvous.join_checks import AGAIN_SECONDS
from ddp_trainer.launch.workers.children import kill

LONGEST_SECONDS: Final = 120.0
"""Of one preflight, whose own limits are shorter: a file system that does not answer must not keep a node out."""


class JoinPreflight:
    """Those of one agent."""

    def __init__(
        self,
        core: AgentStateMachine,
        preflight: Preflight,
        sockets_in: Callable[[Assignment], Mapping[str, str]],
        send: Callable[[FromAgent], None],
        say: Callable[[str], None],
    ) -> None:
        """``sockets_in`` tells what workers in a group would be told of interfaces."""
        self._core = core
        self._preflight = preflight
        self._sockets_in = sockets_in
        self._send = send
        self._say = say
        self._count = 0
        """Of our own: a store that was restarted numbers from one again."""
        self._pid: int | None = None

    def told(self, meet: Meet) -> None:
        """The store asks this node to take part."""
        *members, newcomer = meet.names
        if meet.place.node_rank == meet.place.node_count - 1:
            others = ", ".join(members)
            self._say(f"Before it joins, this node holds a preflight with {others}.")
            self._hold(meet)
        else:
            self._start(meet, partial(self._saw, newcomer, meet.place.node_rank == 0))

    def end(self) -> None:
        """Hold ours no longer: the store has forgotten it, since the connection broke, and it has our port."""
        self._count += 1
        if self._pid is not None:
            kill(self._pid, signal.SIGKILL)
            self._pid = None

    def _hold(self, meet: Meet) -> None:
        self.end()
        self._pid = self._start(meet, partial(self._ended, self._count, meet.number))

    def _start(self, meet: Meet, ended: Callable[[Verdict], None]) -> int | None:
        def over(verdict: Verdict) -> None:
            timer.cancel()
            ended(verdict)

        try:
            pid = self._preflight.meet(meet.number, meet.place, over, self._sockets_in(meet.place))
        except OSError as error:
            may_start = self._preflight.care is PreflightPolicy.WARN
            ended(Verdict(may_start=may_start, sentence=f"The preflight could not be started: {error}"))
            return None
        timer = asyncio.get_running_loop().call_later(LONGEST_SECONDS, kill, pid, signal.SIGKILL)
        return pid

    def _ended(self, count: int, number: int, verdict: Verdict) -> None:
        """Our own is over."""
        if count != self._count:
            return
        self._pid = None
        self._core.unfit = "" if verdict.may_start else verdict.sentence
        if not verdict.may_start:
            self._say(
                f"This node stays out of the run, and is looked at again in {AGAIN_SECONDS:g} s. {verdict.sentence}."
            )
        self._send(Met(number=number, fit=verdict.may_start))

    def _saw(self, newcomer: str, is_first: bool, verdict: Verdict) -> None:
        """That of another; one of those that took part says so."""
        if is_first and not verdict.may_start:
            self._say(f"{newcomer} wants to join, and stays out of the run. {verdict.sentence}.")
