"""Place of a command: jobs are created and changed only where a flag, or a name without a second job, selects it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from kubectl_ddp.cli.run import run
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.render import render
from tests.support import kube_objects
from tests.support.api_server import Answer, ApiServer, status
from tests.support.command_line import CommandLine
from tests.support.jobs import a_job, a_local_job

JOB: Final = "/apis/kubeflow.org/v1/namespaces/team/pytorchjobs/digits"
CHANGES: Final = (
    ("delete", "digits", "--yes"),
    ("scale", "digits", "--nnodes", "1"),
    ("suspend", "digits"),
    ("resume", "digits"),
    ("restart", "digits", "--yes"),
)


@pytest.fixture
def cluster(cluster: ApiServer) -> ApiServer:
    """A cluster that has the job ``digits``."""
    root = job_kinds.root_of(render(a_job(), "run1"))
    root["metadata"] |= {"creationTimestamp": kube_objects.CREATED}
    root["status"] = {"conditions": [kube_objects.condition("Running")]}
    cluster.put(JOB, root)
    return cluster


@pytest.mark.parametrize("command", ["submit", "preflight"])
def test_without_a_kubeconfig_a_place_is_named(workdir: Path, cli: CommandLine, command: str) -> None:
    errors = cli(command, "train.py", "--name", "mine", code=2).err
    assert "--local" in errors
    assert "--kubeconfig" in errors
    assert not (workdir / "state").exists()


def test_a_job_that_is_only_shown_needs_no_place(workdir: Path) -> None:
    assert workdir.is_dir()
    assert run(["submit", "train.py", "--name", "mine", "--dry-run=client", "-o", "name"]) == 0


@pytest.mark.parametrize("words", CHANGES, ids=lambda words: words[0])
def test_a_name_of_two_places_is_changed_in_neither(
    cluster: ApiServer, cli: CommandLine, words: tuple[str, ...]
) -> None:
    directory = a_local_job("digits")
    errors = cli(*words, code=2).err
    assert "--local" in errors
    assert "--context test" in errors
    assert directory.is_dir()
    assert {request.method for request in cluster.requests} <= {"GET"}
    assert JOB in cluster.objects


def test_a_flag_chooses_the_place(cluster: ApiServer, cli: CommandLine) -> None:
    directory = a_local_job("digits")
    assert cli("delete", "digits", "--yes", "--local").out == "job digits deleted on this machine\n"
    assert not directory.exists()
    assert JOB in cluster.objects
    a_local_job("digits")
    [item] = json.loads(cli("delete", "digits", "--yes", "--context", "test", "-o", "json").out)["items"]
    assert (item["where"], item["namespace"]) == ("test", "team")
    assert JOB not in cluster.objects
    assert directory.exists()


def test_a_cluster_that_is_silent_may_have_the_job_too(cluster: ApiServer, cli: CommandLine) -> None:
    directory = a_local_job("digits")
    cluster.next(f"GET {JOB}", Answer(403, status(403, "Forbidden", "no")))
    assert "--local" in cli("delete", "digits", "--yes", code=2).err
    assert directory.is_dir()


def test_a_name_of_this_machine_alone_needs_no_flag(cluster: ApiServer, cli: CommandLine) -> None:
    a_local_job("other")
    assert cli("delete", "other", "--yes").out == "job other deleted on this machine\n"
    assert JOB in cluster.objects


def test_all_jobs_are_those_of_one_place(cluster: ApiServer, cli: CommandLine) -> None:
    directory = a_local_job("other")
    errors = cli("delete", "--all", "--yes", code=2).err
    assert "--local" in errors
    assert "--context test" in errors
    assert directory.exists()
    assert JOB in cluster.objects


def test_a_command_that_reads_a_job_of_this_machine_beside_a_cluster_prints_the_place(
    cluster: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert JOB in cluster.objects
    a_local_job("digits")
    run(["events", "digits"])
    assert "Job digits on this machine" in capsys.readouterr().err
