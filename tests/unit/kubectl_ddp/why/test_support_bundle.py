"""An archive of a job: bounded, redacted, and whole where pods do not answer."""

from __future__ import annotations

import io
import json
import tarfile
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kubectl_ddp.kube.objects import Object, RelatedKind, Snapshot
from kubectl_ddp.why import support_bundle
from kubectl_ddp.why.support_bundle import File, files, write
from tests.support.kube_objects import CREATED_EPOCH, job, pod, pod_metrics, rank_metrics, snapshot
from tests.support.scripted_backend import ScriptedBackend


def names_in(archive: io.BytesIO) -> dict[str, str]:
    archive.seek(0)
    with tarfile.open(fileobj=archive) as tar:
        members = {member.name: tar.extractfile(member) for member in tar}
        return {name: file.read().decode() if file else "no file" for name, file in members.items()}


def test_pods_that_answer_are_in_it_with_lines_and_metrics_and_others_without() -> None:
    samples = {"digits-worker-0": pod_metrics() + rank_metrics(0)}
    lines = {"pod-worker-0/0": ["2026-01-02T03:04:06Z [rank0] token=0123456789 step 1"]}
    backend = ScriptedBackend([snapshot(job("Running"), pod(0), pod(1))], metrics=[samples], logs=lines)
    found = {file.name: file.content for file in files(backend, "digits", clock=lambda: CREATED_EPOCH)}
    assert found["logs/digits-worker-0.log"].rstrip() == "2026-01-02T03:04:06Z [rank0] token=(redacted) step 1"
    assert {"metrics/digits-worker-0.prom", "logs/digits-worker-1.log"} <= found.keys()
    assert "metrics/digits-worker-1.prom" not in found
    assert json.loads(found["status.json"])["name"] == "digits"
    assert found["why.txt"].startswith("Job digits (scripted, namespace team) is ")


def test_whoever_reads_the_lines_in_a_terminal_obeys_none_of_them() -> None:
    lines = {"pod-worker-0/0": ["2026-01-02T03:04:06Z [rank0] \x1b]52;c;eA==\x07 step 1"]}
    backend = ScriptedBackend([snapshot(job("Running"), pod(0))], logs=lines)
    found = {file.name: file.content for file in files(backend, "digits", clock=lambda: CREATED_EPOCH)}
    assert "\x07" not in found["logs/digits-worker-0.log"]
    assert "\x1b]" not in found["logs/digits-worker-0.log"]


def test_events_of_a_job_whose_name_begins_alike_stay_out() -> None:
    def about(kind: str, name: str) -> Object:
        return {"involvedObject": {"kind": kind, "name": name}, "metadata": {"uid": name}, "reason": "Any"}

    report = [about("Pod", "digits-worker-1"), about("Pod", "digits-2-worker-0"), about("PyTorchJob", "digits-2")]
    report.append(about("PersistentVolumeClaim", "data"))
    mounts = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}
    one = pod(0)
    seen = Snapshot(job("Running"), (one | {"spec": one["spec"] | mounts},), tuple(report[:3]))
    backend = ScriptedBackend([seen], around={RelatedKind.EVENTS: (report[3],)})
    found = {file.name: file.content for file in files(backend, "digits", clock=lambda: CREATED_EPOCH)}
    names = [event["involvedObject"]["name"] for event in json.loads(found["events.json"])]
    assert sorted(names) == ["data", "digits-worker-1"]


class _Slow(ScriptedBackend):
    """No pod answers before all requests have arrived."""

    everybody = threading.Barrier(4)

    def logs(self, pod: Object, **how: Any) -> Iterator[str]:
        if how["tail"] == support_bundle.LOG_LINES:
            self.everybody.wait(timeout=20)
        return super().logs(pod, **how)


def test_pods_are_asked_at_the_same_time_and_told_in_order() -> None:
    pods = [pod(number) for number in range(4)]
    lines = {f"pod-worker-{number}/0": [f"2026-01-02T03:04:06Z line of {number}"] for number in range(4)}
    backend = _Slow([snapshot(job("Running"), *pods)], logs=lines)
    found = [file for file in files(backend, "digits", clock=lambda: CREATED_EPOCH) if file.name.startswith("logs/")]
    assert [file.name for file in found] == [f"logs/digits-worker-{number}.log" for number in range(4)]
    assert found[3].content == "2026-01-02T03:04:06Z line of 3\n"


def test_what_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support_bundle, "TOTAL_BYTES", 10)
    archive = io.BytesIO()
    size = write(archive, "d", iter([File("a", "12345"), File("big", "x" * 50), File("b", "1234")]), clock=lambda: 7.0)
    assert size == 9
    assert names_in(archive) == {"d/a": "12345", "d/b": "1234", "d/left-out.txt": "big\n"}
