"""Suspending, resuming, scaling and deleting local jobs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kubectl_ddp.backends.local.job_status import remove_orphans
from kubectl_ddp.errors import AlreadyExists, DdpError, NotFound, UsageError
from kubectl_ddp.observe.job_results import suspend
from kubectl_ddp.status.job_state import job_state
from tests.support.local_place import Place, all_run, condition, seen_in_log, workers

POLITE = "trap 'echo bye; exit 143' TERM; echo ready; while :; do sleep 0.05; done"


def uids(place: Place) -> list[str]:
    return [pod["metadata"]["uid"] for pod in workers(place.job("digits"))]


def test_a_suspended_job_has_no_pods_and_a_resumed_one_has_new_ones(place: Place) -> None:
    place.run(POLITE)
    for index in (0, 1):
        seen_in_log(place, "ready", index)
    before = uids(place)
    place.suspend("digits", suspended=True)
    place.until(lambda shown: condition("Suspended")(shown) and not shown.pods)
    assert not condition("Running")(place.job("digits"))
    place.suspend("digits", suspended=False)
    place.until(all_run(2))
    assert set(uids(place)).isdisjoint(before)
    assert place.lines()[:2] == ["ready", "bye"]


def test_the_duration_goes_on_through_a_suspension(place: Place) -> None:
    place.run(POLITE, replicas=1)
    seen_in_log(place, "ready")
    first = job_state(place.until(all_run(1)), {}).started
    assert first is not None
    suspend(place, "digits")
    shown = place.until(lambda one: condition("Suspended")(one) and not one.pods)
    assert shown.job["status"]["startTime"] is None
    suspended = job_state(shown, {})
    assert (suspended.started, suspended.duration(first + 9)) == (first, 9.0)
    place.suspend("digits", suspended=False)
    assert job_state(place.until(all_run(1)), {}).started == first


def test_a_job_that_is_over_cannot_be_changed(place: Place) -> None:
    place.run("exit 0", replicas=1)
    place.ended()
    for change in (lambda: place.scale("digits", 1), lambda: place.suspend("digits", suspended=True)):
        with pytest.raises(UsageError, match="is over and cannot be changed"):
            change()


def test_a_deleted_job_leaves_nothing(place: Place) -> None:
    place.run(POLITE)
    place.until(all_run(2))
    engine = place.engine()
    place.delete("digits")
    assert engine.is_gone
    assert [*(place.state / "kubectl-ddp" / "jobs").iterdir()] == []
    with pytest.raises(NotFound, match="Job 'digits' does not exist on this machine"):
        place.job("digits")


def test_a_name_is_taken_until_its_job_is_deleted(place: Place) -> None:
    place.run("exit 0", replicas=1)
    place.ended()
    with pytest.raises(
        AlreadyExists, match=r"a job 'digits' on this machine already.*kubectl-ddp delete digits.*--name"
    ):
        place.run("exit 0", replicas=1)
    place.delete("digits")
    place.run("exit 0", replicas=1)


def test_an_engine_does_not_need_the_command_that_started_it(place: Place) -> None:
    place.run(POLITE)
    place.kill_engine()
    remove_orphans(place.files())
    reading, nobody_reads = os.pipe()
    os.close(reading)
    command = [sys.executable, "-P", "-m", "kubectl_ddp.backends.local.engine", place.files().path]
    flags = [f"--python={sys.executable}", "--directory=/", f"--ready={nobody_reads}"]
    again = subprocess.Popen([*command, *flags], pass_fds=[nobody_reads], start_new_session=True)
    os.close(nobody_reads)
    place.until(all_run(2))
    place.delete("digits")
    assert again.wait(timeout=60) == 0


def test_a_job_whose_engine_cannot_start_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "asyncio.py").write_text("raise SystemExit('no engine today')\n")
    place = Place(tmp_path / "state", PYTHONPATH=str(tmp_path / "broken"))
    with pytest.raises(DdpError, match="engine of 'digits' did not start: no engine today"):
        place.run(POLITE)
    assert place.jobs() == []
    assert list((tmp_path / "state/kubectl-ddp/jobs").iterdir()) == []


@pytest.mark.parametrize("name", ["../digits", "no-such-job"])
def test_a_job_that_is_not_there_is_not_found(place: Place, name: str) -> None:
    for item in (place.job, place.delete, lambda one: place.scale(one, 1), lambda one: next(place.watch(one))):
        with pytest.raises(NotFound, match=r"^Job .* does not exist"):
            item(name)
