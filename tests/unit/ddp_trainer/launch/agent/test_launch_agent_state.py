"""State machine of an agent: the actions for each event."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace

import pytest

from ddp_trainer.common.constants import Exit, GroupState, OutsideReason
from ddp_trainer.launch.agent.agent_state import AgentStateMachine, Limits, State
from ddp_trainer.launch.failures import EARLY_EXIT
from ddp_trainer.launch.protocol import actions, messages
from ddp_trainer.launch.protocol.actions import CancelTimer, Finish, PrepareWorkers, Rejoin, Send, SetTimer, Timer
from ddp_trainer.launch.protocol.generation import Generation, Node
from ddp_trainer.launch.protocol.messages import Failed, Failure, Hello, Join, Prepare, Start, Stop, WorkerState
from tests.support.launch_simulation import a_failure, a_policy, place_of

NODE = Node(token="me", name="w-0", index=0, local_world_size=2)
GENERATION = place_of(Generation(number=4, fence=4, nodes=(NODE,), master_address="h", master_port=1), "me")
LIMITS = Limits(join=60, shutdown=30, failure=3)
SIGTERM = actions.SignalWorkers(signal.SIGTERM)
SIGKILL = actions.SignalWorkers(signal.SIGKILL)


def an_agent(min_nodes: int = 2) -> AgentStateMachine:
    policy, idle = a_policy(min_nodes, 2), WorkerState.IDLE
    hello = Hello(version=messages.VERSION, run_id="run", node=NODE, policy=policy, standing=idle)
    return AgentStateMachine(hello=hello, limits=LIMITS, endpoint="store:29400")


def joining() -> AgentStateMachine:
    core = an_agent()
    core.join(5000)
    return core


def test_a_node_that_joins_has_the_reason_why_it_is_in_no_group() -> None:
    core = joining()
    core.link_failed("its name does not resolve", OutsideReason.NAME_RESOLUTION)
    assert core.outside_reason is OutsideReason.NAME_RESOLUTION
    core.initial_messages("10.0.0.7")
    core.on_message(messages.Waiting(nodes=1, spare=False, namesake="Another connection holds this name."))
    assert core.outside_reason is OutsideReason.NAME_TAKEN
    core.on_message(messages.Waiting(nodes=1, spare=False))
    assert core.outside_reason is OutsideReason.WAITING
    core.unfit = "GPU 0 is slow"
    assert core.outside_reason is OutsideReason.PREFLIGHT
    core.on_message(Start(assignment=GENERATION))
    assert core.outside_reason is None


def running() -> AgentStateMachine:
    core = joining()
    core.initial_messages("10.0.0.7")
    core.on_message(Start(assignment=GENERATION))
    return core


def stopping() -> AgentStateMachine:
    core = running()
    core.on_message(Stop(graceful=True))
    return core


def done() -> AgentStateMachine:
    core = running()
    core.on_worker_exit(0, None)
    core.on_worker_exit(1, None)
    return core


def test_joining_sends_the_port_and_has_a_timeout() -> None:
    assert an_agent().join(5000) == [
        actions.Enter(GroupState.RENDEZVOUS),
        SetTimer(Timer.JOIN, 60),
        Send(Join(port=5000)),
    ]


@pytest.mark.parametrize("state", [running, stopping, done])
def test_a_generation_that_comes_late_starts_nothing(state: Callable[[], AgentStateMachine]) -> None:
    assert state().on_message(Start(assignment=GENERATION)) == []


def test_a_failure_is_reported_immediately_and_the_others_get_little_time() -> None:
    core = running()
    core.worker_stop.longest_step = lambda _: 40.0  # not for workers that do not stay
    failure = a_failure(4)
    found = core.on_worker_exit(1, failure)
    assert found[0] == Send(Failed(failure=failure))
    assert SIGTERM in found
    assert SetTimer(Timer.KILL, 3) in found
    assert core.on_worker_exit(0, a_failure(4, exit_code=143)) == [CancelTimer(Timer.KILL), Rejoin()]


def test_success_of_all_workers_is_reported_once() -> None:
    core = running()
    assert core.on_worker_exit(0, None) == []
    assert Send(messages.Succeeded(generation=4)) in core.on_worker_exit(1, None)
    assert core.state is State.DONE


def test_a_graceful_stop_gives_the_workers_their_time() -> None:
    core = running()
    assert SIGTERM in core.on_message(Stop(graceful=True))
    seconds: float = LIMITS.failure
    while isinstance(action := core.on_timer(Timer.KILL)[0], SetTimer):
        seconds += action.seconds
    assert (action, seconds) == (SIGKILL, LIMITS.shutdown)


def test_a_graceful_stop_does_not_wait_for_a_worker_that_is_stuck() -> None:
    core = stopping()
    core.worker_stop.stuck = lambda local_ranks: local_ranks & {1}
    killed, again = core.on_timer(Timer.KILL)
    assert killed == actions.SignalWorkers(signal.SIGKILL, frozenset({1}))
    assert again == SetTimer(Timer.KILL, LIMITS.failure)


def test_a_graceful_stop_may_become_a_hurried_one_but_not_the_reverse() -> None:
    core = stopping()
    assert core.on_message(Stop(graceful=False)) == [SetTimer(Timer.KILL, 3)]
    assert core.on_message(Stop(graceful=True)) == []


def test_a_node_that_is_done_joins_again_when_others_need_it() -> None:
    assert done().on_message(Stop(graceful=False))[-1] == Rejoin()


def test_workers_that_end_as_they_were_asked_to_are_no_failure() -> None:
    core = stopping()
    assert core.on_worker_exit(0, a_failure(4, exit_code=143)) == []
    assert core.on_worker_exit(1, a_failure(4, exit_code=137)) == [CancelTimer(Timer.KILL), Rejoin()]


@pytest.mark.parametrize("state", [joining, done])
def test_without_workers_a_signal_makes_it_leave_immediately(state: Callable[[], AgentStateMachine]) -> None:
    first, *_, last = state().on_signal(signal.SIGTERM)
    assert (first, last) == (Send(messages.Leave()), Finish(Exit.TERMINATED))


def able(core: AgentStateMachine, *local_ranks: int) -> AgentStateMachine:
    for local_rank in local_ranks:
        core.set_reusable(local_rank)
    return core


def test_reusable_workers_leave_the_group_and_do_not_end() -> None:
    found = able(running(), 0).on_message(Stop(graceful=True))
    assert actions.RegroupWorkers(frozenset({0}), graceful=True) in found
    assert actions.SignalWorkers(signal.SIGTERM, frozenset({1})) in found
    assert SIGTERM not in found


def test_a_group_has_stopped_when_every_worker_has_left_it_or_is_gone() -> None:
    core = able(running(), 0)
    core.on_message(Stop(graceful=False))
    assert core.left(0, a_failure(4, exit_code=170)) == [Send(Failed(failure=a_failure(4, exit_code=170)))]
    assert core.on_worker_exit(1, a_failure(4, exit_code=143))[-1] == Rejoin()


def test_a_worker_that_notices_the_loss_itself_counts_as_failed_and_stays() -> None:
    core = able(running(), 0, 1)
    lost = a_failure(4, exit_code=170, reason="collective_error")
    found = core.left(0, lost)
    assert found[0] == Send(Failed(failure=lost))
    assert actions.RegroupWorkers(frozenset({1}), graceful=False) in found
    core.left(1, lost)
    assert core.join(5001)[-1] == Send(Join(port=5001, is_prepared=True))


def test_only_workers_that_did_not_leave_in_time_are_killed() -> None:
    core = able(running(), 0, 1)
    core.on_message(Stop(graceful=False))
    core.left(0, None)
    assert core.on_timer(Timer.KILL) == [actions.SignalWorkers(signal.SIGKILL, frozenset({1}))]


def test_workers_that_stayed_are_ended_when_the_agent_gets_a_signal() -> None:
    core = able(running(), 0, 1)
    core.on_message(Stop(graceful=False))
    core.left(0, None)
    core.left(1, None)
    core.join(5001)
    found = core.on_signal(signal.SIGTERM)
    assert found[0] == Send(messages.Leave())
    assert SIGTERM in found
    core.on_worker_exit(0, a_failure(4, exit_code=143))
    assert core.on_worker_exit(1, a_failure(4, exit_code=143))[-1] == Finish(143)


def test_a_node_that_leaves_reports_when_its_ranks_have_left_though_they_still_save() -> None:
    core = able(running(), 0, 1)
    core.on_signal(signal.SIGTERM)
    assert core.left(0, None) == []
    assert core.left(1, None) == [Send(messages.Leave(has_left=True))]


def test_ranks_that_publish_their_state_have_their_time_and_the_node_leaves_after_them() -> None:
    core = able(running(), 0, 1)
    core.on_signal(signal.SIGTERM)
    terminated = a_failure(4, exit_code=Exit.TERMINATED)
    assert core.left(0, terminated, is_staying=False, publishes=True) == []
    assert core.left(1, terminated, is_staying=False, publishes=True) == []
    assert core.on_message(Stop(graceful=False)) == []
    core.on_worker_exit(0, terminated)
    assert core.on_worker_exit(1, terminated)[-1] == Finish(143)


def test_a_worker_that_is_no_longer_reusable_is_stopped() -> None:
    core = able(running(), 0)
    core.on_message(Stop(graceful=True))
    assert core.set_reusable(0, able=False) == [actions.SignalWorkers(signal.SIGTERM, frozenset({0}))]


def test_a_node_joins_when_its_workers_are_ready_or_could_not_get_so() -> None:
    core = an_agent()
    assert PrepareWorkers() in core.prepare()
    assert all(not isinstance(message, Join) for message in core.initial_messages("10.0.0.7"))
    able(core, 0)
    assert core.left(0, None) == []
    assert core.on_worker_exit(1, a_failure(0)) == [CancelTimer(Timer.KILL), Rejoin()]
    assert core.join(5000)[-1] == Send(Join(port=5000, is_prepared=False))


def of_two_nodes(min_nodes: int) -> AgentStateMachine:
    """Return an agent in a group of two, with reusable workers of which one has failed."""
    core = an_agent(min_nodes)
    core.join(5000)
    other = Node(token="other", name="w-1", index=1, local_world_size=2)
    group = Generation(number=4, fence=4, nodes=(NODE, other), master_address="h", master_port=1)
    core.on_message(Start(assignment=place_of(group, "me")))
    able(core, 0, 1)
    core.on_worker_exit(0, a_failure(4))
    return core


def test_a_node_that_can_be_spared_steps_aside_until_its_dead_workers_are_replaced() -> None:
    core = of_two_nodes(1)
    found = core.left(1, None)
    assert found[:2] == [CancelTimer(Timer.KILL), Send(messages.StandBy(generation=4))]
    assert PrepareWorkers() in found
    hello, *rest = core.initial_messages("10.0.0.7")
    assert isinstance(hello, Hello)
    assert rest == [Failed(failure=a_failure(4)), messages.StandBy(generation=4)]
    able(core, 0)
    assert core.left(0, None) == [CancelTimer(Timer.KILL), Rejoin()]
    assert core.join(5001)[-1] == Send(Join(port=5001, is_prepared=True))


def test_a_node_that_is_needed_or_has_no_reusable_workers_joins_immediately() -> None:
    assert of_two_nodes(2).left(1, None) == [CancelTimer(Timer.KILL), Rejoin()]
    core = of_two_nodes(1)
    core.set_reusable(1, able=False)
    assert core.on_worker_exit(1, a_failure(4, exit_code=143)) == [CancelTimer(Timer.KILL), Rejoin()]


def test_a_signal_while_it_stops_for_others_keeps_it_from_joining_again() -> None:
    core = stopping()
    assert core.on_signal(signal.SIGTERM) == [Send(messages.Leave())]
    core.on_worker_exit(0, None)
    assert core.on_worker_exit(1, None)[-1] == Finish(Exit.TERMINATED)


def test_the_verdict_ends_running_workers_first() -> None:
    core = running()
    assert SIGTERM in core.on_message(messages.Rejected(why="stale", exit_code=172))
    core.on_worker_exit(0, a_failure(4, exit_code=143))
    assert core.on_worker_exit(1, a_failure(4, exit_code=143))[-1] == Finish(172, "stale")


@pytest.mark.parametrize(
    ("state", "standing", "sent"),
    [(joining, WorkerState.IDLE, [Join]), (running, WorkerState.RUNNING, []), (done, WorkerState.SUCCEEDED, [])],
)
def test_a_new_link_gets_the_current_state(
    state: Callable[[], AgentStateMachine], standing: WorkerState, sent: list[type]
) -> None:
    hello, *rest = state().initial_messages("10.0.0.7")
    assert (hello.standing, hello.node.address) == (standing, "10.0.0.7")
    assert [type(message) for message in (hello, *rest)] == [Hello, *sent]


def test_a_new_link_gets_a_failure_that_the_old_one_may_have_lost() -> None:
    core = running()
    core.link_down()
    core.on_worker_exit(0, a_failure(4))
    hello, *rest = core.initial_messages("")
    assert (hello.standing, rest) == (WorkerState.RUNNING, [Failed(failure=a_failure(4))])


def test_a_spare_waits_for_the_store_and_imports_and_is_no_spare_where_nodes_are_missing() -> None:
    core = joining()
    core.initial_messages("")
    waits = [CancelTimer(Timer.JOIN), actions.Enter(GroupState.SPARE), actions.StartForkServer()]
    assert core.on_message(messages.Waiting(nodes=2, spare=True)) == waits
    assert core.link_down() == [SetTimer(Timer.JOIN, 60)]
    assert core.on_message(messages.Waiting(nodes=1, spare=False)) == [actions.Enter(GroupState.RENDEZVOUS)]


def test_a_spare_whose_workers_are_starting_does_not_import_beside_them() -> None:
    core = joining()
    core.initial_messages("")
    core.on_message(Prepare())
    assert core.on_message(messages.Waiting(nodes=2, spare=True)) == []


@pytest.mark.parametrize("timer", list(Timer))
def test_a_timer_that_fires_too_late_does_nothing(timer: Timer) -> None:
    assert done().on_timer(timer) == []


def test_the_store_gets_a_report_when_all_workers_are_reusable_and_when_one_no_longer_is() -> None:
    core = running()
    assert core.set_reusable(0) == []
    assert core.set_reusable(1) == [Send(messages.ReusableWorkers(able=True))]
    assert core.initial_messages("10.0.0.7")[0].outlive
    assert core.set_reusable(0, able=False) == [Send(messages.ReusableWorkers(able=False))]


def test_a_node_prepares_its_workers_on_request_before_it_joins_again() -> None:
    core = joining()
    assert PrepareWorkers() in core.on_message(Prepare())
    assert core.on_message(Prepare()) == []
    able(core, 0, 1)
    core.left(0, None)
    assert core.left(1, None) == [CancelTimer(Timer.KILL), Rejoin()]


def test_a_node_some_of_whose_workers_have_stayed_gets_the_others_ready_and_joins_again() -> None:
    core = able(running(), 0, 1)
    core.on_worker_exit(1, a_failure(4))
    core.left(0, a_failure(4))
    core.join(5001)
    assert PrepareWorkers() in core.on_message(Prepare())
    able(core, 1)
    assert core.left(1, None) == [CancelTimer(Timer.KILL), Rejoin()]


def test_a_node_that_is_ready_by_the_time_it_is_asked_to_get_ready_joins_again() -> None:
    core = able(running(), 0, 1)
    core.on_message(Stop(graceful=True))
    core.left(0, a_failure(4))
    core.left(1, a_failure(4))
    core.join(5001)
    assert core.on_message(Prepare()) == [Send(Join(port=5001, is_prepared=True))]


def test_a_worker_that_ends_by_itself_has_its_time_to_save_although_the_others_must_hurry() -> None:
    core = able(running(), 0, 1)
    terminated = a_failure(4, exit_code=Exit.TERMINATED)
    core.left(0, terminated, is_staying=False)
    core.left(1, terminated)
    assert core.on_message(Stop(graceful=False)) == []
    assert core.on_worker_exit(0, terminated) == [CancelTimer(Timer.KILL), Rejoin()]


def test_the_report_of_reusable_workers_is_withdrawn_once_when_one_ends_and_only_if_it_was_made() -> None:
    core = able(running(), 0, 1)
    assert Send(messages.ReusableWorkers(able=False)) in core.on_worker_exit(1, a_failure(4))
    assert Send(messages.ReusableWorkers(able=False)) not in core.on_worker_exit(0, a_failure(4))
    assert Send(messages.ReusableWorkers(able=False)) not in able(running(), 0).on_worker_exit(0, a_failure(4))


def an_early_exit(*, rank: int = 0, at: float = 1.0) -> Failure:
    return a_failure(4, exit_code=0, reason="early_exit", message=EARLY_EXIT, rank=rank, at=at)


@pytest.mark.parametrize("first", [an_early_exit(), a_failure(4, at=1, reason="collective_error")])
def test_an_error_after_an_early_exit_or_a_consequence_is_reported_when_it_is_found(first: Failure) -> None:
    core = running()
    core.on_worker_exit(0, first)
    second = a_failure(4, exit_code=2, reason="python_exception", rank=1, at=2)
    assert core.on_worker_exit(1, second)[0] == Send(Failed(failure=second))


@pytest.mark.parametrize("all_ended", [False, True])
def test_an_early_exit_is_reported_when_a_rank_of_another_node_fails(*, all_ended: bool) -> None:
    core = running()
    core.on_worker_exit(0, an_early_exit())
    if all_ended:
        core.on_worker_exit(1, an_early_exit(rank=1, at=2))
    assert core.on_message(Stop(graceful=False))[0] == Send(Failed(failure=an_early_exit()))


def test_an_early_exit_is_forgotten_with_its_generation() -> None:
    core = running()
    core.on_worker_exit(0, an_early_exit())
    core.on_worker_exit(1, an_early_exit(rank=1))
    core.on_message(Stop(graceful=True))
    core.join(5001)
    core.on_message(Start(assignment=replace(GENERATION, number=5)))
    assert not any(isinstance(action, Send) for action in core.on_message(Stop(graceful=False)))
