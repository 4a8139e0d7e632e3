"""The first error, the start and the progress of a job outlive the pods that told them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ddp_trainer.common.constants import Annotation
from kubectl_ddp.errors import Forbidden
from kubectl_ddp.kube.objects import Object, Snapshot
from kubectl_ddp.observe.job_results import persist_result, suspend
from kubectl_ddp.status import termination_message
from kubectl_ddp.status.job_progress import EarlierPods
from kubectl_ddp.status.job_state import JobState, failure, job_state
from kubectl_ddp.status.metrics_parser import parse
from kubectl_ddp.status.termination_message import FirstError, load_first_error, to_keep
from tests.support.kube_objects import CREATED_EPOCH, job, job_metrics, pod, pod_metrics, rank_metrics, terminated
from tests.support.scripted_backend import ScriptedBackend

REPORTED = {"rank": 1, "pod": "digits-worker-0", "message": "ValueError: no", "generation": 2}
REPORTED["reason"] = "python_exception"


def failed(*pods: Object, annotation: str | None = None) -> Snapshot:
    annotations = {} if annotation is None else {Annotation.FIRST_ERROR: annotation}
    return Snapshot(job("Created", "Failed", metadata={"annotations": annotations}), pods)


def keep(snapshot: Snapshot) -> dict[str, str]:
    backend = ScriptedBackend([snapshot])
    persist_result(backend, snapshot.job, job_state(snapshot, {}))
    return backend.annotations


def test_an_error_that_is_kept_is_told_when_the_pods_are_gone() -> None:
    written = keep(failed(pod(0, terminated(1, REPORTED | {"stack": "line 7", "timestamp": 5.5}))))
    state = job_state(failed(annotation=written[Annotation.FIRST_ERROR]), {})
    assert state.first_error == FirstError(**REPORTED, pod_exit_code=1, stack="line 7", timestamp=5.5)
    assert failure(state).exit_code == 10


def test_what_is_kept_already_is_not_written_again() -> None:
    written = keep(failed(pod(0, terminated(1, REPORTED))))
    assert keep(failed(pod(0, terminated(1, REPORTED)), annotation=written[Annotation.FIRST_ERROR])) == {}
    assert keep(failed(annotation=written[Annotation.FIRST_ERROR])) == {}


def test_a_long_stack_is_cut_once_and_for_all() -> None:
    [written] = keep(failed(pod(0, terminated(1, REPORTED | {"stack": "x" * 50_000, "message": "y" * 9_000})))).values()
    assert len(written) < 2 * termination_message.KEPT_CHARACTERS + 500
    assert keep(failed(annotation=written)) == {}


def test_a_rank_of_a_later_worker_group_goes_before_what_was_kept_and_a_pod_that_knows_less_does_not() -> None:
    older = to_keep(FirstError(pod="p", message="older", rank=0, generation=1))
    newer = to_keep(FirstError(pod="p", message="newer", rank=0, generation=9))
    pods = [pod(0, terminated(1, REPORTED))]

    def told(annotation: str, pods: list[Object]) -> Any:
        snapshot = failed(annotation=annotation)
        error = termination_message.resolve_first_error(snapshot.job, pods)
        return error.message if error else None

    assert told(older, pods) == "ValueError: no"
    assert told(newer, pods) == "newer"
    assert told(older, [pod(0, terminated(170))]) == "older"


def test_an_annotation_that_is_not_ours_to_read_is_none() -> None:
    for text in ("", "no json", "[]", json.dumps({"rank": 1})):
        assert load_first_error(failed(annotation=text).job) is None


def test_a_command_does_not_fail_where_the_error_may_not_be_kept() -> None:
    class ReadOnly(ScriptedBackend):
        def annotate(self, job: Object, annotations: object) -> None:
            raise Forbidden("You may not patch pytorchjobs.")

    snapshot = failed(pod(0, terminated(1, REPORTED)))
    persist_result(ReadOnly([snapshot]), snapshot.job, job_state(snapshot, {}))


@pytest.mark.parametrize(("condition", "pods"), [("Succeeded", ()), ("Running", (pod(0), pod(1)))])
def test_an_error_that_a_job_recovered_from_is_not_shown(condition: str, pods: tuple[Object, ...]) -> None:
    kept_before = to_keep(FirstError(pod="p", message="older", rank=0, generation=1))
    root = job("Created", condition, metadata={"annotations": {Annotation.FIRST_ERROR: kept_before}})
    assert job_state(Snapshot(root, pods), {}).first_error is None


def test_a_secret_that_an_error_quotes_is_neither_shown_nor_kept() -> None:
    planted = "hf_" + "a1B2" * 8
    for message in (REPORTED | {"message": f"HTTPError: {planted} is expired", "stack": f"get({planted!r})"}, None):
        shown = terminated(1, message) if message else terminated(1, {"no": "message"})
        if message is None:  # a program's own last words
            shown["terminated"]["message"] = f"login\nno entry with {planted}"
        snapshot = failed(pod(0, shown))
        state = job_state(snapshot, {})
        assert state.first_error is not None
        assert planted not in f"{state.first_error} {keep(snapshot)}"
        assert "(redacted)" in state.first_error.message


class Suspended(ScriptedBackend):
    """A job that can be suspended, and whose annotations stay."""

    def suspend(self, name: str, *, suspended: bool) -> None:
        """Do nothing."""


def stopped(
    earlier: dict[str, str], uid: str, restarts: int, step: int, started: str | None = None, *, reports: str = ""
) -> dict[str, str]:
    """The annotations after a suspension of the job's one pod, which has trained 320 samples in 2 seconds."""
    one = pod(0)
    one["metadata"]["uid"] = uid
    page = pod_metrics(restarts=restarts) + rank_metrics(0, step=step) + reports
    seen = Snapshot(job("Running", metadata={"annotations": earlier}, startTime=started), [one])
    backend = Suspended([seen], metrics=[{"digits-worker-0": page}])
    suspend(backend, "digits")
    return earlier | backend.annotations


def test_restarts_and_step_outlive_suspensions() -> None:
    def seen(annotations: dict[str, str], uid: str = "", restarts: int = 0) -> JobState:
        made = job("Suspended", metadata={"annotations": annotations}, run_policy={"suspend": True})
        if not uid:
            return job_state(Snapshot(made, []), {})
        one = pod(0)
        one["metadata"]["uid"] = uid
        made = job("Running", metadata={"annotations": annotations})
        return job_state(Snapshot(made, [one]), {"digits-worker-0": parse(pod_metrics(restarts=restarts))})

    once = stopped({}, "a", restarts=2, step=60)
    assert seen(once, "a", restarts=2).restarts == {"failure": 2}, "the pods have not ended yet"
    assert (seen(once).restarts, seen(once).step) == ({"failure": 2}, 60)
    assert seen(once, "b").restarts == {"failure": 2}
    assert seen(once, "b", restarts=1).restarts == {"failure": 3}
    twice = stopped(once, "b", restarts=1, step=20)
    assert (seen(twice).restarts, seen(twice).step) == ({"failure": 3}, 80)
    assert seen(twice, "c", restarts=1).restarts == {"failure": 4}


def test_steps_that_pods_count_are_added_and_those_of_a_checkpoint_are_not() -> None:
    def step(annotations: dict[str, str], word: str = "Running", **ending: object) -> int | None:
        one = pod(0, terminated(0, dict(ending)) if ending else None)
        one["metadata"]["uid"] = "c"
        page = {} if ending else {"digits-worker-0": parse(rank_metrics(0, step=7))}
        return job_state(Snapshot(job(word, metadata={"annotations": annotations}), [one]), page).step

    counted = stopped(stopped({}, "a", 0, step=60), "b", 0, step=20)
    assert step(counted) == 87
    assert step(counted, "Succeeded", result="succeeded", steps=9) == 89
    known = EarlierPods.of(job(metadata={"annotations": counted}))
    assert (known.samples, known.seconds) == (640.0, 4.0)
    again = EarlierPods.of(job(metadata={"annotations": stopped(counted, "b", 0, step=20)}))
    assert (again.step, again.samples, again.seconds) == (80, 640.0, 4.0), "these pods have been counted"
    reported = stopped({}, "a", 0, step=60, reports=job_metrics())
    assert step(reported) == 7


def test_the_duration_counts_from_the_first_start_and_not_from_the_last_resume() -> None:
    first = stopped({}, "a", restarts=0, step=5, started="2026-01-02T03:04:10Z")
    earlier = stopped(first, "b", restarts=0, step=9, started="2026-01-02T04:00:00Z")
    times = {"startTime": "2026-01-02T05:00:00Z", "completionTime": "2026-01-02T05:00:40Z"}
    done = job("Succeeded", metadata={"annotations": earlier}, **times)
    state = job_state(Snapshot(done, [pod(0, terminated(0))]), {})
    assert state.started == CREATED_EPOCH + 5
    assert state.duration(now=0.0) == 6990.0, "from 03:04:10 until 05:00:40"
    waiting = job("Suspended", metadata={"annotations": earlier}, run_policy={"suspend": True}, startTime=None)
    assert job_state(Snapshot(waiting, []), {}).duration(CREATED_EPOCH + 65) == 60.0
