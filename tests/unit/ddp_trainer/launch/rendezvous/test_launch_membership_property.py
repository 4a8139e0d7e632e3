"""Random events of a run: there is one world, numbers grow, ranks follow the index, and a group forms in the end."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ddp_trainer.launch.protocol.messages import Over, WorkerState
from ddp_trainer.launch.rendezvous.membership import RunPhase
from tests.support.launch_simulation import SimulatedAgent, SimulatedRun, a_policy


class RandomRun(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.run = SimulatedRun(a_policy(2, 3, max_restarts=10_000))
        self.first_of_this_store = 0

    def some(self, index: int, *, running: bool = False) -> SimulatedAgent | None:
        agents = [a for a in self.run.agents.values() if a.connected and (a.runs is not None or not running)]
        return agents[index % len(agents)] if agents else None

    @rule(index=st.integers(0, 12))
    def a_pod_comes(self, index: int) -> None:
        self.run.joined(index)

    @rule(which=st.integers(0, 20))
    def an_agent_dies(self, which: int) -> None:
        if agent := self.some(which):
            agent.mark_disconnected()
            agent.standing = WorkerState.IDLE  # its workers die with it
            del self.run.agents[agent.peer]

    @rule(which=st.integers(0, 20))
    def a_connection_breaks_and_comes_back(self, which: int) -> None:
        if agent := self.some(which):
            was_joining = agent.standing is WorkerState.IDLE
            agent.mark_disconnected()
            self.run.reconnect(agent)
            if was_joining:
                agent.join()

    @rule(which=st.integers(0, 20), code=st.sampled_from([1, 137, 143, 171]))
    def a_worker_fails(self, which: int, code: int) -> None:
        if agent := self.some(which, running=True):
            agent.fail(exit_code=code)
            agent.join()

    @rule(which=st.integers(0, 20), says_why=st.booleans())
    def a_node_steps_aside(self, which: int, says_why: bool) -> None:
        if agent := self.some(which, running=True):
            if says_why:
                agent.fail()
            agent.step_aside()

    @rule(which=st.integers(0, 20))
    def a_node_that_stepped_aside_has_its_workers_ready(self, which: int) -> None:
        aside = [a for a in self.run.agents.values() if a.connected and a.generation and a.standing is WorkerState.IDLE]
        if aside:
            aside[which % len(aside)].join_prepared()

    @rule(which=st.integers(0, 20))
    def an_agent_is_told_to_leave(self, which: int) -> None:
        if agent := self.some(which):
            agent.leave()
            agent.standing = WorkerState.IDLE
            agent.mark_disconnected()
            del self.run.agents[agent.peer]

    @rule()
    def those_who_were_asked_to_stop_have_stopped(self) -> None:
        for agent in list(self.run.agents.values()):
            if agent.connected and agent.asked_to_stop:
                agent.join()

    @rule(seconds=st.sampled_from([0.2, 0.6, 2.0, 20.0]))
    def time_passes(self, seconds: float) -> None:
        self.run.wait(seconds)

    @precondition(lambda self: self.run.agents)
    @rule()
    def the_store_is_restarted_and_everybody_reconnects(self) -> None:
        self.run.restart_store()
        if not any(agent.generation == self.run.starts[-1] for agent in self.run.agents.values() if self.run.starts):
            self.first_of_this_store = len(self.run.starts)  # all who knew the number are dead
        # Those with workers come within a second; the store waits three before it forms a small group. A full one it
        # forms immediately, with the highest number that it was sent plus one: so those that know it come first.
        known = {agent.token: agent.generation.number if agent.generation else 0 for agent in self.run.agents.values()}
        for agent in sorted(self.run.agents.values(), key=lambda a: (a.runs is None, -known[a.token])):
            joining = agent.standing is WorkerState.IDLE
            self.run.reconnect(agent)
            if joining:
                agent.join()

    @invariant()
    def there_is_one_world(self) -> None:
        worlds = {agent.runs for agent in self.run.agents.values() if agent.runs is not None and agent.connected}
        assert len(worlds) <= 1

    @invariant()
    def numbers_only_grow_while_somebody_remembers(self) -> None:
        numbers = [generation.number for generation in self.run.starts[self.first_of_this_store :]]
        assert numbers == sorted(set(numbers))

    @invariant()
    def fences_only_grow(self) -> None:
        fences = [generation.fence for generation in self.run.starts]
        assert fences == sorted(set(fences))
        self.run.now += 0.001  # no two things happen at the same moment

    @invariant()
    def groups_are_of_the_right_size_and_in_order(self) -> None:
        for generation in self.run.starts:
            assert 2 <= len(generation.nodes) <= 3
            assert [node.index for node in generation.nodes] == sorted(node.index for node in generation.nodes)
            assert len({node.name for node in generation.nodes}) == len(generation.nodes)

    def teardown(self) -> None:
        """Check that a group forms once pods are there and nothing else happens."""
        if any(isinstance(agent.last, Over) for agent in self.run.agents.values()):
            return
        self.run.joined(20, 21, 22)
        for _ in range(30):
            self.those_who_were_asked_to_stop_have_stopped()
            self.run.wait(20)
        assert self.run.membership.phase is RunPhase.RUNNING
        assert sum(agent.runs is not None for agent in self.run.agents.values()) == 3


TestRandomRun = RandomRun.TestCase
TestRandomRun.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
