"""JobState from hand-made snapshots of both engines."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ddp_trainer.common.constants import Annotation
from kubectl_ddp.errors import DdpError, InfrastructureFailed, JobFailed
from kubectl_ddp.kube.objects import Object, Snapshot
from kubectl_ddp.status.describe import header
from kubectl_ddp.status.job_state import State, failure, job_state
from kubectl_ddp.status.job_tables import job_table
from kubectl_ddp.status.metrics_parser import Samples, parse
from kubectl_ddp.status.rank_status import RankActivity
from kubectl_ddp.status.termination_message import FirstError
from kubectl_ddp.util.text_table import Style
from tests.support import kube_objects
from tests.support.kube_objects import CREATED_EPOCH, job, pod, pod_metrics, rank_metrics, snapshot, terminated, waiting

EXCEPTION = {
    "rank": 3, "pod": "digits-worker-1", "exit_code": 1, "reason": "python_exception", "timestamp": 12.5,
    "message": "ValueError: no such thing", "stack": "Traceback ...\nValueError: no such thing",
    "result": "failed", "restarts": {"failure": 2},
}  # fmt: skip


def with_spares(count: int) -> Object:
    return {"annotations": {Annotation.SPEC: json.dumps({"spares": count})}}


RUNS = snapshot(job("Created", "Running"), pod(0))


def error_of(*pods: Object, condition: str = "Failed") -> FirstError:
    error = job_state(snapshot(job("Created", condition), *pods), {}).first_error
    assert error is not None
    return error


def because(reason: str, exit_code: int = 1) -> dict[str, Any]:
    return {**EXCEPTION, "reason": reason, "exit_code": exit_code}


def metrics(**pods: str) -> dict[str, Samples]:
    return {f"digits-worker-{name[1:]}": parse(text) for name, text in pods.items()}


@pytest.mark.parametrize(
    ("shown", "samples", "expected"),
    [
        pytest.param(snapshot(job()), {}, State.PENDING, id="just created"),
        pytest.param(snapshot(job("Created"), pod(0, waiting())), {}, State.PENDING, id="pods are made"),
        pytest.param(snapshot(job("Created"), pod(0)), {}, State.STARTING, id="operator has not said Running"),
        pytest.param(RUNS, {}, State.RUNNING, id="pods do not tell"),
        pytest.param(RUNS, metrics(w0=pod_metrics(state="rendezvous")), State.STARTING, id="first rendezvous"),
        pytest.param(RUNS, metrics(w0=pod_metrics(state="rendezvous", restarts=1)), State.RESTARTING, id="another"),
        pytest.param(
            snapshot(job("Created", "Running"), pod(0, restarts=1)),
            metrics(w0=pod_metrics(state="starting")),
            State.RESTARTING,
            id="container was restarted",
        ),
        pytest.param(
            snapshot(job("Created", "Running"), pod(0), pod(1)),
            metrics(w0=pod_metrics(), w1=pod_metrics(state="rendezvous", restarts=1)),
            State.RUNNING,
            id="one pod trains while another waits to join",
        ),
        pytest.param(snapshot(job("Created", "Restarting"), pod(0, waiting())), {}, State.RESTARTING, id="operator"),
        pytest.param(snapshot(job("Suspended", run_policy={"suspend": True})), {}, State.SUSPENDED, id="suspended"),
        pytest.param(snapshot(job("Suspended", run_policy={"suspend": False})), {}, State.PENDING, id="resumed"),
        pytest.param(snapshot(job("Created", "Succeeded"), pod(0, terminated(0))), {}, State.SUCCEEDED, id="succeeded"),
        pytest.param(snapshot(job("Created", "Failed"), pod(0, terminated(1))), {}, State.FAILED, id="failed"),
        pytest.param(
            snapshot(job(kube_objects.condition("Failed", reason="EngineLost"))), {}, State.LOST, id="local engine died"
        ),
        pytest.param(snapshot(job("Running", metadata={"deletionTimestamp": "x"})), {}, State.DELETING, id="deleted"),
        pytest.param(
            snapshot(job(kube_objects.condition("Running", "False"), "Failed")), {}, State.FAILED, id="Running is False"
        ),
    ],
)
def test_the_first_row_that_holds_is_the_state(shown: Snapshot, samples: dict[str, Samples], expected: State) -> None:
    assert job_state(shown, samples).state is expected


def test_progress_comes_from_the_ranks_and_throughput_is_their_sum() -> None:
    group = pod_metrics(world=4, generation=3)
    samples = metrics(
        w0=group + kube_objects.job_metrics(planned=100) + rank_metrics(0) + rank_metrics(1, local_rank=1),
        w1=group + rank_metrics(2, step=11) + rank_metrics(3, local_rank=1),
    )
    state = job_state(snapshot(job("Created", "Running"), pod(0), pod(1)), samples, where="local")
    assert (state.step, state.steps_planned, state.progress) == (11, 100, 0.11)
    assert state.throughput == pytest.approx(4 * 320 / 2.0)
    assert state.eta_seconds == pytest.approx((100 - 11) * (3 * 0.2 + 2 / 11) / 4)
    assert (state.world_size, state.generation, state.epoch, state.loss) == (4, 3, 1, 0.5)
    assert state.where == "local"
    assert state.created == CREATED_EPOCH


def test_rates_are_over_the_time_between_two_scrapes() -> None:
    before = metrics(w0=pod_metrics(world=1) + rank_metrics(0, step=10, samples=320, seconds=2.0))
    after = metrics(w0=pod_metrics(world=1) + rank_metrics(0, step=20, samples=960, seconds=3.0))
    assert job_state(RUNS, after, before=before).throughput == pytest.approx(640.0)


def test_a_counter_that_fell_was_begun_anew() -> None:
    before = metrics(w0=pod_metrics(world=1) + rank_metrics(0, step=90, samples=3000, seconds=30.0))
    after = metrics(w0=pod_metrics(world=1) + rank_metrics(0, step=10, samples=320, seconds=2.0))
    assert job_state(RUNS, after, before=before).throughput == pytest.approx(160.0)


def test_ranks_that_were_not_asked_are_taken_to_be_as_fast_as_the_others() -> None:
    samples = metrics(w0=pod_metrics(world=8) + rank_metrics(0) + rank_metrics(1, local_rank=1))
    assert job_state(RUNS, samples).throughput == pytest.approx(8 * 160.0)


def test_ranks_are_where_they_say_they_are_and_not_where_the_pod_index_would_put_them() -> None:
    samples = metrics(w0=rank_metrics(1), w1=rank_metrics(0))
    state = job_state(snapshot(job("Created", "Running"), pod(0), pod(1)), samples)
    found = [(rank.rank, rank.pod, rank.node) for rank in state.ranks]
    assert found == [(0, "digits-worker-1", "node-1"), (1, "digits-worker-0", "node-0")]


def test_a_rank_that_moved_is_shown_once_where_it_lives() -> None:
    samples = metrics(w0=rank_metrics(0, up=0, step=99, last_step=2000.0), w1=rank_metrics(0, step=7, last_step=1500.0))
    state = job_state(snapshot(job("Created", "Running"), pod(0), pod(1)), samples)
    assert [(rank.pod, rank.state, rank.step) for rank in state.ranks] == [("digits-worker-1", RankActivity.UP, 7)]


def test_a_rank_that_does_not_run_is_told_from_one_that_is_gone() -> None:
    stopped = rank_metrics(0) + 'ddp_rank_stopped{ddp_job="digits",rank="0"} 1\n'
    samples = metrics(w0=stopped + rank_metrics(1, up=0))
    state = job_state(RUNS, samples)
    assert [rank.state for rank in state.ranks] == [RankActivity.STOPPED, RankActivity.DOWN]


def test_running_pods_that_tell_nothing_are_named() -> None:
    state = job_state(snapshot(job("Created", "Running"), pod(0), pod(1), pod(2, waiting())), metrics(w0=""))
    assert state.silent == ("digits-worker-1",)


def test_the_store_is_no_node() -> None:
    state = job_state(snapshot(job("Created", "Running"), pod(0), pod(0, role="store")), {})
    assert (state.nodes.ready, state.nodes.desired, state.nodes.minimum, state.nodes.maximum) == (1, 2, 1, 4)


def test_a_job_whose_pods_return_no_metrics_is_said_to_have_none_and_not_to_be_in_a_phase_of_its_start() -> None:
    state = job_state(snapshot(job("Created", "Running"), pod(0), pod(1)), {})
    shown = header(state, CREATED_EPOCH + 40, Style())
    assert "no pod returns any; 'kubectl-ddp why digits' names causes" in shown
    assert "Startup" not in shown


def test_a_job_that_is_not_elastic_has_the_nodes_it_asked_for() -> None:
    nodes = job_state(snapshot(job("Created", replicas=3, bounds=None)), {}).nodes
    assert (nodes.desired, nodes.minimum, nodes.maximum) == (3, 3, 3)


def test_spares_are_those_asked_for_and_ready_when_their_pods_say_so() -> None:
    samples = metrics(w0=pod_metrics(), w1=pod_metrics(state="spare"))
    root = job("Created", "Running", replicas=6, bounds=(1, 4), metadata=with_spares(2))
    state = job_state(snapshot(root, pod(0), pod(1)), samples)
    assert (state.nodes.spares, state.nodes.spares_ready, state.nodes.training) == (2, 1, 4)
    assert state.max_ranks == 4 * state.processes_per_node
    assert "1 ready of 2" in header(state, 0.0, Style())
    assert "2/6 (1-4+2)" in job_table([state], 0.0).render(Style())


def test_a_job_with_fewer_pods_than_its_maximum_has_no_spare_and_all_of_them_train() -> None:
    root = job("Created", "Running", replicas=3, bounds=(1, 4), metadata=with_spares(2))
    nodes = job_state(snapshot(root, pod(0)), metrics(w0=pod_metrics())).nodes
    assert (nodes.spares, nodes.spares_ready, nodes.training) == (2, 0, 3)


def test_restarts_are_counted_for_the_run_and_not_added_up_over_pods() -> None:
    samples = metrics(w0=pod_metrics(restarts=2), w1=pod_metrics(restarts=3))
    state = job_state(snapshot(job("Created", "Running"), pod(0), pod(1)), samples)
    assert state.restarts == {"failure": 3}


def test_after_the_end_the_summary_tells() -> None:
    done = {"result": "succeeded", "steps": 690, "restarts": {"failure": 1}, "loss": 0.1, "world_size": 4}
    less = {"result": "succeeded", "restarts": {"failure": 1}}
    pods = [pod(0, terminated(0, less)), pod(1, terminated(0, done))]
    state = job_state(snapshot(job("Created", "Succeeded", completionTime="2026-01-02T03:06:05Z"), *pods), {})
    assert state.summary == done
    assert (state.step, state.progress, state.loss, state.restarts) == (690, 1.0, 0.1, {"failure": 1})
    assert state.finished == CREATED_EPOCH + 120
    assert state.first_error is None


def test_the_fullest_summary_counts_even_if_its_pod_was_stopped_on_its_way_out() -> None:
    less, more = {"result": "succeeded", "restarts": {}}, {"result": "succeeded", "restarts": {}, "steps": 690}
    pods = [pod(0, terminated(0, less)), pod(1, terminated(143, more))]
    assert job_state(snapshot(job("Created", "Succeeded"), *pods), {}).summary == more


def test_a_pod_that_was_told_to_stop_is_no_error() -> None:
    stopped = snapshot(job("Created", "Failed"), pod(0, terminated(143, "epoch 3\nepoch 4")))
    assert job_state(stopped, {}).first_error is None


def test_what_a_program_wrote_last_is_not_why_a_signal_ended_it() -> None:
    error = error_of(pod(0, terminated(137, "epoch 3\nepoch 4")))
    assert (error.message, error.stack) == ("killed by SIGKILL", "epoch 3\nepoch 4")


def test_the_first_error_is_the_earliest_that_names_a_rank() -> None:
    later = {**EXCEPTION, "rank": 0, "timestamp": 13.0, "message": "lost rank 3"}
    bystander = {"result": "failed", "message": "the run failed elsewhere", "timestamp": 1.0}
    pods = [pod(0, terminated(1, later)), pod(1, terminated(1, EXCEPTION)), pod(2, terminated(1, bystander))]
    error = error_of(*pods)
    assert (error.rank, error.pod, error.message) == (3, "digits-worker-1", "ValueError: no such thing")


def test_an_error_of_the_container_before_this_one_is_an_error_too() -> None:
    last = pod(0, restarts=1, last=terminated(137))
    assert error_of(last, condition="Running").message == "killed by SIGKILL"


def test_a_message_that_is_no_json_is_taken_as_it_is() -> None:
    text = "Traceback (most recent call last):\n  File x\nKeyError: 'a'\n"
    error = error_of(pod(0, terminated(1, text)))
    assert error.message == "KeyError: 'a'"
    assert "File x" in error.stack
    assert error_of(pod(0, terminated(1, "[" * 4096))).message.startswith("[[[")


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        pytest.param(1, EXCEPTION, JobFailed, id="exception"),
        pytest.param(93, EXCEPTION, JobFailed, id="restarts used up by an exception"),
        pytest.param(93, because("sigkill", 137), InfrastructureFailed, id="used up by kills"),
        pytest.param(93, "", InfrastructureFailed, id="used up for an unknown reason"),
        pytest.param(93, because("sigsegv", 139), JobFailed, id="used up by SIGSEGV"),
        pytest.param(93, because("sigabrt", 134), JobFailed, id="used up by SIGABRT"),
        pytest.param(93, because("other", 136), JobFailed, id="used up by SIGFPE"),
        pytest.param(93, because("collective_timeout", 134), InfrastructureFailed, id="NCCL aborts"),
        pytest.param(1, because("gpu_oom"), JobFailed, id="the model does not fit the GPU"),
        pytest.param(7, "", JobFailed, id="the user's own code"),
        pytest.param(7, because("other"), JobFailed, id="the user's own code, told by the launcher"),
        pytest.param(1, because("collective_timeout"), InfrastructureFailed, id="network"),
        pytest.param(137, "", InfrastructureFailed, id="killed"),
        pytest.param(170, "", InfrastructureFailed, id="rendezvous lost"),
        pytest.param(171, "", InfrastructureFailed, id="hang"),
    ],
)
def test_a_failure_is_the_codes_or_the_machines(code: int, message: Any, expected: type[DdpError]) -> None:
    state = job_state(snapshot(job("Created", "Failed"), pod(0, terminated(code, message))), {})
    assert type(failure(state)) is expected


def test_a_failure_that_nobody_saw_is_not_the_codes() -> None:
    lost = kube_objects.condition(
        "Failed", reason="EngineLost", message="The local engine ended without reporting a status."
    )
    error = failure(job_state(snapshot(job("Created", lost)), {}))
    assert isinstance(error, InfrastructureFailed)
    assert str(error).startswith("Job 'digits' failed: The local engine ended without reporting a status. ")
    assert error.hint == "'kubectl-ddp resume digits' continues from its last checkpoint."


def test_a_failure_says_which_rank_where_and_what() -> None:
    error = failure(job_state(snapshot(job("Created", "Failed"), pod(1, terminated(1, EXCEPTION))), {}))
    assert error.message == "Job 'digits' failed: rank 3 on digits-worker-1: ValueError: no such thing."
    assert error.hint == "'kubectl-ddp logs digits --first-error' shows more."


PORT = terminated(1, "Port 7 is in use.\n")
NO_NODE = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available."}


@pytest.mark.parametrize(
    ("held_up", "reason"),
    [
        (pod(1, waiting("ImagePullBackOff", "Back-off")), "digits-worker-1: ImagePullBackOff: Back-off."),
        ({**pod(1, waiting()), "status": {"conditions": [NO_NODE]}}, "digits-worker-1: 0/3 nodes are available."),
        (pod(0, waiting("CrashLoopBackOff"), role="store", last=PORT), "digits-store-0: Port 7 is in use."),
        (pod(1, waiting()), "Its pods are not running yet."),
    ],
    ids=["image", "scheduler", "its store crashes", "nothing special"],
)
def test_a_job_that_does_not_run_says_why(held_up: Object, reason: str) -> None:
    assert job_state(snapshot(job("Created"), held_up), {}).reason == reason


def test_failures_before_the_first_step_are_counted_in_status_and_list() -> None:
    failures = """ddp_worker_failures_total{reason="import_error"} 1
ddp_worker_failures_total{reason="python_exception"} 2
ddp_last_failure_timestamp_seconds 90
ddp_last_failed_rank 1
"""
    samples = metrics(w0=pod_metrics(restarts=3), w1=pod_metrics(restarts=3) + failures)
    state = job_state(snapshot(job("Created", "Running"), pod(0), pod(1)), samples)
    assert str(state.early_failures) == "3 failures before the first step, the last of rank 1: python_exception"
    assert "3 failures before the first step" in header(state, CREATED_EPOCH, Style(color=False))
    assert "3 failures, no step" in str(job_table([state], CREATED_EPOCH).rows)
    assert job_state(snapshot(job("Created", "Failed"), pod(0), pod(1)), samples).early_failures is None


def test_values_that_a_script_names_itself_are_shown_of_the_newest_group() -> None:
    def told(generation: int, accuracy: float) -> Samples:
        return parse(f'{pod_metrics(generation=generation)}ddp_user_value{{name="val/acc"}} {accuracy}\n')

    samples = {"digits-worker-0": told(2, 0.75), "digits-worker-1": told(1, 0.5)}
    state = job_state(snapshot(job("Running"), pod(0), pod(1)), samples)
    assert state.values == {"val/acc": 0.75}
    assert "val/acc 0.75" in header(state, 0.0, Style())


def test_a_value_is_that_of_the_lowest_rank_that_reported_it() -> None:
    def told(rank: int, values: str, *, up: int = 1) -> Samples:
        ranks = "".join(rank_metrics(item, up=up) for item in range(rank, rank + 2))
        return parse(f"{ranks}{pod_metrics()}{values}")

    low = 'ddp_user_value{name="loss",rank="1"} 1\nddp_user_value{name="loss",rank="0"} NaN\n'
    high = 'ddp_user_value{name="loss",rank="10"} 10\nddp_user_value{name="f1",rank="10"} 0.5\n'
    samples = {"digits-worker-0": told(0, low, up=0), "digits-worker-1": told(10, high)}
    state = job_state(snapshot(job("Running"), pod(0), pod(1)), samples)
    assert str(state.values) == "{'loss': nan, 'f1': 0.5}"
    assert "loss nan, f1 0.5" in header(state, 0.0, Style())


def test_what_an_init_container_prints_last_is_the_first_error_of_a_job_that_never_started() -> None:
    made = pod(0, waiting("PodInitializing"))
    text = "Looking in indexes: https://pip.example.com\npip could not install the requirements: no nowhere==3"
    made["status"]["initContainerStatuses"] = [{"name": "install-packages", "state": terminated(1, text)}]
    error = error_of(made)
    assert (error.message, error.is_users) == ("pip could not install the requirements: no nowhere==3", True)
    started = pod(0)
    started["status"]["initContainerStatuses"] = [{"name": "proxy", "state": terminated(1, text)}]
    assert job_state(snapshot(job("Running"), started), {}).first_error is None


def of_torchrun(traceback: str, *, code: int = 1) -> str:
    """Return the end of a log of torchrun 2.13 as the kubelet stores it."""
    return f"""\
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
/var/run/ddp-code/train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-02_03:04:35
  host      : digits-worker-1
  rank      : 3 (local_rank: 1)
  exitcode  : {code} (pid: 12)
  error_file: <N/A>
  traceback : {traceback}
============================================================
"""


@pytest.mark.parametrize(
    ("text", "exit_code", "message"),
    [
        (of_torchrun("To enable traceback see: https://example.com/errors"), 1, "exited with code 1"),
        (of_torchrun("Signal 9 (SIGKILL) received by PID 12", code=-9), 137, "killed by SIGKILL"),
        (of_torchrun("ValueError: no such thing"), 1, "ValueError: no such thing"),
    ],
)  # fmt: skip
def test_the_summary_of_torchrun_names_the_rank_that_failed_first(text: str, exit_code: int, message: str) -> None:
    error = error_of(pod(0, terminated(1, "torchrun: lost")), pod(1, terminated(1, text)))
    assert (error.location, error.message, error.exit_code) == ("rank 3 on digits-worker-1", message, exit_code)
    assert (error.pod_exit_code, error.timestamp) == (1, CREATED_EPOCH + 30)


def test_samples_that_no_script_counts_are_unknown_and_not_zero() -> None:
    state = job_state(snapshot(job("Running"), pod(0)), metrics(w0=pod_metrics() + rank_metrics(0, samples=0)))
    assert (state.throughput, state.ranks[0].samples_per_second) == (None, None)
    assert state.ranks[0].seconds_per_step == 0.2
    assert "Throughput" not in header(state, CREATED_EPOCH, Style())
    assert job_table([state], CREATED_EPOCH).render(Style()).splitlines()[1].split()[7] == "-"
