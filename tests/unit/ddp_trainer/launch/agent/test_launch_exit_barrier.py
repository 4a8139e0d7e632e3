"""The nodes of a run that is over exit together."""

from __future__ import annotations

import asyncio

import pytest

from ddp_trainer.common.constants import Exit
from ddp_trainer.launch.agent.agent import ExitBarrier
from ddp_trainer.launch.protocol.messages import FromAgent, Leave, Over, Part, Verdict
from tests.support.launch_simulation import SimulatedAgent, SimulatedRun, a_policy

OVER = Over(verdict=Verdict.SUCCEEDED, exit_code=Exit.SUCCESS)


def of_three(*, spare: bool = False) -> tuple[SimulatedRun, list[SimulatedAgent]]:
    run, agents = SimulatedRun.of(a_policy(2, 2 if spare else 3), 0, 1, 2)
    run.wait(10)
    return run, agents


def may_go(agents: list[SimulatedAgent]) -> list[bool]:
    return [isinstance(agent.last, Part) for agent in agents]


def succeed(agents: list[SimulatedAgent]) -> None:
    for agent in agents:
        if agent.runs:
            agent.succeed()


@pytest.mark.parametrize("spare", [False, True])
def test_no_node_exits_before_all_have_left(spare: bool) -> None:
    run, agents = of_three(spare=spare)
    succeed(agents)
    assert [agent.last.verdict for agent in agents] == [Verdict.SUCCEEDED] * 3
    agents[0].leave()
    agents[2].leave()
    assert (may_go(agents), run.membership.end.has_parted) == ([False] * 3, False)
    agents[1].leave()
    assert (may_go(agents), run.membership.end.has_parted) == ([True] * 3, True)
    assert not run.membership.end.has_missing_member


def test_a_node_that_is_lost_at_the_end_is_not_waited_for_and_its_next_pod_gets_an_answer() -> None:
    run, agents = of_three()
    succeed(agents)
    agents[0].leave()
    agents[1].leave()
    agents[2].mark_disconnected()
    assert may_go(agents) == [True, True, False]
    assert run.membership.end.has_missing_member


def test_after_a_failure_no_next_pod_is_expected() -> None:
    run = SimulatedRun(a_policy(1, 1, max_restarts=0))
    [agent] = run.joined(0)
    agent.fail().join().mark_disconnected()
    assert (run.membership.end.has_parted, run.membership.end.has_missing_member) == (True, False)


def test_an_agent_waits_for_the_others_until_the_store_lets_it_go() -> None:
    async def wait() -> list[FromAgent]:
        barrier, messages = ExitBarrier(), []
        barrier.stop_waiting()  # the link was down once, long before the end
        barrier.on_message(OVER)
        waiting = asyncio.create_task(barrier.wait(messages.append))
        await asyncio.sleep(0)
        assert not waiting.done()
        barrier.on_message(Part())
        await waiting
        return messages

    assert asyncio.run(wait()) == [Leave()]


async def test_an_agent_does_not_wait_without_a_store_or_after_a_signal() -> None:
    barrier = ExitBarrier()
    barrier.on_message(OVER)
    barrier.stop_waiting()
    await barrier.wait(lambda _: None)
