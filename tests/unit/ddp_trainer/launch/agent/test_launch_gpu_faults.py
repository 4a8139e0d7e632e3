"""After a GPU fault an agent checks its GPUs before it joins again, and leaves the run if one fails."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from ddp_trainer.common.constants import Exit, FailureReason
from ddp_trainer.launch import failures
from ddp_trainer.launch.agent.agent_state import AgentStateMachine, Limits, State
from ddp_trainer.launch.agent.termination_report import TerminationReport
from ddp_trainer.launch.protocol import messages
from ddp_trainer.launch.protocol.actions import Finish, PrepareWorkers, ProbeGpus, Rejoin, Send, SignalWorkers
from ddp_trainer.launch.protocol.generation import Generation, Node
from tests.support.launch_simulation import a_failure, a_policy, place_of

NODE = Node(token="me", name="w-0", index=0, local_world_size=2)
OTHER = Node(token="other", name="w-1", index=1, local_world_size=2)
TROUBLE = "GPU 1 of node-b does not work: CUDA error: uncorrectable ECC error encountered."
ECC = a_failure(4, reason="gpu_fault", rank=1)


def an_agent() -> AgentStateMachine:
    policy, idle = a_policy(1, 2), messages.WorkerState.IDLE
    hello = messages.Hello(version=messages.VERSION, run_id="run", node=NODE, policy=policy, standing=idle)
    return AgentStateMachine(hello=hello, limits=Limits(), endpoint="store:29400")


def running(*nodes: Node, checks_health: bool = False) -> AgentStateMachine:
    group = Generation(number=4, fence=4, nodes=nodes or (NODE,), master_address="h", master_port=1)
    core = an_agent()
    core.begin(prepares=False, is_suspect=False, checks_health=checks_health)
    core.join(5000)
    core.initial_messages("10.0.0.7")
    core.on_message(messages.Start(assignment=place_of(group, "me")))
    return core


def probing(failure: messages.Failure = ECC) -> AgentStateMachine:
    core = running()
    core.on_worker_exit(0, None)
    assert ProbeGpus() in core.on_worker_exit(1, failure)
    return core


def test_gpus_are_probed_before_this_node_joins_again() -> None:
    core = probing()
    assert core.initial_messages("10.0.0.7")[1:] == [messages.Failed(failure=ECC)]  # and of no node that joins
    assert core.on_message(messages.Prepare()) == []
    assert core.on_message(messages.Start(assignment=core.generation)) == []  # type: ignore[arg-type] # there is one
    assert core.on_probe_result("") == [Rejoin()]
    assert core.join(5001)[-1] == Send(messages.Join(port=5001, is_prepared=False))


def test_workers_that_have_stayed_end_first() -> None:
    core = running()
    for local_rank in (0, 1):
        core.set_reusable(local_rank)
    core.left(0, None)
    assert ProbeGpus() in core.on_worker_exit(1, ECC)
    actions = core.on_probe_result(TROUBLE)
    assert SignalWorkers(signal.SIGTERM) in actions
    assert not any(isinstance(action, Finish) for action in actions)
    assert core.on_worker_exit(0, None)[-1].code == Exit.GPU_FAULT


def test_others_do_not_wait_for_a_node_that_checks_its_gpus() -> None:
    core = running(NODE, OTHER)
    for local_rank in (0, 1):
        core.set_reusable(local_rank)
    core.on_worker_exit(0, None)
    assert core.on_worker_exit(1, ECC)[-2:] == [Send(messages.StandBy(generation=4)), ProbeGpus()]
    assert core.initial_messages("10.0.0.7")[1:] == [messages.Failed(failure=ECC), messages.StandBy(generation=4)]
    assert PrepareWorkers() in core.on_probe_result("")


@pytest.mark.parametrize(
    ("checks_health", "reason", "exit_code", "probes"),
    [
        *((False, name, 1, False) for name in ("python_exception", "collective_error", "sigkill", "hang")),
        *((True, name, 1, True) for name in ("python_exception", "sigkill", "sigsegv", "hang", "host_oom", "other")),
        # A survivor, whose workers failed after the loss of a peer.
        *((True, name, 1, False) for name in ("collective_error", "collective_timeout", "sigterm", "early_exit")),
        (True, "other", 94, False),  # unfit by its preflight
    ],
)
def test_with_a_preflight_a_node_is_checked_after_any_failure_of_its_own_and_else_after_a_gpu_fault_only(
    checks_health: bool, reason: str, exit_code: int, probes: bool
) -> None:
    core = running(checks_health=checks_health)
    core.on_worker_exit(0, None)
    failure = a_failure(4, reason=reason, rank=1, exit_code=exit_code)
    assert core.on_worker_exit(1, failure)[-1] == (ProbeGpus() if probes else Rejoin())


def test_with_a_preflight_a_node_whose_workers_are_stopped_is_not_checked() -> None:
    core = running(NODE, OTHER, checks_health=True)
    core.on_message(messages.Stop(graceful=False))
    core.on_worker_exit(0, a_failure(4, reason="sigterm", exit_code=143))
    assert core.on_worker_exit(1, a_failure(4, reason="sigterm", exit_code=143, rank=1))[-1] == Rejoin()


def test_the_next_container_finds_the_failures_that_its_run_checks(tmp_path: Path) -> None:
    report = TerminationReport({"DDP_RUN_DIR": str(tmp_path)})
    assert not report.has_previous_failure(of_any_kind=True)
    expected = {"gpu_fault": [True, True], "sigkill": [False, True], "collective_error": [False, False]}
    for reason, found in expected.items():
        report.keep(a_failure(4, reason=reason))
        assert [report.has_previous_failure(of_any_kind=of_any_kind) for of_any_kind in (False, True)] == found
    (tmp_path / "error.json").write_text("[]")
    assert not report.has_previous_failure(of_any_kind=True)


@pytest.mark.parametrize(
    ("reason", "message", "is_suspect"),
    [
        (FailureReason.GPU_FAULT, "", True),
        (FailureReason.COLLECTIVE_TIMEOUT, "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8", True),
        (FailureReason.COLLECTIVE_TIMEOUT, "RuntimeError: Gloo connect Timeout", False),
        (FailureReason.SIGABRT, "died of SIGABRT", False),
        (FailureReason.GPU_OOM, "torch.OutOfMemoryError: CUDA out of memory", False),
    ],
)
def test_a_failure_in_nccl_makes_gpus_suspect_too(reason: str, message: str, is_suspect: bool) -> None:
    assert failures.is_of_a_gpu(replace(a_failure(4, reason=reason), message=message)) is is_suspect


def test_a_signal_or_the_end_of_the_run_does_not_wait_for_probes() -> None:
    core = probing()
    assert core.on_signal(signal.SIGTERM)[-1] == Finish(Exit.TERMINATED)
    assert core.on_probe_result(TROUBLE) == []
    core = probing()
    assert core.on_message(messages.Over(verdict=messages.Verdict.FAILED, exit_code=93))[-1].code == 93
    assert core.state is State.OVER


def test_a_container_that_follows_one_with_a_fault_probes_first() -> None:
    fresh = [an_agent() for _ in range(3)]
    assert fresh[0].begin(prepares=False, is_suspect=False) == [Rejoin()]
    assert fresh[1].begin(prepares=True, is_suspect=True) == [ProbeGpus()]
    assert PrepareWorkers() in fresh[1].on_probe_result("")
    fresh[2].begin(prepares=True, is_suspect=True)
    assert fresh[2].on_probe_result(TROUBLE)[-1] == Finish(Exit.GPU_FAULT, TROUBLE)
