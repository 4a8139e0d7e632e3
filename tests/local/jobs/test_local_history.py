"""Deleted and replaced jobs stay in the history, two runs can be compared, and a suspension forgets nothing."""

from __future__ import annotations

import json
import sys

import pytest

from ddp_report.job_report import report_of
from tests.support.local_place import Place, Typed
from tests.support.programs import captured

SCRIPT = """\
import sys, time
from ddp_trainer.metrics import attach
attach.log(loss=float(sys.argv[1]))
time.sleep(float(sys.argv[2]))
"""

STEPS = """\
import pathlib, sys, time
from ddp_trainer.metrics import attach
meter = attach.meter()
for step in range(60):
    while step == 30 and not pathlib.Path(sys.argv[1]).exists():
        time.sleep(0.05)
    time.sleep(0.05)
    meter.step(samples=8)
"""
"""A run that gets no further than half of its steps until a file exists."""


def test_steps_and_mean_of_a_script_go_on_through_a_suspension(place: Place, typed: Typed) -> None:
    script, resumed = typed.write("train.py", STEPS), typed.directory / "resumed"
    assert typed("submit", script, "--local", "--name", "run", "-j", "1x1", "--", str(resumed)).returncode == 0
    assert typed("wait", "run", "--for=step=20", "--timeout", "100s").returncode == 0
    assert typed("suspend", "run", "--wait").returncode == 0
    before = int(typed("status", "run", "-o", "jsonpath={.step}").stdout)
    assert before >= 20
    assert typed("list", "--no-headers").stdout.split()[3] == str(before)
    resumed.touch()
    assert typed("resume", "run").returncode == 0
    assert typed("wait", "run", "--for=step=65", "--timeout", "100s").returncode == 0
    assert typed("wait", "run", "--timeout", "100s").returncode == 0
    assert typed("status", "run", "-o", "jsonpath={.step}").stdout == str(before + 60)
    report = report_of(place, "run", warn=print)
    assert report.measured is not None
    assert report.throughput is not None
    samples, seconds = report.measured.training_totals
    assert report.earlier.samples == 8 * before
    whole = report.throughput * (report.earlier.seconds + seconds)
    assert whole == pytest.approx(8 * before + samples)


def test_a_replaced_and_a_deleted_job_stay_in_the_history(typed: Typed) -> None:
    script = typed.write("train.py", SCRIPT)
    submit = ("submit", script, "--local", "--name", "run", "-j", "1x1")
    assert typed(*submit, "--wait", "--timeout", "100s", "--", "0.25", "0").returncode == 0
    refused = typed(*submit, "--", "0.75", "600")
    assert refused.returncode != 0
    planned = typed(*submit, "--replace", "--dry-run=client", "-o", "name", "--", "0.75", "600")
    assert "Job run would be deleted on this machine first." in planned.stderr
    impossible = typed(*submit, "--replace", "--gpus", "1", "--", "0.75", "600")
    assert impossible.returncode != 0
    assert typed("status", "run", "-o", "jsonpath={.state}").stdout == "Succeeded"
    assert typed(*submit, "--replace", "--", "0.75", "600").returncode == 0
    assert typed("wait", "run", "--for=running", "--timeout", "100s").returncode == 0
    running = typed(*submit, "--replace", "--", "0.5", "0")
    assert (running.returncode, "Add --yes to delete it" in running.stderr) == (2, True)
    assert typed("status", "run", "-o", "jsonpath={.state}").stdout == "Running"
    assert typed(*submit, "--replace", "--yes", "--", "0.75", "600").returncode == 0
    assert typed("delete", "run", "--yes").returncode == 0
    newest, replaced, oldest = json.loads(typed("history", "-o", "json").stdout)["items"]
    assert (newest["state"], replaced["state"], oldest["state"]) == ("Deleted", "Deleted", "Succeeded")
    assert typed("history", "--no-headers").stdout.count(f"{script} 0.") == 3
    compared = typed("report", newest["run"], oldest["run"][:6])
    assert compared.returncode == 0
    assert ["args", "0.75", "600", "0.25", "0"] in [line.split() for line in compared.stdout.splitlines()]
    assert "No job 'absent' was submitted from this machine." in typed.refused("report", "run", "absent", code=3)


def test_jobs_of_the_client_are_in_the_history_and_notebooks_show_them(typed: Typed) -> None:
    script = typed.write("train.py", SCRIPT)
    program = f"""
from kubectl_ddp import Client
client = Client(local=True)
seen = []
job = client.submit({script!r}, name="run", nproc=1, args=["0.25", "0"])
job.wait(timeout=100, progress=seen.append)
print(seen[-1].state, "<td>run</td>" in job._repr_html_(), client.list()._repr_html_().count("<td>run</td>"))
job.delete(wait=True, timeout=60)
"""
    ended = captured([sys.executable, "-c", program], env=typed.environ, timeout=200)
    assert ended.stdout.split() == ["Succeeded", "True", "1"], ended.stderr
    [record] = json.loads(typed("history", "-o", "json").stdout)["items"]
    assert (record["name"], record["state"]) == ("run", "Succeeded")
    assert record["settings"]["args"] == ["0.25", "0"]
    assert typed("history", "-o", "wide").stdout.splitlines()[0].split()[-3:] == [
        "NAMESPACE",
        "PROCESSES",
        "VALUES",
    ]
