"""Nodes that replace a dead worker while the others go on."""

from __future__ import annotations

from ddp_trainer.launch.protocol.messages import Stop, Waiting
from ddp_trainer.launch.rendezvous.membership import RunPhase
from tests.support.launch_simulation import SimulatedRun, a_policy


def test_the_others_go_on_at_once_without_a_node_that_steps_aside_and_take_it_in_when_it_is_ready() -> None:
    run = SimulatedRun(a_policy(1, 2))
    first, second = run.joined(0, 1)
    second.fail().step_aside()
    assert first.asked_to_stop == Stop(graceful=False)
    first.join_prepared()
    assert [node.index for node in run.starts[-1].nodes] == [0]
    assert run.starts[-1].restarts == {"failure": 1}
    assert second.asked_to_stop is None
    second.join_prepared()
    assert first.asked_to_stop == Stop(graceful=True)
    first.join()
    assert first.runs == second.runs == 3
    assert run.starts[-1].restarts == {"failure": 1, "resize": 1}


def test_a_node_that_steps_aside_is_waited_for_where_the_others_are_too_few() -> None:
    run = SimulatedRun(a_policy(2, 3))
    agents = run.joined(0, 1, 2)
    agents[2].fail().step_aside()
    agents[1].step_aside()
    agents[0].join_prepared()
    run.wait(1000)
    assert run.membership.phase is RunPhase.FORMING
    agents[1].join_prepared()
    assert [node.index for node in run.starts[-1].nodes] == [0, 1]


def test_a_spare_takes_the_place_of_a_node_that_steps_aside_which_is_the_spare_from_then_on() -> None:
    run = SimulatedRun(a_policy(1, 2))
    first, second = run.joined(0, 1)
    (spare,) = run.joined(2)
    second.fail().step_aside()
    first.join_prepared()
    assert first.runs == spare.runs == 2
    assert second.join_prepared().last == Waiting(nodes=1, spare=True)


def test_no_group_is_formed_before_the_others_of_one_that_steps_aside_have_stopped() -> None:
    run = SimulatedRun(a_policy(1, 3))
    first, second, third = run.joined(0, 1, 2)
    third.fail().step_aside()
    first.join_prepared()
    third.join_prepared()
    assert len(run.starts) == 1
    second.join()
    assert len(run.starts[-1].nodes) == 3


def test_a_store_that_never_heard_of_the_failure_ends_the_group_of_a_node_that_steps_aside() -> None:
    run = SimulatedRun(a_policy(1, 2))
    first, second = run.joined(0, 1)
    second.step_aside()
    assert first.asked_to_stop == Stop(graceful=False)
