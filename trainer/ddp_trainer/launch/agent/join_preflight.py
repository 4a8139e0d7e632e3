"""Preflights that an agent takes part in when a node joins: its own before it may join, and those of other nodes.

:class:`JoinPreflight` handles the store's RunPreflight messages. See :mod:`ddp_trainer.launch.rendezvous.group_formation`
for the choice of the nodes that meet.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from ddp_trainer.launch.agent.agent_state import AgentStateMachine
from ddp_trainer.launch.agent.preflight_policy import Preflight, PreflightPolicy, Verdict
from ddp_trainer.launch.protocol.generation import Assignment
from ddp_trainer.launch.protocol.messages import FromAgent, PreflightResult, RunPreflight
from ddp_trainer.launch.rendezvous.group_formation import AGAIN_SECONDS
from ddp_trainer.launch.workers.children import kill

LONGEST_SECONDS: Final = 120.0
"""Limit of one preflight. Its own limits are shorter, but a file system that does not answer must not keep a node out.
"""


@dataclass(slots=True, eq=False)
class JoinPreflight:
    """Join preflights of one agent."""

    core: AgentStateMachine
    """State machine of the agent."""
    preflight: Preflight
    """Starts the processes."""
    sockets_in: Callable[[Assignment], Mapping[str, str]]
    """Returns the environment variables for network interfaces that workers of a group would get."""
    send: Callable[[FromAgent], None]
    """Sends a message to the store."""
    say: Callable[[str], None]
    """Prints a line."""
    _count: int = 0
    """Number of own preflights. The number of the store is not enough: a restarted store counts from one again."""
    _pid: int | None = None

    def on_message(self, meet: RunPreflight) -> None:
        """Take part in a preflight, as the store requests."""
        *members, newcomer = meet.names
        if meet.place.node_rank == meet.place.node_count - 1:
            self.say(f"Before it joins, this node holds a preflight with {', '.join(members)}.")
            self.end()
            self._pid = self._start(meet, partial(self._ended, self._count, meet.number))
        else:
            self._start(meet, partial(self._report_peer_check, newcomer, meet.place.node_rank == 0))

    def end(self) -> None:
        """Kill this node's own preflight: after a lost connection the store has forgotten it, and it holds the port of
        the node.
        """
        self._count += 1
        if self._pid is not None:
            kill(self._pid, signal.SIGKILL)
            self._pid = None

    def _start(self, meet: RunPreflight, ended: Callable[[Verdict], None]) -> int | None:
        def over(verdict: Verdict) -> None:
            timer.cancel()
            ended(verdict)

        try:
            pid = self.preflight.start_join_check(meet.number, meet.place, over, self.sockets_in(meet.place))
        except OSError as error:
            may_start = self.preflight.care is PreflightPolicy.WARN
            ended(Verdict(may_start=may_start, message=f"The preflight could not be started: {error}"))
            return None
        timer = asyncio.get_running_loop().call_later(LONGEST_SECONDS, kill, pid, signal.SIGKILL)
        return pid

    def _ended(self, count: int, number: int, verdict: Verdict) -> None:
        """Report the result of this node's own preflight."""
        if count != self._count:
            return
        self._pid = None
        self.core.unfit = "" if verdict.may_start else verdict.message
        if not verdict.may_start:
            self.say(
                f"This node stays out of the run, and is looked at again in {AGAIN_SECONDS:g} s. {verdict.message}."
            )
        self.send(PreflightResult(number=number, fit=verdict.may_start))

    def _report_peer_check(self, newcomer: str, is_first: bool, verdict: Verdict) -> None:
        """Print the result of another node's preflight, on the first of the nodes that took part."""
        if is_first and not verdict.may_start:
            self.say(f"{newcomer} wants to join, and stays out of the run. {verdict.message}.")
