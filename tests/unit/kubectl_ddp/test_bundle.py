"""An archive of a job: bounded, redacted, and whole where pods do not answer."""

from __future__ import annotations

import io
import json
import tarfile

import pytest

from kubectl_ddp import bundle
from kubectl_ddp.bundle import File, files, write
from tests.kube_objects import CREATED_EPOCH, job, pod, pod_metrics, rank_metrics, snapshot
from tests.scripted_backend import ScriptedBackend


def names_in(archive: io.BytesIO) -> dict[str, str]:
    archive.seek(0)
    with tarfile.open(fileobj=archive) as tar:
        return {member.name: content_of(tar, member) for member in tar.getmembers()}


def content_of(tar: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    file = tar.extractfile(member)
    assert file is not None
    return file.read().decode()


def test_pods_that_answer_are_in_it_with_lines_and_metrics_and_others_without() -> None:
    said = {"digits-worker-0": pod_metrics() + rank_metrics(0)}
    lines = {"pod-worker-0/0": ["2026-01-02T03:04:06Z [rank0] token=0123456789 step 1"]}
    backend = ScriptedBackend([snapshot(job("Running"), pod(0), pod(1))], metrics=[said], logs=lines)
    found = {file.name: file.content for file in files(backend, "digits", clock=lambda: CREATED_EPOCH)}
    assert found["logs/digits-worker-0.log"].rstrip() == "2026-01-02T03:04:06Z [rank0] token=(redacted) step 1"
    assert {"metrics/digits-worker-0.prom", "logs/digits-worker-1.log"} <= found.keys()
    assert "metrics/digits-worker-1.prom" not in found
    assert json.loads(found["status.json"])["name"] == "digits"
    assert found["why.txt"].startswith("Job digits (scripted, namespace team) is ")


def test_what_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "TOTAL_BYTES", 10)
    archive = io.BytesIO()
    size = write(archive, "d", iter([File("a", "12345"), File("big", "x" * 50), File("b", "1234")]), clock=lambda: 7.0)
    assert size == 9
    assert names_in(archive) == {"d/a": "12345", "d/b": "1234", "d/left-out.txt": "big\n"}
