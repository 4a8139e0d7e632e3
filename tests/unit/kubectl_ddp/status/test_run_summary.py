"""The summary of a run outlives its pods."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ddp_trainer.common.constants import Annotation
from kubectl_ddp.kube.objects import Object, Snapshot
from kubectl_ddp.status.describe import header
from kubectl_ddp.status.job_state import JobState, job_state
from kubectl_ddp.status.job_tables import job_table
from kubectl_ddp.util.text_table import Style
from tests.support.kube_objects import CREATED_EPOCH, job, pod, terminated
from tests.unit.kubectl_ddp.observe.test_result_annotations import keep

NOW = CREATED_EPOCH + 90
SPENT = {"productive": 80.0, "startup": 15.0, "restart": 5.0}
SUMMARY = {
    "result": "succeeded", "steps": 690, "samples_lost": 0, "samples_repeated": 0, "lost_steps": 3,
    "restarts": {"failure": 2}, "goodput": 0.78, "spent": SPENT, "seconds": 100.0, "loss": 0.25, "world_size": 4,
}  # fmt: skip
ACCOUNT = {"steps": 120, "steps_planned": 480, "goodput": 0.5, "spent": SPENT, "seconds": 100.0}
ACCOUNT |= {"lost_steps": 0, "lost_seconds": 0.0}
FAILED = {"rank": 1, "message": "ValueError: no", "result": "failed", "restarts": {"failure": 1}, **ACCOUNT}


def ended(how: str, *pods: Object, annotations: dict[str, str] | None = None) -> Snapshot:
    return Snapshot(job("Created", how, metadata={"annotations": annotations or {}}), pods)


def known(state: JobState) -> tuple[Any, ...]:
    return state.summary, state.goodput, state.step, state.restarts, state.loss, state.world_size


@pytest.mark.parametrize(
    ("how", "container"),
    [("Succeeded", terminated(0, SUMMARY)), ("Failed", terminated(1, FAILED))],
    ids=["succeeded", "failed"],
)
def test_a_summary_that_is_kept_is_told_when_the_pods_are_gone(how: str, container: Object) -> None:
    there = ended(how, pod(0, container))
    written = keep(there)
    removed = ended(how, annotations=written)
    assert known(job_state(removed, {})) == known(job_state(there, {}))
    assert keep(removed) == {}
    assert keep(ended(how, pod(0, container), annotations=written)) == {}
    text = header(job_state(removed, {}), 0.0, Style())
    assert "goodput" in text
    assert "Restarts:" in text


def test_a_run_that_failed_tells_how_far_it_got() -> None:
    state = job_state(ended("Failed", pod(0, terminated(1, FAILED))), {})
    assert (state.step, state.steps_planned, state.goodput) == (120, 480, 0.5)


def test_pods_that_are_left_and_know_less_take_nothing_back() -> None:
    written = keep(ended("Succeeded", pod(0, terminated(0, SUMMARY))))
    rest = pod(1, terminated(0, {"result": "succeeded", "restarts": {}, "seconds": 12.0}))
    state = job_state(ended("Succeeded", rest, annotations=written), {})
    assert state.summary == SUMMARY
    shorter = FAILED | {"seconds": 7.0, "goodput": 0.0, "steps": 0}
    written = keep(ended("Failed", pod(0, terminated(1, FAILED))))
    state = job_state(ended("Failed", pod(1, terminated(1, shorter)), annotations=written), {})
    assert state.goodput == 0.5


def test_what_a_failed_run_came_to_is_not_what_it_came_to_when_it_was_let_run_again() -> None:
    written = keep(ended("Failed", pod(0, terminated(1, FAILED))))
    assert job_state(ended("Succeeded", annotations=written), {}).summary is None
    assert job_state(ended("Running", pod(0), annotations=written), {}).summary is None
    again = keep(ended("Succeeded", pod(0, terminated(0, SUMMARY)), annotations=written))
    assert json.loads(again[Annotation.SUMMARY]) == SUMMARY


def test_a_pod_that_came_late_does_not_say_that_no_step_was_taken_before_it() -> None:
    late = {"message": "lost the rendezvous", "result": "failed", "steps": 0, "goodput": 0.0, "seconds": 60.0}
    old = {"rank": 0, "message": "ValueError: no", "result": "failed"}
    state = job_state(ended("Failed", pod(0, terminated(1, old)), pod(1, terminated(170, late))), {})
    assert (state.summary, state.goodput) == (None, None)
    alone = job_state(ended("Failed", pod(1, terminated(170, late))), {})
    assert (alone.step, alone.goodput) == (0, 0.0)


@pytest.mark.parametrize("text", ["", "no json", "[]", "7", "{}", '{"steps": 3}', '{"result": "else"}', "[" * 9999])
def test_an_annotation_that_is_not_ours_to_read_is_none(text: str) -> None:
    for how in ("Succeeded", "Failed"):
        assert job_state(ended(how, annotations={Annotation.SUMMARY: text}), {}).summary is None


@pytest.mark.parametrize("restarts", [[1], "two", {"failure": "x"}, {"failure": -1}, None])
def test_an_odd_summary_is_shown_as_far_as_it_can_be_read(restarts: object) -> None:
    text = json.dumps({"result": "failed", "restarts": restarts, "steps": "many", "goodput": []})
    state = job_state(ended("Failed", annotations={Annotation.SUMMARY: text}), {})
    assert (state.restarts, state.step, state.goodput) == ({}, None, None)
    assert header(state, 0.0, Style())


def test_a_secret_that_a_summary_quotes_is_not_kept() -> None:
    planted = "hf_" + "a1B2" * 8
    summary = SUMMARY | {"note": f"pushed with {planted}", "nested": {"url": f"https://me:{planted}@example.com"}}
    [text] = keep(ended("Succeeded", pod(0, terminated(0, summary)))).values()
    assert planted not in text
    assert json.loads(text)["steps"] == 690


@pytest.mark.parametrize(
    ("how", "container", "step", "progress", "result"),
    [
        ("Succeeded", terminated(0, SUMMARY), "690", "100%", "loss 0.25"),
        ("Succeeded", terminated(0, {**SUMMARY, "accuracy": 0.975}), "690", "100%", "accuracy 0.975"),
        ("Failed", terminated(1, FAILED), "120", "25%", "ValueError: no"),
    ],
)
def test_a_finished_job_keeps_step_progress_duration_and_result_when_its_pods_are_gone(
    how: str, container: Object, step: str, progress: str, result: str
) -> None:
    there = ended(how, pod(0, container))
    removed = ended(how, annotations=keep(there))
    for one in (there, removed):
        state = job_state(one, {})
        header_line, row = job_table([state], NOW).render(Style()).splitlines()
        columns = [header_line.index(name) for name in ("STEP", "PROGRESS", "DURATION", "RESULT")]
        seen = [row[at:].split("   ")[0].strip() for at in columns]
        assert seen == [step, progress, "60s", result]
        assert f"step {step} of" in header(state, NOW, Style())
        assert "ended after 60s" in header(state, NOW, Style())
