"""The history of this machine keeps what it saw of its jobs, and never fails a command."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddp_trainer.common.constants import Annotation
from kubectl_ddp.observe import job_results
from kubectl_ddp.observe.job_results import JobRecord, history_file, read_history, record_deletion, record_submission
from kubectl_ddp.status.job_state import JobState, job_state
from tests.support import kube_objects

SPEC = {"module": "ddp_trainer", "args": ["train", "--lr", "0.1"], "env": {"TOKEN": "secret"}, "nnodes": "1:2"}


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def a_job(uid: str = "u1", *conditions: str, **spec: Any) -> dict[str, Any]:
    annotations = {Annotation.SPEC: json.dumps(SPEC | spec)}
    return kube_objects.job(*conditions, metadata={"uid": uid, "annotations": annotations})


def seen(job: dict[str, Any], **changes: Any) -> JobState:
    return replace(job_state(kube_objects.snapshot(job), {}, where="local"), **changes)


def submitted(state: str, **spec: Any) -> dict[str, Any]:
    """A job of this machine that has been recorded in a state."""
    job = a_job("u1", state, **spec)
    record_submission(job, seen(job))
    return job


def test_a_submitted_job_is_there_with_its_program_and_without_its_environment() -> None:
    job = submitted("Created")
    [record] = read_history()
    assert (record.name, record.uid, record.where) == (job["metadata"]["name"], "u1", "local")
    assert record.program == "ddp_trainer train --lr 0.1"
    assert "secret" not in history_file().read_text()
    assert history_file().stat().st_mode & 0o777 == 0o600


def test_secrets_in_arguments_are_redacted() -> None:
    submitted("Created", args=["train", "--api-key=hunter2hunter2"])
    assert "hunter2" not in history_file().read_text()


def test_the_last_numbers_stay_when_the_pods_are_gone() -> None:
    job = submitted("Running")
    job_results.record_state(job, seen(job, step=7, loss=0.5, values={"accuracy": 0.9}), is_last=True)
    record_deletion("u1")
    [record] = read_history()
    assert (record.state, record.step, record.loss, record.values) == ("Deleted", 7, 0.5, {"accuracy": 0.9})
    job_results.record_state(job, seen(job), is_last=True)
    record_deletion("u1")
    assert read_history()[0].step == 7


def test_a_job_that_ended_before_its_deletion_keeps_its_result() -> None:
    job = submitted("Succeeded")
    job_results.record_state(job, seen(job), is_last=True)
    record_deletion("u1")
    assert read_history()[0].state == "Succeeded"


def test_the_summary_of_a_job_that_nobody_watched_gives_its_last_numbers() -> None:
    job = submitted("Succeeded")
    job_results.record_state(job, seen(job, summary={"loss": 0.125, "samples_per_second": 40}), is_last=True)
    record_deletion("u1")
    assert (read_history()[0].loss, read_history()[0].throughput) == (0.125, 40.0)


def test_a_job_of_somebody_else_is_not_added() -> None:
    job_results.record_state(a_job("u2", "Running"), seen(a_job("u2", "Running")))
    assert read_history() == []


def test_a_command_that_waits_adds_a_line_only_if_the_state_changes() -> None:
    job = submitted("Running")
    for step in range(20):
        job_results.record_state(job, seen(job, step=step))
    assert len(history_file().read_text().splitlines()) == 1
    ended = a_job("u1", "Succeeded")
    job_results.record_state(ended, seen(ended, step=20))
    assert read_history()[0].step == 20


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[]", '{"uid": 1}', '{"uid": "u", "name": "n", "more": 1}', '{"uid": "u", "name": "n", "seen": "x"}'),
        *('{"uid": "u", "name": "n", "values": []}', "\x00\xff", "[" * 5000),
    ],
)
def test_lines_that_are_no_records_are_skipped(text: str) -> None:
    submitted("Running")
    with history_file().open("a") as file:
        file.write(f"{text}\n")
    assert [record.uid for record in read_history()] == ["u1"]


def test_a_state_directory_that_is_a_file_is_left_alone(state_home: Path) -> None:
    (state_home / "kubectl-ddp").write_text("")
    record_submission(a_job(), seen(a_job()))
    assert read_history() == []


def test_a_large_file_is_written_again_with_the_newest_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_results, "MOST_JOBS", 3)
    monkeypatch.setattr(job_results, "_MOST_BYTES", 2000)
    for number in range(20):
        job = a_job(f"u{number}", "Running")
        record_submission(job, seen(job, created=1.0 + number))
    assert [record.uid for record in read_history()][:3] == ["u19", "u18", "u17"]
    assert history_file().stat().st_size < 8000


def test_two_processes_add_jobs_at_once() -> None:
    program = (
        "import sys\nfrom kubectl_ddp.observe.job_results import JobRecord, _append\n"
        "for n in range(200): _append(JobRecord(uid=f'{sys.argv[1]}-{n}', name='x'))"
    )
    writers = [subprocess.Popen([sys.executable, "-c", program, word]) for word in ("a", "b")]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert len(read_history()) == 400


def test_a_record_has_one_program_however_it_is_given() -> None:
    programs = [{"script": "train.py", "args": [1]}, {"command": ["bash", "run.sh"]}, {"module": "m"}, {}]
    texts = [JobRecord(uid="u", name="n", settings=settings).program for settings in programs]
    assert texts == ["train.py 1", "bash run.sh", "m", ""]
