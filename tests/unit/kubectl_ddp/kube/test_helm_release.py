"""A run that Helm has made: what is said when its root alone is deleted, and that no new run takes its place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from kubectl_ddp.cli.run import run
from kubectl_ddp.kube import helm_release, job_kinds
from kubectl_ddp.render import render
from tests.support import kube_objects
from tests.support.api_server import ApiServer, kubeconfig, serving
from tests.support.jobs import a_job

JOB: Final = "/apis/kubeflow.org/v1/namespaces/team/pytorchjobs/digits"
OF_HELM: Final = {helm_release.NAME: "nightly", helm_release.NAMESPACE: "team"}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    with serving(ApiServer()) as made:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, made.url)))
        monkeypatch.setenv("HOME", str(tmp_path))
        yield made


def put(server: ApiServer, state: str, annotations: dict[str, str]) -> None:
    root = job_kinds.root_of(render(a_job(), "run1"))
    root["metadata"] |= {"creationTimestamp": kube_objects.CREATED}
    root["metadata"]["annotations"] |= annotations
    root["status"] = {"conditions": [kube_objects.condition(state)]}
    server.put(JOB, root)


def test_deleting_a_run_of_helms_says_what_stays_and_how_to_take_it_away(
    server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    put(server, "Running", OF_HELM)
    assert run(["delete", "digits", "--yes"]) == 0
    assert JOB not in server.objects
    said = capsys.readouterr()
    assert said.out == "job digits deleted in namespace 'team' of context 'test'\n"
    assert said.err == (
        "Helm has made job digits: its store, Services and NetworkPolicy stay until 'helm uninstall nightly -n team' "
        "takes them away.\n"
    )


def test_deleting_any_other_job_says_nothing_of_helm(server: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    put(server, "Running", {})
    assert run(["delete", "digits", "--yes"]) == 0
    assert "elm" not in capsys.readouterr().err


def test_a_failed_run_of_helms_is_not_restarted_and_stays_as_it_is(
    server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    put(server, "Failed", OF_HELM)
    assert run(["restart", "digits", "--yes"]) == 2
    assert JOB in server.objects
    assert [request.method for request in server.requests if request.method != "GET"] == []
    said = capsys.readouterr().err
    assert "Job 'digits' has failed and belongs to a Helm release" in said
    assert "'helm uninstall nightly -n team' and 'helm install' create it again" in said
    assert "gets a new run" not in said
