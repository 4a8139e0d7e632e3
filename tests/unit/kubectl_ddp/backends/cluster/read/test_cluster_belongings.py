"""Events of deleted pods, the code of a job, and the kubectl command that reaches its pods."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from ddp_trainer.common.constants import Label
from kubectl_ddp.backends.access import Access
from kubectl_ddp.backends.base import Entry
from kubectl_ddp.backends.cluster import ClusterBackend
from kubectl_ddp.backends.cluster.backend import Kubectl
from kubectl_ddp.errors import PreflightFailed, Unreachable
from tests.support import kube_objects
from tests.support.api_server import CONFIG_MAPS, EVENTS, ApiServer, kubeconfig
from tests.unit.kubectl_ddp.backends.cluster.test_cluster_backend import put_job


def put_event(server: ApiServer, metadata: str, moment: str, **fields: Any) -> None:
    involved = {"kind": fields.pop("kind", "Pod"), "name": metadata}
    event = {"involvedObject": involved, "lastTimestamp": moment, "reason": metadata, **fields}
    server.put(f"{EVENTS}/e{len(server.objects)}", event)


def test_events_of_pods_that_are_gone_count_and_others_do_not(server: ApiServer, backend: ClusterBackend) -> None:
    for name in ("digits", "digits-two"):
        put_job(server, name=name)
    late, early = "2026-01-02T03:09:00Z", "2026-01-02T03:04:06Z"
    put_event(server, "digits-worker-0", late)
    put_event(server, "digits", early, kind="PyTorchJob")
    put_event(server, "digits-store-x1", "", eventTime="2026-01-02T03:05:00.123456Z")
    put_event(server, "pytorchjob-digits-1a2b3", late, kind="Workload")
    put_event(server, "digits-two-worker-0", late)
    put_event(server, "digitsx-worker-0", late)
    put_event(server, "digits-worker-1", "2026-01-01T00:00:00Z")  # of a job of this name, before
    assert [event["reason"] for event in backend.events("digits")] == [
        "digits", "digits-store-x1", "digits-worker-0", "pytorchjob-digits-1a2b3",
    ]  # fmt: skip


def test_the_code_is_that_of_this_run(server: ApiServer, backend: ClusterBackend) -> None:
    put_job(server, run_id="run2")
    assert backend.code("digits") == []
    for run_id in ("run1", "run2"):
        labels = {Label.JOB: "digits", Label.RUN_ID: run_id}
        server.put(f"{CONFIG_MAPS}/{run_id}", {"metadata": {"labels": labels}, "data": {"train.py": run_id}})
    [code] = backend.code("digits")
    assert code["data"] == {"train.py": "run2"}


def test_kubectl_gets_the_same_cluster_namespace_and_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kubectl").write_text("#!/bin/sh\n")
    (tmp_path / "kubectl").chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    who = {"context": "lab", "cluster": "east", "user": "eve", "acting_as": "me", "as_groups": ("a", "b")}
    kubectl = Kubectl("team", Access(**who, namespace="not this one", request_timeout="1m30s"))
    entry = Entry(words=("py-spy", "dump"), variables={"RANK": "3"}, stdin=True, terminal=True)
    flags = ("--context=lab", "--cluster=east", "--user=eve", "--as=me", "--as-group=a", "--as-group=b",
             "--request-timeout=1m30s", "--namespace=team")  # fmt: skip
    assert kubectl.enter(kube_objects.pod(), entry).words == (
        str(tmp_path / "kubectl"), "exec", *flags, "--stdin", "--tty", "digits-worker-0", "--container=pytorch", "--",
        "env", "RANK=3", "py-spy", "dump",
    )  # fmt: skip
    assert kubectl.forward(kube_objects.pod(), [":9464"]).words[1:] == (
        "port-forward", *flags, "digits-worker-0", ":9464",
    )  # fmt: skip


def test_without_kubectl_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PreflightFailed, match=r"port-forward needs kubectl, .* not found on PATH"):
        Kubectl("team", Access()).forward(kube_objects.pod(), ["9464"])


def test_acting_as_somebody_is_said_to_the_api_server(server: ApiServer, tmp_path: Path) -> None:
    path = str(kubeconfig(tmp_path, server.url))
    ClusterBackend(Access(kubeconfig=path, acting_as="ada", as_groups=("ops", "admins"))).jobs()
    assert {request.headers.get("Impersonate-User") for request in server.requests} == {"ada"}
    paths = [[value for name, value in item.headers.items() if name == "Impersonate-Group"] for item in server.requests]
    assert paths
    assert all(groups == ["ops", "admins"] for groups in paths)


def test_a_request_is_given_up_after_the_time_that_the_flag_names(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes the connection, and never answers
        path = str(kubeconfig(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}"))
        with pytest.raises(Unreachable, match=r"does not respond\..*--request-timeout"):
            ClusterBackend(Access(kubeconfig=path, request_timeout="50ms")).jobs()
