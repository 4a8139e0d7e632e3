"""Nodes that join a run with a preflight: who takes part in it, and who is accepted."""

from __future__ import annotations

from ddp_trainer.launch.protocol.messages import Prepare, RunPreflight, Waiting
from ddp_trainer.launch.rendezvous.group_formation import AT_ONCE, MOST_ONLOOKERS
from ddp_trainer.launch.rendezvous.membership import RunPhase
from tests.support.launch_simulation import SimulatedAgent, SimulatedRun, a_policy


def comes(run: SimulatedRun, *indices: int, preflights: bool = True) -> list[SimulatedAgent]:
    agents = [run.agent(index) for index in indices]
    for agent in agents:
        agent.joins_preflight = preflights
        agent.connect().join()
    return agents


def group_of(count: int, *, most: int = 100, preflights: bool = True) -> tuple[SimulatedRun, list[SimulatedAgent]]:
    run = SimulatedRun(a_policy(1, most))
    members = comes(run, *range(count), preflights=preflights)
    run.wait(5)
    assert [agent.runs for agent in members] == [1] * count
    return run, members


def meetings(agent: SimulatedAgent) -> list[RunPreflight]:
    return [message for message in agent.heard if isinstance(message, RunPreflight)]


def test_a_node_that_is_not_fit_does_not_delay_others() -> None:
    run, (member,) = group_of(1, most=3)
    bad, good = comes(run, 1, 2)
    bad.record_result(fit=False)
    good.record_result(fit=True)
    run.wait(5)
    member.join()
    assert (member.runs, good.runs, bad.runs) == (2, 2, None)


def test_the_place_of_a_lost_node_is_taken_by_one_that_was_looked_at_too() -> None:
    run = SimulatedRun(a_policy(2, 2))
    first, second = comes(run, 0, 1)
    second.mark_disconnected()
    run.wait(5)
    first.join()
    (instead,) = comes(run, 1)
    assert (run.membership.phase, instead.runs) == (RunPhase.FORMING, None)
    assert list(meetings(first)[-1].names) == ["worker-0", "worker-1"]
    instead.record_result(fit=True)
    assert (first.runs, instead.runs) == (2, 2)


def test_a_node_is_accepted_without_a_preflight_if_no_member_is_left() -> None:
    run, (member,) = group_of(1)
    (newcomer,) = comes(run, 1)
    member.mark_disconnected()
    run.wait(5)
    newcomer.record_result(fit=False)
    run.wait(5)
    assert newcomer.runs == 2


def test_a_failed_preflight_in_which_a_member_was_lost_does_not_count() -> None:
    run, (member, lost) = group_of(2)
    (newcomer,) = comes(run, 2)
    lost.mark_disconnected()
    run.wait(5)
    member.join()
    newcomer.record_result(fit=False)
    assert len(meetings(newcomer)) == 2
    assert list(meetings(newcomer)[-1].names) == ["worker-0", "worker-2"]


def test_the_result_of_an_earlier_preflight_does_not_count() -> None:
    run, (member,) = group_of(1)
    (newcomer,) = comes(run, 1)
    newcomer.mark_disconnected()
    run.reconnect(newcomer).join()
    first, second = meetings(newcomer)
    assert first.number != second.number
    newcomer.heard.remove(second)
    newcomer.record_result(fit=True)
    run.wait(5)
    assert member.asked_to_stop is None


def test_of_many_members_a_few_take_part_and_of_many_newcomers_a_few_at_once() -> None:
    run, members = group_of(20)
    newcomers = comes(run, *range(20, 20 + AT_ONCE + 2))
    preflighted = [member for member in members if meetings(member)]
    assert len(preflighted) <= MOST_ONLOOKERS
    assert preflighted[0] is members[0]
    assert [len(meetings(newcomer)) for newcomer in newcomers] == [1] * AT_ONCE + [0, 0]
    newcomers[0].record_result(fit=True)
    assert [len(meetings(newcomer)) for newcomer in newcomers] == [1] * (AT_ONCE + 1) + [0]


def test_nodes_without_a_preflight_take_part_in_none() -> None:
    for members_look, newcomer_looks in ((False, True), (True, False)):
        run, (member,) = group_of(1, preflights=members_look)
        (newcomer,) = comes(run, 1, preflights=newcomer_looks)
        run.wait(5)
        assert not meetings(member) + meetings(newcomer)
        member.join()
        assert (member.runs, newcomer.runs) == (2, 2)


def test_one_that_is_fit_waits_as_a_spare_where_the_group_is_full() -> None:
    run, (member,) = group_of(1, most=1)
    (spare,) = comes(run, 1)
    assert not isinstance(spare.last, Waiting)
    spare.record_result(fit=True)
    assert spare.last == Waiting(nodes=1, spare=True)
    run.wait(1000)
    assert member.asked_to_stop is None


def test_one_that_is_fit_gets_ready_before_members_that_stay_are_stopped_for_it() -> None:
    run, (member,) = group_of(1)
    member.outlive()
    (newcomer,) = comes(run, 1)
    newcomer.record_result(fit=True)
    assert isinstance(newcomer.last, Prepare)
    assert member.asked_to_stop is None
    newcomer.join_prepared()
    assert len(meetings(newcomer)) == 1
    assert member.asked_to_stop is not None


def test_a_spare_of_the_first_group_meets_its_members_while_it_waits() -> None:
    run = SimulatedRun(a_policy(1, 2))
    first, second, spare = comes(run, 0, 1, 2)
    run.wait(5)
    assert [len(meetings(agent)) for agent in (first, second, spare)] == [1, 1, 1]
    second.mark_disconnected()
    run.wait(5)
    first.join()
    assert (first.runs, spare.runs) == (2, None)
    spare.record_result(fit=True)
    run.wait(5)
    assert first.asked_to_stop is not None


def test_a_node_that_came_to_a_forgetful_store_meets_the_members_when_they_are_back() -> None:
    run, (member,) = group_of(1)
    run.restart_store()
    (newcomer,) = comes(run, 1)
    assert not meetings(newcomer)
    run.reconnect(member)
    run.wait(30)
    assert len(meetings(newcomer)) == 1
    assert (member.runs, member.asked_to_stop) == (1, None)


def test_a_node_that_was_in_a_group_comes_back_without_another_preflight() -> None:
    run, (member, aside, lost) = group_of(3)
    aside.fail().step_aside()
    lost.mark_disconnected()
    run.wait(5)
    member.join_prepared()
    assert member.runs == 2
    aside.join_prepared()
    run.reconnect(lost)
    lost.join()
    run.wait(5)
    assert not meetings(aside) + meetings(lost) + meetings(member)
    assert member.asked_to_stop is not None
    member.join()
    run.wait(5)
    assert member.runs == aside.runs == lost.runs
