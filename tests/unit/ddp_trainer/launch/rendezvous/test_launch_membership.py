"""Membership of a run: when groups form, stop and end."""

from __future__ import annotations

from ddp_trainer.launch.failures import EARLY_EXIT
from ddp_trainer.launch.protocol import messages
from ddp_trainer.launch.protocol.message_fields import MOST_NAMED
from ddp_trainer.launch.rendezvous.group_formation import MAX_NOTIFIED_NODES
from ddp_trainer.launch.rendezvous.membership import RunPhase
from ddp_trainer.launch.rendezvous.waiting_messages import other_policy_message
from tests.support.launch_simulation import SimulatedAgent, SimulatedRun, a_policy


def stop_and_join(*agents: SimulatedAgent) -> None:
    for agent in agents:
        assert agent.asked_to_stop is not None
        agent.join()


def test_below_the_most_nodes_a_fresh_store_waits_for_a_running_group_that_may_reconnect() -> None:
    run, (alone,) = SimulatedRun.of(a_policy(1, 2), 0)
    run.wait(2.9)
    assert alone.runs is None
    run.wait(0.2)
    assert alone.runs == 1


def test_each_newcomer_renews_the_wait_until_the_last_call() -> None:
    run = SimulatedRun(a_policy(2, 20))
    run.wait(3)
    agents = run.joined(0)
    for index in range(1, 7):
        run.wait(0.9)
        agents += run.joined(index)
    assert run.membership.phase is RunPhase.RUNNING  # the last call was 5 seconds after the first came
    assert len(run.starts[0].nodes) == 6


def test_those_that_wait_hear_who_is_there_whenever_that_changes() -> None:
    first, second = SimulatedRun(a_policy(3, 3)).joined(0, 2)
    expected = messages.Waiting(
        nodes=2, spare=False, names=("worker-0", "worker-2"), missing=("worker-1",), missing_count=1
    )
    assert (first.last, second.last) == (expected, expected)
    second.mark_disconnected()
    missing = ("worker-1", "worker-2")
    assert first.last == messages.Waiting(nodes=1, spare=False, names=("worker-0",), missing=missing, missing_count=2)


def test_of_many_nodes_only_the_one_that_comes_is_told_how_many_wait() -> None:
    agents = SimulatedRun(a_policy(1000, 1000)).joined(*range(MAX_NOTIFIED_NODES + 2))
    first = tuple(f"worker-{index}" for index in range(MOST_NAMED))
    missing = tuple(f"worker-{index}" for index in range(MAX_NOTIFIED_NODES, MAX_NOTIFIED_NODES + MOST_NAMED))
    expected = messages.Waiting(
        nodes=MAX_NOTIFIED_NODES, spare=False, names=first, missing=missing, missing_count=1000 - MAX_NOTIFIED_NODES
    )
    assert agents[0].last == expected
    assert agents[-1].last == messages.Waiting(nodes=MAX_NOTIFIED_NODES + 2, spare=False)


def test_a_node_with_other_numbers_is_warned_and_those_of_the_first_node_count() -> None:
    run, (first,) = SimulatedRun.of(a_policy(1, 2, 3), 0)
    run.policy = a_policy(2, 2, 3)
    (second,) = run.joined(1)
    assert not any(isinstance(sent, messages.OtherPolicy) for sent in first.heard)
    assert messages.OtherPolicy(policy=a_policy(1, 2, 3)) in second.heard
    sentence = other_policy_message(run.policy, a_policy(1, 2, 3))
    assert "--nnodes 2:2, and the run --nnodes 1:2 " in sentence
    assert "--max-restarts" not in sentence, "these agree"


def test_newcomers_that_come_close_together_cost_one_restart() -> None:
    run, (old,) = SimulatedRun.of(a_policy(1, 8), 0)
    run.wait(3)
    run.joined(1)
    run.wait(0.9)
    run.joined(2)
    assert old.asked_to_stop is None
    run.wait(1)
    stop_and_join(old)
    assert len(run.starts[-1].nodes) == 3


def test_newcomers_that_are_all_prepared_are_not_waited_for() -> None:
    run, (old,) = SimulatedRun.of(a_policy(1, 8), 0)
    run.wait(3)
    run.membership.handle_and_reconcile(run.agent(1).connect().peer, messages.Join(port=30001, is_prepared=True))
    assert old.asked_to_stop == messages.Stop(graceful=True)


def test_a_node_whose_ranks_have_left_is_not_waited_for_while_it_saves() -> None:
    run, (first, second) = SimulatedRun.of(a_policy(1, 2), 0, 1)
    second.leave()
    first.join()
    assert first.runs is None
    run.membership.handle_and_reconcile(second.peer, messages.Leave(has_left=True))
    assert first.runs == 2
    assert run.starts[-1].restarts == {"resize": 1}


def test_a_group_that_completes_is_not_stopped_for_a_newcomer() -> None:
    run, (first, second) = SimulatedRun.of(a_policy(1, 3), 0, 1)
    run.wait(3)
    first.succeed()
    run.joined(2)
    run.wait(100)
    assert second.asked_to_stop is None


def test_a_failure_stops_everybody_at_once_and_is_charged() -> None:
    run, (first, second) = SimulatedRun.of(a_policy(2, 2, max_restarts=1), 0, 1)
    first.fail()
    assert second.asked_to_stop == messages.Stop(graceful=False)
    first.join()
    assert run.membership.phase is RunPhase.STOPPING  # never two worlds: the other's workers still run
    second.join()
    assert (first.runs, second.runs) == (2, 2)
    assert (run.starts[-1].restarts, run.starts[-1].restarts_left) == ({"failure": 1}, 0)


def test_nobody_is_hurried_where_the_ranks_have_ended_their_group_together_unless_a_rank_is_lost_then() -> None:
    first, second, third = SimulatedRun(a_policy(3, 3)).joined(0, 1, 2)
    for agent in (first, second):
        agent.fail(agreed=True, exit_code=143, reason="sigterm")
    assert third.asked_to_stop == messages.Stop(graceful=True)
    second.fail(exit_code=137, reason="sigkill")
    assert third.asked_to_stop == messages.Stop(graceful=False)


def test_a_peer_that_went_away_is_never_the_first_error_while_there_is_another() -> None:
    first, second = SimulatedRun(a_policy(2, 2, max_restarts=0)).joined(0, 1)
    first.fail(exit_code=1, at=10, reason="collective_error", rank=0)
    second.fail(exit_code=7, at=11, rank=2)
    first.join()
    second.join()
    assert first.last.failure.rank == 2


def test_a_rank_that_ended_with_0_before_is_the_cause_of_what_a_peer_of_another_node_fails_of() -> None:
    first, second = SimulatedRun(a_policy(2, 2, max_restarts=0)).joined(0, 1)
    first.succeed()
    second.fail(exit_code=1, at=10, reason="collective_error", rank=2)
    assert first.asked_to_stop == messages.Stop(graceful=False)
    first.fail(exit_code=0, at=5, reason="early_exit", rank=0, message=EARLY_EXIT)
    first.join()
    second.join()
    for agent in (first, second):
        assert (agent.last.verdict, agent.last.exit_code, agent.last.failure.rank) == (messages.Verdict.FAILED, 1, 0)
        assert "rank 2 then failed" in agent.last.failure.message


def test_a_group_of_new_pods_alone_waits_for_more_of_them() -> None:
    run, lost = SimulatedRun.of(a_policy(1, 3), 0, 1)
    run.wait(3)
    for agent in lost:
        agent.mark_disconnected()
    run.wait(0.6)
    (first,) = run.joined(0)
    run.wait(0.9)
    assert first.runs is None
    (second,) = run.joined(1)
    run.wait(1.1)
    assert (first.runs, second.runs) == (2, 2)


def test_a_loss_during_a_graceful_stop_hurries_the_others() -> None:
    run, (first, second) = SimulatedRun.of(a_policy(1, 3), 0, 1)
    run.wait(3)
    run.joined(2)
    assert first.asked_to_stop == messages.Stop(graceful=True)
    second.mark_disconnected()
    first.fail(reason="collective_error")
    assert first.asked_to_stop == messages.Stop(graceful=False)


def test_a_member_that_is_done_takes_part_again_when_another_fails() -> None:
    done, failing = SimulatedRun(a_policy(2, 2)).joined(0, 1)
    done.succeed()
    failing.fail().join()
    stop_and_join(done)
    assert (done.runs, failing.runs) == (2, 2)


def test_a_member_that_is_done_may_go_before_the_others_are() -> None:
    run, (first, second) = SimulatedRun.of(a_policy(2, 2), 0, 1)
    first.succeed().mark_disconnected()
    run.wait(10)
    assert second.runs == 1
    second.succeed()
    assert second.last.verdict is messages.Verdict.SUCCEEDED


def test_nodes_without_a_part_in_the_end_get_the_summary_of_the_group_that_completed() -> None:
    run, (first, second, spare) = SimulatedRun.of(a_policy(), 0, 1, 2)
    first.succeed('{"steps": 1}')
    second.fail()
    for agent in (first, second):
        agent.join()
    second.succeed()
    run.restart_store()
    for agent in (first, second, spare):
        run.reconnect(agent)
    first.succeed('{"steps": 2}')
    run.wait(60)
    nodes = [first, second, spare, run.agent(3).connect()]
    ends = [message for agent in nodes for message in agent.heard if isinstance(message, messages.Over)]
    assert [end.summary for end in ends] == ["", "", '{"steps": 2}', '{"steps": 2}']


def test_a_connection_that_blips_does_not_lose_its_name_to_one_that_waits_for_it() -> None:
    run, (first, second) = SimulatedRun.of(a_policy(2, 2), 0, 1)
    (waiting,) = run.joined(1)
    second.mark_disconnected()
    run.reconnect(second)
    run.wait(100)
    assert (first.runs, second.runs, waiting.runs) == (1, 1, None)


def test_a_pod_that_leaves_gives_its_name_to_the_next_one_at_once() -> None:
    run, (first, former) = SimulatedRun.of(a_policy(2, 2), 0, 1)
    former.leave()
    (new,) = run.joined(1)
    assert (type(former.last), former.last.exit_code) == (messages.Rejected, 172)
    stop_and_join(first)
    assert (first.runs, new.runs) == (2, 2)


def test_a_start_that_never_arrived_is_made_up_for() -> None:
    run, (first, second) = SimulatedRun.of(a_policy(2, 2), 0, 1)
    second.mark_disconnected()
    second.generation, second.standing = None, messages.WorkerState.IDLE  # the message was lost on the way
    run.reconnect(second).join()
    assert first.asked_to_stop is not None
    first.join()
    assert (first.runs, second.runs) == (2, 2)


def test_a_range_that_holds_no_number_is_refused() -> None:
    assert "3:2" in SimulatedRun(a_policy(3, 2)).agent(0).connect().last.why


def test_a_start_carries_the_place_of_its_node() -> None:
    places = [agent.last.assignment for agent in SimulatedRun(a_policy(2, 2)).joined(0, 1)]
    assert [(place.node_rank, place.first_rank, place.world_size) for place in places] == [(0, 0, 4), (1, 2, 4)]
    assert places[0].digest == places[1].digest
    assert places[0].peer_addresses == ("10.0.0.1",)
