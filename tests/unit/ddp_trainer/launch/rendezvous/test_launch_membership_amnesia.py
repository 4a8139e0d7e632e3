"""A store that was restarted with empty memory, and learns from the agents."""

from __future__ import annotations

from ddp_trainer.launch.protocol.messages import Stop, Verdict, Waiting, WorkerState
from tests.support.launch_simulation import SimulatedRun, a_policy


def test_a_store_that_forgot_everything_goes_on_counting_where_the_old_one_stopped() -> None:
    run, agents = SimulatedRun.of(a_policy(2, 2, max_restarts=2), 0, 1)
    agents[0].fail().join()
    agents[1].join()
    run.restart_store()
    for agent in agents:
        run.reconnect(agent)
    agents[0].fail().join()
    agents[1].join()
    last = run.starts[-1]
    assert (last.number, last.restarts, last.restarts_left) == (3, {"failure": 2}, 0)


def test_a_store_that_forgot_everything_gives_up_on_members_that_do_not_come_back() -> None:
    run, (survivor, _lost) = SimulatedRun.of(a_policy(1, 2), 0, 1)
    run.restart_store()
    run.reconnect(survivor)
    run.wait(9.9)
    assert survivor.asked_to_stop is None
    run.wait(0.2)
    survivor.join()
    run.wait(2)
    assert survivor.runs == 2


def test_a_store_that_forgot_everything_does_not_start_newcomers_beside_a_group_that_reconnects() -> None:
    run, (old, other) = SimulatedRun.of(a_policy(1, 2), 0, 1)
    run.restart_store()
    (new,) = run.joined(2)
    run.wait(1)
    run.reconnect(old)
    run.reconnect(other)
    run.wait(100)
    assert (old.runs, other.runs, new.runs) == (1, 1, None)
    assert new.last == Waiting(nodes=1, spare=True)


def test_a_store_that_forgot_everything_lets_the_younger_of_two_groups_stand_because_the_other_is_fenced_off() -> None:
    run, (old,) = SimulatedRun.of(a_policy(1, 2), 0)
    run.wait(3)
    old.fail().join()
    run.restart_store()
    (new,) = run.joined(1)
    run.wait(5)
    assert (old.runs, new.runs) == (2, 1)
    run.reconnect(old)
    assert old.asked_to_stop == Stop(graceful=False)
    old.join()
    assert new.asked_to_stop == Stop(graceful=True)
    new.join()
    assert (old.runs, new.runs) == (3, 3)


def test_a_store_that_forgot_everything_begins_at_1_when_all_who_knew_are_gone_but_its_fence_is_higher() -> None:
    run, (old,) = SimulatedRun.of(a_policy(1, 1), 0)
    old.fail().join()
    run.wait(1)
    old.mark_disconnected()
    run.restart_store()
    run.joined(0)
    assert [generation.number for generation in run.starts] == [1, 2, 1]
    assert run.starts[2].fence > run.starts[1].fence


def test_a_store_that_forgot_everything_waits_for_the_workers_of_a_group_that_one_agent_saw_end() -> None:
    run, (first, second) = SimulatedRun.of(a_policy(1, 2), 0, 1)
    first.fail()
    run.restart_store()
    first.standing = WorkerState.IDLE
    run.reconnect(first).join()
    run.wait(2.9)
    assert first.runs is None
    run.reconnect(second)
    assert second.asked_to_stop is not None
    second.join()
    assert (first.runs, second.runs) == (2, 2)


def test_a_store_that_forgot_everything_waits_less_for_members_of_a_group_that_one_agent_saw_end() -> None:
    run, (first, _lost) = SimulatedRun.of(a_policy(1, 2), 0, 1)
    first.fail()
    run.restart_store()
    first.standing = WorkerState.IDLE
    run.reconnect(first).join()
    run.wait(3.1)
    assert first.runs == 2


def test_a_store_that_forgot_everything_remembers_who_has_succeeded() -> None:
    run, (first, second) = SimulatedRun.of(a_policy(2, 2), 0, 1)
    first.succeed()
    run.restart_store()
    run.reconnect(first)
    run.reconnect(second).succeed()
    assert first.last.verdict is Verdict.SUCCEEDED


def test_a_store_that_forgot_everything_stops_workers_of_a_generation_that_is_over() -> None:
    run, (survivor, cut_off) = SimulatedRun.of(a_policy(1, 2), 0, 1)
    cut_off.mark_disconnected()
    run.wait(0.6)
    survivor.join()
    run.wait(2)
    assert survivor.runs == 2
    run.reconnect(cut_off)
    assert cut_off.asked_to_stop == Stop(graceful=False)
