"""Ends of a group that use up the restart budget, and the end of a run without budget."""

from __future__ import annotations

import pytest

from ddp_trainer.launch.protocol.messages import Over, Verdict
from tests.support.launch_simulation import SimulatedAgent, SimulatedRun, a_failure, a_policy


def test_failures_of_many_nodes_in_one_generation_cost_one_restart() -> None:
    run, agents = SimulatedRun.of(a_policy(3, 3, max_restarts=2), 0, 1, 2)
    for agent in agents:
        agent.fail()
    for agent in agents:
        agent.join()
    assert run.starts[-1].restarts_left == 1


def test_a_spent_budget_ends_the_run_with_the_code_of_the_script_and_its_earliest_error() -> None:
    first, second = SimulatedRun(a_policy(2, 2, max_restarts=0)).joined(0, 1)
    first.fail(exit_code=3, at=20, rank=0)
    second.fail(exit_code=5, at=10, rank=2)
    first.join()
    second.join()
    assert (first.last.verdict, first.last.exit_code, first.last.failure.rank) == (Verdict.FAILED, 5, 2)
    assert first.last == second.last


@pytest.mark.parametrize("exit_code", [2, 93])
def test_what_no_restart_can_help_ends_the_run_at_once(exit_code: int) -> None:
    run, (agent,) = SimulatedRun.of(a_policy(1, 1, max_restarts=5), 0)
    agent.fail(exit_code=exit_code).join()
    assert (agent.last.verdict, agent.last.exit_code) == (Verdict.FAILED, exit_code)
    assert len(run.starts) == 1


@pytest.mark.parametrize("restarts", [0, 2])
@pytest.mark.parametrize("exit_code", [137, 139, 171])
def test_a_budget_of_n_allows_n_restarts_over_all_nodes_and_also_over_new_pods(restarts: int, exit_code: int) -> None:
    run, agents = SimulatedRun.of(a_policy(2, 2, max_restarts=restarts), 0, 1)
    for number in range(restarts + 1):
        agents[number % 2].fail(exit_code=exit_code, reason="sigkill")
        agents[0].join()
        agents[1].join()
    for agent in agents:
        assert (agent.last.verdict, agent.last.exit_code) == (Verdict.FAILED, 93)
        assert agent.last.failure.exit_code == exit_code
        assert sum(agent.last.restarts.values()) == restarts
        agent.mark_disconnected()
    assert len({start.number for start in run.starts}) == 1 + restarts
    (late,) = run.joined(0)
    assert [(sent.exit_code, sent.late) for sent in late.heard if isinstance(sent, Over)] == [(93, True)]
    assert late.runs is None


@pytest.mark.parametrize("exit_code", [143, 172])
def test_workers_that_stop_unasked_in_good_order_are_not_charged(exit_code: int) -> None:
    run, (agent,) = SimulatedRun.of(a_policy(1, 1, max_restarts=0), 0)
    agent.fail(exit_code=exit_code).join()
    assert agent.runs == 2
    assert run.starts[-1].restarts == {"preemption": 1}


def test_a_script_that_always_exits_143_is_given_up_in_the_end() -> None:
    (agent,) = SimulatedRun(a_policy(1, 1, max_restarts=0)).joined(0)
    for _ in range(50):
        if isinstance(agent.last, Over):
            break
        agent.fail(exit_code=143).join()
    assert (agent.last.verdict, agent.last.exit_code) == (Verdict.FAILED, 93)


def test_a_lost_node_costs_no_restart_even_when_its_peers_fail_first() -> None:
    run, (survivor, lost) = SimulatedRun.of(a_policy(1, 2, max_restarts=0), 0, 1)
    survivor.fail(reason="collective_error")
    lost.mark_disconnected()
    survivor.join()
    run.wait(2)
    assert survivor.runs == 2
    assert run.starts[-1].restarts == {"resize": 1}


@pytest.mark.parametrize("first_report", ["sigterm", "collective_error"])
def test_a_worker_that_sigterm_stopped_is_not_charged_when_its_peer_failed_earlier(first_report: str) -> None:
    run, (preempted, peer) = SimulatedRun.of(a_policy(2, 2, max_restarts=0), 0, 1)
    reports = {
        "sigterm": lambda: preempted.fail(exit_code=143, reason="sigterm", at=11, rank=0),
        "collective_error": lambda: peer.fail(exit_code=1, reason="collective_error", at=10, rank=2),
    }
    reports.pop(first_report)()
    for report in reports.values():
        report()
    preempted.join()
    peer.join()
    assert (preempted.runs, peer.runs) == (2, 2)
    assert run.starts[-1].restarts == {"preemption": 1}


def with_crash(agent: SimulatedAgent) -> SimulatedAgent:
    agent.crash = a_failure(1, rank=agent.index, exit_code=137, reason="launcher_crash")
    return agent


def test_a_crash_counts_once_although_its_launcher_reports_it_over_two_connections() -> None:
    run, (first, second) = SimulatedRun.of(a_policy(2, 2, max_restarts=3), 0, 1)
    second.mark_disconnected()
    run.wait(1)
    successor = with_crash(run.agent(1)).connect()
    successor.mark_disconnected()
    run.wait(5)
    run.reconnect(successor).join()
    first.join()
    assert run.starts[-1].restarts["failure"] == 1


def test_crashes_outside_of_the_group_cost_no_restart_and_end_no_healthy_run() -> None:
    run, members = SimulatedRun.of(a_policy(2, 2, max_restarts=0), 0, 1)
    for index in (0, 1, 2, 2, 3):  # two names of members that are connected, and those of spares
        with_crash(run.agent(index)).connect().join()
        run.wait(10)
    assert [member.runs for member in members] == [1, 1]
    for member in members:
        member.succeed()
    assert [(member.last.verdict, member.last.restarts) for member in members] == [(Verdict.SUCCEEDED, {})] * 2


def test_a_lost_member_is_charged_for_one_crash_of_the_pod_that_takes_its_name() -> None:
    run, (first, second) = SimulatedRun.of(a_policy(2, 2, max_restarts=3), 0, 1)
    early = with_crash(run.agent(1)).connect().join()  # before the store has noticed the loss
    assert run.membership.deadline() is None
    second.mark_disconnected()
    run.wait(1)
    first.join()
    assert (first.runs, early.runs) == (2, 2)
    assert run.starts[-1].restarts == {"failure": 1, "resize": 1}
    with_crash(run.agent(1)).connect().mark_disconnected()
    run.wait(1)
    first.fail()
    first.join()
    early.join()
    assert run.starts[-1].restarts == {"failure": 2, "resize": 1}


def test_a_new_pod_without_a_crash_leaves_none_to_charge() -> None:
    run, (first, second) = SimulatedRun.of(a_policy(1, 2, max_restarts=3), 0, 1)
    second.mark_disconnected()
    run.wait(1)
    first.join()
    run.wait(10)
    run.agent(1).connect().mark_disconnected()
    run.wait(1)
    with_crash(run.agent(1)).connect()
    assert "failure" not in run.membership.registry.generation.restarts
    first.fail()
    first.join()
    run.wait(10)
    assert run.starts[-1].restarts["failure"] == 1


def groups_until_the_end(run: SimulatedRun, agent: SimulatedAgent, errors: list[tuple[int, str, str]]) -> int:
    """End each group before its first step with the next of these errors; return the number of groups."""
    for exit_code, reason, message in errors:
        if isinstance(agent.last, Over):
            break
        agent.fail(exit_code=exit_code, reason=reason, message=message).join(is_before_first_step=True)
    return len(run.starts)


def unstepped(max_restarts: int = 10) -> tuple[SimulatedRun, SimulatedAgent]:
    run = SimulatedRun(a_policy(1, 1, max_restarts=max_restarts))
    return run, run.agent(0).connect().join(is_before_first_step=True)


BOOM = (1, "python_exception", "RuntimeError: boom")


@pytest.mark.parametrize(
    ("errors", "groups", "repeats"),
    [
        ([(1, "import_error", "ModuleNotFoundError: No module named 'mymodel'")], 1, 1),
        ([(1, "python_exception", "SyntaxError: invalid syntax (train.py, line 3)")], 1, 1),
        ([BOOM] * 11, 3, 3),
        ([(3, "other", "exited with code 3")] * 11, 3, 3),
        ([(1, "import_error", "ImportError: libcudart.so.13: cannot open shared object file")] * 11, 3, 3),
        ([(1, "python_exception", f"RuntimeError: try {number}") for number in range(11)], 11, 0),
        ([BOOM, BOOM, (1, "python_exception", "OSError: no route to host"), BOOM, BOOM, BOOM, BOOM], 6, 3),
        ([(137, "sigkill", "died of SIGKILL")] * 11, 11, 0),
        ([(1, "collective_error", "RuntimeError: Connection closed by peer")] * 11, 11, 0),
        ([(173, "gpu_fault", "GpuFailed: cuInit")] * 11, 11, 0),
    ],
)
def test_an_error_that_cannot_heal_ends_a_run_early(
    errors: list[tuple[int, str, str]], groups: int, repeats: int
) -> None:
    run, agent = unstepped()
    assert groups_until_the_end(run, agent, errors) == groups
    assert (agent.last.repeats, agent.last.restarts.get("failure", 0)) == (repeats, groups - 1)


def test_a_run_that_has_stepped_once_restarts_as_often_as_it_may() -> None:
    run, agent = unstepped(max_restarts=6)
    agent.fail(exit_code=137, reason="sigkill").join(is_before_first_step=False)
    assert groups_until_the_end(run, agent, [BOOM] * 11) == 7
    assert agent.last.repeats == 0


def test_a_pod_that_cannot_start_does_not_end_a_run_that_another_node_has_stepped_in() -> None:
    first, second = SimulatedRun(a_policy(2, 2, max_restarts=6)).joined(0, 1)
    first.fail(exit_code=137, reason="sigkill")
    first.join(is_before_first_step=False)
    second.join(is_before_first_step=True)
    for _ in range(4):
        second.fail(message="ModuleNotFoundError: No module named 'apex'", reason="import_error")
        first.join(is_before_first_step=True)
        second.join(is_before_first_step=True)
    assert second.runs == 6
