"""Events of a job, and of jobs whose names begin alike."""

from __future__ import annotations

from typing import Any

import pytest

from kubectl_ddp.kube.objects import Object, Snapshot
from kubectl_ddp.why.facts import Attribution, distinct
from tests.support.kube_objects import job, pod

BEFORE, AFTER = "2026-01-02T03:04:04Z", "2026-01-02T03:04:05Z"


def an_event(kind: str, name: str, uid: str = "gone", *, moment: str = AFTER, **more: Any) -> Object:
    return {"involvedObject": {"kind": kind, "name": name, "uid": uid}, "lastTimestamp": moment, **more}


def owns(event: Object, root: Object | None = None) -> bool:
    return Attribution.of(Snapshot(root or job(), (pod(0),))).matches_event(event)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("Pod", f"digits-{name}") for name in ("worker-3", "3-x7k2p", "node-0-3-x7k2p", "store-x7k2p")),
        *(("Job", "digits-store"), ("Job", "digits-node-0"), ("JobSet", "digits")),
        ("Workload", "pytorchjob-digits-1a2b3"),
    ],
)
def test_what_is_made_for_a_job_is_known_by_its_name_when_it_is_gone(kind: str, name: str) -> None:
    assert owns(an_event(kind, name))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("PyTorchJob", "digits-2"), ("Job", "digits-2"), ("Job", "digits-2-store"), ("Pod", "digit")),
        *(("Pod", f"digits-{name}") for name in ("2-worker-0", "2-0-x7k2p", "2-store-x7k2p", "two-worker-0")),
        *(("Workload", "pytorchjob-digits-2-1a2b3"), ("PersistentVolumeClaim", "digits-worker-0")),
    ],
)
def test_what_belongs_to_a_job_whose_name_begins_alike_is_not_this_jobs(kind: str, name: str) -> None:
    assert not owns(an_event(kind, name))


def test_a_pod_that_is_there_is_known_by_its_uid_whatever_it_is_called() -> None:
    assert owns(an_event("Pod", "renamed-by-a-webhook", "pod-worker-0"))


def test_the_job_itself_is_known_by_its_uid_so_that_an_earlier_one_is_not_meant() -> None:
    assert owns(an_event("PyTorchJob", "digits", "u-1"))
    assert not owns(an_event("PyTorchJob", "digits", "u-0"))
    assert owns({"involvedObject": {"kind": "PyTorchJob", "name": "digits"}})


def test_what_happened_before_the_job_was_made_is_another_runs() -> None:
    assert not owns(an_event("Pod", "digits-worker-3", moment=BEFORE))


def test_each_event_is_told_once_and_the_oldest_first() -> None:
    late = an_event("Pod", "a", metadata={"uid": "e1"}, moment="2026-01-02T03:09:00Z")
    early = an_event("Pod", "b", metadata={"uid": "e2"})
    assert distinct([late, early, dict(late)]) == [early, late]
