"""Checks of this node: preflights when a node joins, and probes of the GPUs before this node joins again.

:class:`JoinPreflight` handles the store's RunPreflight messages, for this node and for others. The store chooses the
nodes that meet (:mod:`ddp_trainer.launch.rendezvous.group_formation`). :class:`GpuProbes` starts one CUDA probe for
each GPU that no worker holds. With ``--preflight``, another process reads the health of all GPUs by NVML.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from ddp_trainer.common.constants import Env
from ddp_trainer.common.gpu_faults import fault_in
from ddp_trainer.launch.agent.agent_config import AgentConfig
from ddp_trainer.launch.agent.agent_state import AgentStateMachine
from ddp_trainer.launch.agent.preflight_policy import Preflight, PreflightPolicy, PreflightVerdict
from ddp_trainer.launch.protocol.console import log_line
from ddp_trainer.launch.protocol.generation import Assignment
from ddp_trainer.launch.protocol.messages import FromAgent, PreflightResult, RunPreflight
from ddp_trainer.launch.rendezvous.group_formation import AGAIN_SECONDS
from ddp_trainer.launch.workers.children import Children, kill
from ddp_trainer.process.gpu_devices import visible_gpus
from ddp_trainer.process.gpu_probe import PROBE_SECONDS, command, environment_of, probe_error

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
    log: Callable[[str], None]
    """Prints a line."""
    _count: int = 0
    """Number of own preflights. The number of the store is not enough: a restarted store counts from one again."""
    pid: int | None = None
    """Process id of this node's own preflight; None while none runs."""

    def on_message(self, request: RunPreflight) -> None:
        """Take part in a preflight, as the store requests."""
        *members, newcomer = request.names
        if request.place.node_rank == request.place.node_count - 1:
            self.log(f"Before it joins, this node holds a preflight with {', '.join(members)}.")
            self.end()
            self.pid = self._start(request, partial(self._ended, self._count, request.number))
        else:
            self._start(request, partial(self._report_peer_check, newcomer, request.place.node_rank == 0))

    def end(self) -> None:
        """Kill this node's own preflight: after a lost connection the store has forgotten it, and it holds the port of
        the node.
        """
        self._count += 1
        if self.pid is not None:
            kill(self.pid, signal.SIGKILL)
            self.pid = None

    def _start(self, request: RunPreflight, ended: Callable[[PreflightVerdict], None]) -> int | None:
        def over(outcome: PreflightVerdict) -> None:
            timer.cancel()
            ended(outcome)

        try:
            pid = self.preflight.start_join_check(request.number, request.place, over, self.sockets_in(request.place))
        except OSError as error:
            may_start = self.preflight.care is PreflightPolicy.WARN
            ended(PreflightVerdict(may_start=may_start, message=f"The preflight could not be started: {error}"))
            return None
        timer = asyncio.get_running_loop().call_later(LONGEST_SECONDS, kill, pid, signal.SIGKILL)
        return pid

    def _ended(self, count: int, number: int, outcome: PreflightVerdict) -> None:
        """Report the result of this node's own preflight."""
        if count != self._count:
            return
        self.pid = None
        self.core.unfit = "" if outcome.may_start else outcome.message
        if not outcome.may_start:
            self.log(
                f"This node stays out of the run, and is looked at again in {AGAIN_SECONDS:g} s. {outcome.message}."
            )
        self.send(PreflightResult(number=number, fit=outcome.may_start))

    def _report_peer_check(self, newcomer: str, is_first: bool, outcome: PreflightVerdict) -> None:
        """Print the result of another node's preflight, on the first of the nodes that took part."""
        if is_first and not outcome.may_start:
            self.log(f"{newcomer} wants to join, and stays out of the run. {outcome.message}.")


_HEALTH = "health"
"""Key of the health check in the same dictionary as the devices of the probes."""


@dataclass(slots=True, eq=False)
class GpuProbes:
    """GPU probes of one agent."""

    setup: AgentConfig
    """Configuration of the agent."""
    children: Children
    """Child processes of this launcher."""
    environment: Mapping[str, str]
    """Environment that all workers have in common."""
    preflight: Preflight
    """Preflight that reads the health of GPUs."""
    ended: Callable[[str], None]
    """Called once after each :meth:`start`, with a sentence if a GPU keeps this node out of the run, else with an empty
    string.
    """
    _waited_for: dict[str, asyncio.TimerHandle] = field(default_factory=dict)
    _found: dict[str, str] = field(default_factory=dict)
    _health: PreflightVerdict = PreflightVerdict(may_start=True)  # noqa: RUF009 - it is frozen

    @property
    def _node(self) -> str:
        return self.setup.environment.get(Env.NODE_NAME) or socket.gethostname()

    def start(self, busy: Collection[int]) -> None:
        """Probe the GPU of every local rank, except the ``busy`` ones, whose workers hold their GPUs."""
        self._found.clear()
        self._health = PreflightVerdict(may_start=True)
        devices = list(self.setup.launch.slices or visible_gpus(self.environment))
        devices = devices[: self.setup.launch.local_world_size]
        for local_rank, device in enumerate(devices):
            if local_rank not in busy:
                self._start_one(device)
        if devices and self.preflight.care is not PreflightPolicy.OFF:
            self._start_health_check(devices)
        if not self._waited_for:
            # The caller must finish its action before the result of the action arrives.
            asyncio.get_running_loop().call_soon(self.ended, "")

    def _start_one(self, device: str) -> None:
        output = self.setup.heartbeat_dir / f"gpu-probe-{device}.txt"
        environment = environment_of(device, self.environment)
        with contextlib.suppress(OSError):
            with output.open("wb") as stdout:
                pid = self.children.start(
                    command(), environment, partial(self._one_ended, device, output), stdout=stdout
                )
            loop = asyncio.get_running_loop()
            self._waited_for[device] = loop.call_later(PROBE_SECONDS, self._one_is_late, device, pid)

    def _start_health_check(self, devices: Sequence[str]) -> None:
        with contextlib.suppress(OSError):
            pid = self.preflight.start_gpu_check(devices, self._health_is_known)
            loop = asyncio.get_running_loop()
            self._waited_for[_HEALTH] = loop.call_later(PROBE_SECONDS, self._health_is_late, pid)

    def _health_is_late(self, pid: int) -> None:
        kill(pid, signal.SIGKILL)
        sentence = f"The driver of {self._node} does not answer within {PROBE_SECONDS:g} s"
        self._health_is_known(PreflightVerdict(may_start=self.preflight.care is PreflightPolicy.WARN, message=sentence))

    def _health_is_known(self, outcome: PreflightVerdict) -> None:
        if _HEALTH in self._waited_for:
            self._health = outcome
            self._end_probe(_HEALTH)

    def _one_is_late(self, device: str, pid: int) -> None:
        kill(pid, signal.SIGKILL)  # the kernel may hold it forever, so do not wait for its exit
        self._record_probe_result(device, probe_error(None, ""))

    def _one_ended(self, device: str, output: Path, returncode: int) -> None:
        text = ""
        with contextlib.suppress(OSError):
            text = output.read_text(errors="replace")
            output.unlink()
        self._record_probe_result(device, probe_error(returncode, text))

    def _record_probe_result(self, device: str, trouble: str) -> None:
        if device in self._waited_for:
            if trouble:
                self._found[device] = trouble
            self._end_probe(device)

    def _end_probe(self, device: str) -> None:
        self._waited_for.pop(device).cancel()
        if not self._waited_for:
            self.ended(self._result_message())

    def _result_message(self) -> str:
        if not self._found:
            if not self._health.may_start:
                return f"{self._health.message}."
            result = f"{self._health.message}. The" if self._health.message else f"The GPUs of {self._node} answer; the"
            log_line(f"{result} node joins again.")
            return ""
        device, words = min(self._found.items())
        others = f", nor do {len(self._found) - 1} others" if len(self._found) > 1 else ""
        fault = fault_in(words)
        fix = f" Fix: {fault.fix}." if fault else ""
        return f"GPU {device} of {self._node} does not work{others}: {words}.{fix}"
