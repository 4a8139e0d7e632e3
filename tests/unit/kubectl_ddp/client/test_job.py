"""The handle of a job shows what the command line shows, as values and exceptions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kubectl_ddp.backends.select import Where
from kubectl_ddp.client.job import Job, JobStates
from kubectl_ddp.errors import Cancelled, InfrastructureFailed, JobFailed, NotFound, UsageError
from kubectl_ddp.kube.objects import Snapshot
from kubectl_ddp.observe.scrape import Sample
from kubectl_ddp.status.job_state import JobState
from tests.support.kube_objects import job, pod, pod_metrics, rank_metrics, snapshot, terminated
from tests.support.scripted_backend import ScriptedBackend
from tests.unit.kubectl_ddp.observe.test_waiting import BUG, KILLED, SUCCEEDED

RUNNING = snapshot(job("Created", "Running"), pod(0), pod(1))
PAGE = {"digits-worker-0": pod_metrics() + rank_metrics(0, step=7), "digits-worker-1": pod_metrics() + rank_metrics(1)}


def handle(backend: ScriptedBackend) -> Job:
    return Job(backend, "digits", Where(namespace="team"))


def test_a_wait_returns_the_state_or_raises_the_reason() -> None:
    assert handle(ScriptedBackend([RUNNING, SUCCEEDED])).wait().state == "Succeeded"
    assert handle(ScriptedBackend([RUNNING], metrics=[PAGE])).wait(condition="step=7").step == 10


@pytest.mark.parametrize(
    ("moments", "reason"),
    [([RUNNING, BUG], JobFailed), ([RUNNING, KILLED], InfrastructureFailed), ([RUNNING], Cancelled)],
)
def test_a_wait_for_a_job_that_fails_raises_the_reason(moments: list[Snapshot], reason: type[Exception]) -> None:
    with pytest.raises(reason, match="digits"):
        handle(ScriptedBackend(moments, is_deleted_at_the_end=True)).wait()


def test_a_notebook_shows_the_state_as_a_table_of_escaped_text() -> None:
    state = handle(ScriptedBackend([RUNNING], metrics=[PAGE])).status()
    shown = handle(ScriptedBackend([RUNNING], metrics=[PAGE]))._repr_html_()
    assert shown.startswith("<table><tr><th>NAME</th><th>STATUS</th>")
    assert "<td>digits</td><td>Running</td>" in shown
    hostile = JobStates([replace(state, reason="<script>"), state])._repr_html_()
    assert hostile.count("<tr>") == 3
    assert "&lt;script&gt;" in hostile
    assert "<script>" not in hostile


def test_a_notebook_shows_why_a_job_cannot_be_read() -> None:
    assert "digits" in handle(ScriptedBackend([], is_deleted_at_the_end=True))._repr_html_()


def test_a_wait_reports_its_progress() -> None:
    seen: list[JobState] = []
    handle(ScriptedBackend([RUNNING, SUCCEEDED])).wait(progress=seen.append)
    assert [state.state for state in seen][-1] == "Succeeded"


def test_a_wait_for_the_deletion_is_a_matter_of_delete() -> None:
    with pytest.raises(UsageError, match=r"delete\(wait=True\)"):
        handle(ScriptedBackend([RUNNING])).wait(condition="deleted")


@pytest.mark.parametrize(("rank", "messages"), [("all", ["a", "b", "c"]), (1, ["b"]), (None, ["a", "c"])])
@pytest.mark.parametrize("follow", [False, True])
def test_lines_have_their_rank_and_no_prefix(rank: int | str | None, messages: list[str], follow: bool) -> None:
    times = [f"2026-01-02T03:04:0{second}.000000000Z" for second in range(3)]
    first, second = [f"{times[0]} [rank0] a", f"{times[2]} c"], [f"{times[1]} [rank1] b"]
    pods = (pod(0, terminated(0)), pod(1, terminated(0)))
    logs = {"pod-worker-0/0": first, "pod-worker-1/0": second}
    backend = ScriptedBackend([snapshot(job("Succeeded"), *pods)], logs=logs)
    lines = list(handle(backend).logs(rank, follow=follow))
    assert [line.message for line in lines] == messages
    assert {line.message: line.rank for line in lines}.items() <= {"a": 0, "b": 1, "c": None}.items()


def test_a_rank_that_cannot_be_is_refused_before_the_first_line() -> None:
    with pytest.raises(NotFound, match="rank 99"):
        handle(ScriptedBackend([RUNNING])).logs(99)


def test_metrics_are_the_samples_of_the_pods_that_answer() -> None:
    one = ScriptedBackend([RUNNING], metrics=[{"digits-worker-0": PAGE["digits-worker-0"]}])
    assert handle(one).metrics("ddp_step") == [
        Sample("digits-worker-0", "ddp_step", {"ddp_job": "digits", "rank": "0"}, 7.0)
    ]
    everything = handle(ScriptedBackend([RUNNING], metrics=[PAGE])).metrics()
    assert {sample.pod for sample in everything} == {"digits-worker-0", "digits-worker-1"}
    assert len({sample.name for sample in everything}) > 5


def test_a_status_has_the_ranks_and_a_handle_names_its_place() -> None:
    own = handle(ScriptedBackend([RUNNING], metrics=[PAGE]))
    assert [rank.step for rank in own.status().ranks] == [7, 10]
    assert repr(own) == "Job('digits', where='scripted', namespace='team')"


def test_a_report_is_a_page_that_only_its_owner_can_read(tmp_path: Path) -> None:
    class Told(ScriptedBackend):
        def events(self, name: str) -> list[object]:
            return []

    path = handle(Told([SUCCEEDED])).report(tmp_path / "page.html")
    assert path.read_text().startswith("<!doctype html>")
    assert path.stat().st_mode & 0o777 == 0o600
