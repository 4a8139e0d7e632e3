"""Nodes that prepare workers, or replace a dead worker, while the others' workers continue."""

from __future__ import annotations

import pytest

from ddp_trainer.launch.protocol.messages import Prepare, Stop, Waiting, WorkerImports
from ddp_trainer.launch.rendezvous.membership import RunPhase
from tests.support.launch_simulation import SimulatedRun, a_policy


def test_a_newcomer_that_cannot_get_ready_is_taken_in_as_it_is() -> None:
    run, (first,) = SimulatedRun.of(a_policy(1, 2), 0)
    run.wait(10)
    first.outlive()
    (second,) = run.joined(1)
    second.join()
    assert second.heard.count(Prepare()) == 1
    assert first.asked_to_stop == Stop(graceful=True)


def test_a_newcomer_to_workers_that_are_restarted_is_accepted_without_preparation() -> None:
    run, (first, second) = SimulatedRun.of(a_policy(1, 3), 0, 1)
    run.wait(10)
    first.outlive()
    (third,) = run.joined(2)
    assert Prepare() not in third.heard
    run.wait(1000)
    assert first.asked_to_stop == second.asked_to_stop == Stop(graceful=True)


def test_a_spare_gets_ready_too() -> None:
    run, (first,) = SimulatedRun.of(a_policy(1, 1), 0)
    run.wait(10)
    first.outlive()
    (spare,) = run.joined(1)
    assert spare.last == Prepare()
    assert spare.join_prepared().last == Waiting(nodes=1, spare=True)


def test_a_spare_that_came_before_the_workers_could_stay_gets_ready_when_all_can() -> None:
    first, second, spare = SimulatedRun(a_policy(2, 2)).joined(0, 1, 2)
    first.outlive()
    assert Prepare() not in spare.heard
    second.outlive()
    assert spare.last == Prepare()
    assert spare.join_prepared().last == Waiting(nodes=1, spare=True)
    first.outlive()
    assert spare.heard.count(Prepare()) == 1


@pytest.mark.parametrize(("nodes", "taken"), [((1, 3), None), ((2, 2), 2)], ids=["enough", "too few"])
def test_members_take_a_node_that_still_imports_only_where_they_are_too_few(
    nodes: tuple[int, int], taken: int | None
) -> None:
    run, (first, second) = SimulatedRun.of(a_policy(*nodes), 0, 1)
    run.wait(10)
    third = run.agent(2).connect().join(is_importing=True)
    second.mark_disconnected()
    run.wait(1)
    first.join()
    assert (first.runs, third.runs) == (2, taken)


def test_a_member_is_in_the_next_group_although_its_fork_server_imports() -> None:
    first, second = SimulatedRun(a_policy(1, 2)).joined(0, 1)
    first.fail()
    second.join()
    first.join(is_importing=True)
    assert first.runs == second.runs == 2


def test_the_first_group_forms_while_its_nodes_import() -> None:
    run = SimulatedRun(a_policy(2, 2))
    first, second = (run.agent(index).connect().join(is_importing=True) for index in (0, 1))
    assert first.runs == second.runs == 1


def test_nodes_outside_of_the_group_get_the_imports_of_its_workers_from_node_0() -> None:
    run, (first, second, spare) = SimulatedRun.of(a_policy(1, 2), 0, 1, 2)
    known = WorkerImports(modules=("torch", "torch._dynamo"))
    run.membership.handle_and_reconcile(second.peer, known)
    assert known not in spare.heard
    run.membership.handle_and_reconcile(first.peer, known)
    assert known in spare.heard
    assert known not in [*first.heard, *second.heard]
    assert known in run.agent(3).connect().heard


def test_a_node_that_steps_aside_is_waited_for_where_the_others_are_too_few() -> None:
    run, agents = SimulatedRun.of(a_policy(2, 3), 0, 1, 2)
    agents[2].fail().step_aside()
    agents[1].step_aside()
    agents[0].join_prepared()
    run.wait(1000)
    assert run.membership.phase is RunPhase.FORMING
    agents[1].join_prepared()
    assert [node.index for node in run.starts[-1].nodes] == [0, 1]


def test_a_spare_takes_the_place_of_a_node_that_steps_aside_which_is_the_spare_from_then_on() -> None:
    run, (first, second) = SimulatedRun.of(a_policy(1, 2), 0, 1)
    (spare,) = run.joined(2)
    second.fail().step_aside()
    first.join_prepared()
    assert first.runs == spare.runs == 2
    assert second.join_prepared().last == Waiting(nodes=1, spare=True)


def test_no_group_is_formed_before_the_others_of_one_that_steps_aside_have_stopped() -> None:
    run, (first, second, third) = SimulatedRun.of(a_policy(1, 3), 0, 1, 2)
    third.fail().step_aside()
    first.join_prepared()
    third.join_prepared()
    assert len(run.starts) == 1
    second.join()
    assert len(run.starts[-1].nodes) == 3


def test_a_store_that_never_heard_of_the_failure_ends_the_group_of_a_node_that_steps_aside() -> None:
    first, second = SimulatedRun(a_policy(1, 2)).joined(0, 1)
    second.step_aside()
    assert first.asked_to_stop == Stop(graceful=False)
