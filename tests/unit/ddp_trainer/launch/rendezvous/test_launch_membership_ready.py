"""Nodes that come to a group whose workers stay: it is stopped when they are ready, and not before."""

from __future__ import annotations

from ddp_trainer.launch.protocol.messages import Prepare, Stop, Waiting
from tests.support.launch_simulation import SimulatedRun, a_policy


def test_a_newcomer_gets_ready_first_where_the_others_workers_stay() -> None:
    run = SimulatedRun(a_policy(1, 2))
    (first,) = run.joined(0)
    run.wait(10)
    first.outlive()
    (second,) = run.joined(1)
    assert second.last == Prepare()
    assert first.asked_to_stop is None
    second.join_prepared()
    assert first.asked_to_stop == Stop(graceful=True)
    first.join_prepared()
    assert first.runs == second.runs == 2


def test_a_newcomer_that_cannot_get_ready_is_taken_in_as_it_is() -> None:
    run = SimulatedRun(a_policy(1, 2))
    (first,) = run.joined(0)
    run.wait(10)
    first.outlive()
    (second,) = run.joined(1)
    second.join()
    assert second.heard.count(Prepare()) == 1
    assert first.asked_to_stop == Stop(graceful=True)


def test_a_newcomer_to_workers_that_are_started_anew_is_taken_in_at_once() -> None:
    run = SimulatedRun(a_policy(1, 3))
    first, second = run.joined(0, 1)
    run.wait(10)
    first.outlive()
    (third,) = run.joined(2)
    assert Prepare() not in third.heard
    run.wait(1000)
    assert first.asked_to_stop == second.asked_to_stop == Stop(graceful=True)


def test_a_spare_gets_ready_too() -> None:
    run = SimulatedRun(a_policy(1, 1))
    (first,) = run.joined(0)
    run.wait(10)
    first.outlive()
    (spare,) = run.joined(1)
    assert spare.last == Prepare()
    assert spare.join_prepared().last == Waiting(nodes=1, spare=True)


def test_a_spare_that_came_before_the_workers_could_stay_gets_ready_when_all_can() -> None:
    run = SimulatedRun(a_policy(2, 2))
    first, second, spare = run.joined(0, 1, 2)
    first.outlive()
    assert Prepare() not in spare.heard
    second.outlive()
    assert spare.last == Prepare()
    assert spare.join_prepared().last == Waiting(nodes=1, spare=True)
    first.outlive()
    assert spare.heard.count(Prepare()) == 1
