"""Output of commands that wait for a job, on a terminal, in a pipe, and with ``--quiet``."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from kubectl_ddp.cli.internal.attach import attach_to_job
from kubectl_ddp.cli.internal.command import Options
from kubectl_ddp.cli.internal.progress import PlainLines, RewrittenLine, line_printer
from kubectl_ddp.cli.jobs.restart import wait_until_running
from kubectl_ddp.errors import JobFailed
from tests.support.kube_objects import job, job_metrics, pod, pod_metrics, rank_metrics, snapshot, terminated, waiting
from tests.support.scripted_backend import ScriptedBackend
from tests.support.terminals import Typing

SUBMISSION = {"name": "digits"}
SUMMARY = {"result": "succeeded", "steps": 690, "samples_lost": 0, "restarts": {"failure": 2}}
PENDING = snapshot(job("Created"), pod(0, waiting()))
RUNNING = snapshot(job("Created", "Running", replicas=1), pod(0))
SUCCEEDED = snapshot(
    job("Created", "Succeeded", startTime="2026-01-02T03:04:05Z", completionTime="2026-01-02T03:04:17Z"),
    pod(0, terminated(0, SUMMARY)),
)
FAILED = snapshot(job("Created", "Failed"), pod(0, terminated(1, "ValueError: no")))
PAGE = {"digits-worker-0": pod_metrics(world=2) + job_metrics() + rank_metrics(0, step=40)}


def a_backend(*moments: Any) -> ScriptedBackend:
    return ScriptedBackend(moments, metrics=[PAGE])


def attach(*moments: Any, follows: bool = False, **flags: Any) -> None:
    attach_to_job(a_backend(*moments), dict(SUBMISSION), Options(**flags), follows=follows, timeout=60.0)


def test_a_job_that_fails_has_its_summary_before_its_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(JobFailed):
        attach(RUNNING, FAILED)
    assert capsys.readouterr().err.splitlines()[-1].startswith("Job digits failed after ")


def test_quiet_prints_nothing_and_scrapes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    backend = ScriptedBackend([RUNNING, SUCCEEDED], metrics=[PAGE, {}])
    attach_to_job(backend, dict(SUBMISSION), Options(quiet=True), follows=False, timeout=60.0)
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", "")
    assert backend.metrics(pod(0)), "the first page is still there"


def test_a_resumed_job_is_told_with_its_ranks_and_the_next_command(capsys: pytest.CaptureFixture[str]) -> None:
    wait_until_running(Options(), a_backend(PENDING, RUNNING), "digits", 60.0)
    end = capsys.readouterr().err.splitlines()[-1]
    assert end.startswith("Job digits runs after ")
    assert "2 ranks, step 40 of 100 (40%)" in end
    assert "logs digits -f'" in end


def test_a_resumed_job_that_has_ended_meanwhile_is_told_as_ended(capsys: pytest.CaptureFixture[str]) -> None:
    wait_until_running(Options(), a_backend(SUCCEEDED), "digits", 60.0)
    assert capsys.readouterr().err.startswith("Job digits succeeded in 12s")


TERMINAL, PIPE = Typing(), io.StringIO()


@pytest.mark.parametrize(("stderr", "logs", "environ", "flags", "form"), [
    pytest.param(TERMINAL, None, {"TERM": "xterm"}, {}, RewrittenLine, id="terminal"),
    pytest.param(TERMINAL, None, {"TERM": "xterm", "NO_COLOR": "1"}, {}, RewrittenLine, id="it has no colors"),
    pytest.param(TERMINAL, TERMINAL, {"TERM": "xterm"}, {}, RewrittenLine, id="terminal, with logs"),
    pytest.param(TERMINAL, PIPE, {"TERM": "xterm"}, {}, PlainLines, id="logs in a pipe, perhaps to tee"),
    pytest.param(TERMINAL, None, {"TERM": "dumb"}, {}, PlainLines, id="dumb terminal"),
    pytest.param(TERMINAL, None, {}, {}, PlainLines, id="unknown terminal"),
    pytest.param(PIPE, None, {"TERM": "xterm"}, {}, PlainLines, id="pipe"),
    pytest.param(PIPE, None, {"TERM": "xterm"}, {"output": "json"}, type(None), id="json in a pipe"),
    pytest.param(TERMINAL, None, {"TERM": "xterm"}, {"output": "json"}, RewrittenLine, id="json on a terminal"),
    pytest.param(TERMINAL, None, {"TERM": "xterm"}, {"quiet": True}, type(None), id="quiet"),
])  # fmt: skip
def test_the_form_follows_terminal_and_flags(
    monkeypatch: pytest.MonkeyPatch, stderr: io.StringIO, logs: io.StringIO | None, environ: Any, flags: Any, form: type
) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)
    assert type(line_printer(Options(**flags), logs, environ)) is form
