"""A run in miniature: a real Membership, agents that behave as agents do, and a clock that tests turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ddp_trainer.launch.protocol.generation import Assignment, Generation, Node
from ddp_trainer.launch.protocol.messages import (
    VERSION,
    Failed,
    Failure,
    FromAgent,
    FromStore,
    Hello,
    Join,
    Leave,
    Over,
    Policy,
    PreflightResult,
    ProgramIdentity,
    Rejected,
    ReusableWorkers,
    RunPreflight,
    StandBy,
    Start,
    Stop,
    Succeeded,
    Waiting,
    WorkerState,
)
from ddp_trainer.launch.protocol.timeouts import Timeouts
from ddp_trainer.launch.rendezvous.membership import Membership

PATIENCE = Timeouts(reconnect=0.5, adopt=10, ended=3, first=3)


class ReconcilingMembership(Membership):
    """Does what is due after every event, as a store does after some."""

    def handle_and_reconcile(self, peer: int, message: FromAgent) -> None:
        self.handle_message(peer, message)
        self.reconcile()

    def lost(self, peer: int) -> None:
        self.drop(peer)
        self.reconcile()


def place_of(group: Generation, token: str) -> Assignment:
    return next(place for node, place in group.assignments() if node.token == token)


def a_policy(min_nodes: int = 2, max_nodes: int = 2, max_restarts: int = 3) -> Policy:
    return Policy(
        min_nodes=min_nodes, max_nodes=max_nodes, max_restarts=max_restarts, settle_seconds=1, last_call_seconds=5
    )


def a_failure(generation: int, *, rank: int = 0, at: float = 0, **details: Any) -> Failure:
    values = {"exit_code": 1, "reason": "python_exception", "message": "boom", "timestamp": at, **details}
    return Failure(generation=generation, rank=rank, local_rank=0, node=f"worker-{rank}", **values)


@dataclass
class SimulatedAgent:
    """The agent's core without workers: it starts immediately, and stops when the test stops it."""

    run: SimulatedRun
    index: int
    peer: int
    token: str
    generation: Assignment | None = None
    standing: WorkerState = WorkerState.IDLE
    asked_to_stop: Stop | None = None
    heard: list[FromStore] = field(default_factory=list)
    connected: bool = False
    identity: ProgramIdentity | None = None
    role: str = "default"
    joins_preflight: bool = False
    crash: Failure | None = None
    """Crash of the launcher that ran in its pod before."""

    @property
    def node(self) -> Node:
        place = {"name": f"worker-{self.index}", "index": self.index, "address": f"10.0.0.{self.index}"}
        return Node(token=self.token, local_world_size=2, role=self.role, **place)

    @property
    def last(self) -> FromStore | None:
        return self.heard[-1] if self.heard else None

    @property
    def runs(self) -> int | None:
        """Number of the generation its workers run for."""
        return self.generation.number if self.generation and self.standing is WorkerState.RUNNING else None

    def connect(self, run_id: str = "run") -> SimulatedAgent:
        self.connected = True
        hello = Hello(
            version=VERSION,
            run_id=run_id,
            node=self.node,
            policy=self.run.policy,
            standing=self.standing,
            clock=1_000_000_000 + self.run.now,
            last=self.generation,
            identity=self.identity,
            joins_preflight=self.joins_preflight,
            crash=self.crash,
        )
        self.run.membership.handle_and_reconcile(self.peer, hello)
        return self

    def join(self, *, is_before_first_step: bool = False, is_importing: bool = False) -> SimulatedAgent:
        self.standing, self.asked_to_stop = WorkerState.IDLE, None
        join = Join(port=30000 + self.index, is_before_first_step=is_before_first_step, is_importing=is_importing)
        self.run.membership.handle_and_reconcile(self.peer, join)
        return self

    def outlive(self) -> SimulatedAgent:
        """Its workers could stay when their group ends."""
        self.run.membership.handle_and_reconcile(self.peer, ReusableWorkers())
        return self

    def step_aside(self) -> SimulatedAgent:
        """Its workers have stopped, and one is being replaced."""
        self.standing, self.asked_to_stop = WorkerState.IDLE, None
        self.run.membership.handle_and_reconcile(self.peer, StandBy(generation=self.generation.number))
        return self

    def join_prepared(self) -> SimulatedAgent:
        """:meth:`join` with workers that wait for their group."""
        self.run.membership.handle_and_reconcile(self.peer, Join(port=30000 + self.index, is_prepared=True))
        return self

    def fail(self, *, agreed: bool = False, **details: object) -> SimulatedAgent:
        """A worker failed; the others are stopped when the test calls :meth:`join`."""
        details.setdefault("rank", self.generation.first_rank)
        failure = a_failure(self.generation.number, **details)
        self.run.membership.handle_and_reconcile(self.peer, Failed(failure=failure, agreed=agreed))
        return self

    def succeed(self, summary: str = "") -> SimulatedAgent:
        self.standing = WorkerState.SUCCEEDED
        message = Succeeded(generation=self.generation.number, summary=summary)
        self.run.membership.handle_and_reconcile(self.peer, message)
        return self

    def record_result(self, *, fit: bool) -> SimulatedAgent:
        """Report the end of the last requested preflight."""
        number = next(item.number for item in reversed(self.heard) if isinstance(item, RunPreflight))
        self.run.membership.handle_and_reconcile(self.peer, PreflightResult(number=number, fit=fit))
        return self

    def leave(self) -> SimulatedAgent:
        self.run.membership.handle_and_reconcile(self.peer, Leave())
        return self

    def mark_disconnected(self) -> SimulatedAgent:
        self.connected = False
        self.run.membership.lost(self.peer)
        return self

    def hears(self, message: FromStore) -> None:
        self.heard.append(message)
        match message:
            case Start():
                self.generation, self.standing = message.assignment, WorkerState.RUNNING
            case Stop():
                self.asked_to_stop = message
            case Over() | Rejected():
                self.standing = WorkerState.IDLE
            case Waiting():
                pass


class SimulatedRun:
    """Agents by peer number around one Membership."""

    def __init__(self, policy: Policy | None = None, *, patience: Timeouts = PATIENCE) -> None:
        self.policy = policy or a_policy()
        self.patience = patience
        self.now = 0.0
        self.agents: dict[int, SimulatedAgent] = {}
        self.starts: list[Generation] = []
        self._next_peer = 0
        self.restart_store()

    @classmethod
    def of(cls, policy: Policy, *indices: int) -> tuple[SimulatedRun, list[SimulatedAgent]]:
        """A run, and the agents of these pods, which have joined it."""
        run = cls(policy)
        return run, run.joined(*indices)

    def restart_store(self) -> None:
        """A store that remembers nothing; every agent's connection is gone."""
        for agent in self.agents.values():
            agent.connected = False
        self.membership = ReconcilingMembership(self._write_report, lambda: self.now, timeouts=self.patience)

    def agent(self, index: int) -> SimulatedAgent:
        """A pod that has just been made."""
        self._next_peer += 1
        agent = SimulatedAgent(self, index, self._next_peer, f"token-{self._next_peer}")
        self.agents[agent.peer] = agent
        return agent

    def joined(self, *indices: int) -> list[SimulatedAgent]:
        agents = [self.agent(index) for index in indices]
        for agent in agents:
            agent.connect().join()
        return agents

    def reconnect(self, agent: SimulatedAgent) -> SimulatedAgent:
        """The same process, over another connection."""
        self._next_peer += 1
        del self.agents[agent.peer]
        agent.peer = self._next_peer
        self.agents[agent.peer] = agent
        return agent.connect()

    def wait(self, seconds: float) -> None:
        """Let time pass as the store does: from deadline to deadline."""
        end = self.now + seconds
        while (deadline := self.membership.deadline()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.membership.reconcile()
        self.now = end
        self.membership.reconcile()

    def _write_report(self, peer: int, message: FromStore) -> None:
        if isinstance(message, Start) and message.assignment.fence not in {start.fence for start in self.starts}:
            self.starts.append(self.membership.registry.generation)
        if peer in self.agents and self.agents[peer].connected:
            self.agents[peer].hears(message)
