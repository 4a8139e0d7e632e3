"""Pods that were taken away, and a store that was killed: what ``why`` names while it matters, and when it is over."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ddp_trainer.common.constants import Label, Role
from kubectl_ddp.kube.objects import Object, RelatedKind, epoch
from kubectl_ddp.util.finding import Severity
from kubectl_ddp.why.diagnosis import run_checks
from kubectl_ddp.why.facts import RECENT_SECONDS, Facts
from kubectl_ddp.why.model import Cause
from tests.support.diagnosed import LATER, event, facts, first
from tests.support.kube_objects import job, pod, pod_metrics, rank_metrics, running, terminated

KILLED = epoch(LATER) or 0.0
SOON = KILLED + 20


def killing(name: str = "digits-worker-1", *, node: str = "n1") -> Object:
    return {**event("Killing", "Stopping container pytorch", name), "source": {"component": "kubelet", "host": node}}


def leaving(index: int, *, evicted: bool = False) -> Object:
    made = pod(index, running())
    made["metadata"]["deletionTimestamp"] = LATER
    if evicted:
        target = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
        made["status"]["conditions"] = [{**target, "message": "Eviction API: evicting"}]
    return made


def node(name: str, **spec: Any) -> Object:
    return {"metadata": {"name": name}, "spec": spec, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}


def known(*pods: Object, events: tuple[Object, ...] = (), now: float = SOON, **more: Any) -> Facts:
    around = {RelatedKind.EVENTS: events, **more.pop("around", {})}
    return facts(job("Created", "Running"), *pods, around=around, now=now, **more)


def test_a_pod_that_is_deleted_is_named_while_it_ends_and_when_another_has_its_place() -> None:
    assert first(known(pod(0), leaving(1))).subject is Cause.POD_DELETED
    found = first(known(pod(0), pod(1), events=(killing(),)))
    assert (found.subject, found.exit_code) == (Cause.POD_DELETED, 11)
    assert "digits-worker-1" in found.message


def test_it_is_over_when_ranks_have_stepped_since_or_after_a_while() -> None:
    metrics = {f"digits-worker-{rank}": pod_metrics() + rank_metrics(rank, last_step=KILLED + 5) for rank in range(2)}
    trains, deleted = run_checks(known(pod(0), pod(1), events=(killing(),), metrics=metrics))
    assert (trains.subject, trains.severity) == (Cause.RUNNING, Severity.OK)
    assert (deleted.subject, deleted.severity) == (Cause.POD_DELETED, Severity.INFO)
    assert first(known(pod(0), pod(1), events=(killing(),), now=KILLED + RECENT_SECONDS + 1)).subject is Cause.RUNNING


@pytest.mark.parametrize("reason", ["SuccessfulDeletePod", "SuccessfulDelete", "PyTorchJobSuspended"])
def test_a_pod_that_its_controller_takes_away_was_not_deleted_by_anybody(reason: str) -> None:
    by_controller = event(reason, "Deleted pod: digits-worker-1", "digits", kind="PyTorchJob", uid="")
    assert first(known(pod(0), pod(1), events=(killing(), by_controller))).subject is Cause.RUNNING


def test_a_pod_beside_those_that_the_job_is_to_have_is_no_loss() -> None:
    assert first(known(pod(0), pod(1), leaving(2))).subject is Cause.RUNNING


def test_an_eviction_is_named_while_its_pod_ends() -> None:
    found = first(known(pod(0), leaving(1, evicted=True)))
    assert (found.subject, found.exit_code) == (Cause.EVICTED, 11)
    assert "digits-worker-1 was evicted" in found.message


@pytest.mark.parametrize(
    ("message", "fix"),
    [
        ('Usage of EmptyDir volume "scratch" exceeds the limit "1Gi".', "Write less to /tmp"),
        ('Usage of EmptyDir volume "shm" exceeds the limit "1Gi".', "more --shm"),
        ("Pod ephemeral local storage usage exceeds the total limit of containers 1Gi.", "container's own files"),
        ("The node was low on resource: ephemeral-storage.", "container's own files"),
    ],
)
def test_a_pod_that_was_evicted_for_a_full_disk_gets_the_path_and_the_fix(message: str, fix: str) -> None:
    full = pod(1, terminated(137))
    full["status"] |= {"reason": "Evicted", "message": message}
    mounts = [{"name": "scratch", "mountPath": "/tmp"}, {"name": "shm", "mountPath": "/dev/shm"}]
    full["spec"]["containers"][0]["volumeMounts"] = mounts
    (found,) = (found for found in run_checks(known(pod(0), full)) if found.subject is Cause.EVICTED)
    assert fix in found.hint


def test_a_pod_that_was_stopped_on_a_cordoned_node_was_evicted() -> None:
    around = {RelatedKind.NODES: (node("n1", unschedulable=True),)}
    found = first(known(pod(0), pod(1), events=(killing(),), around=around))
    assert (found.subject, "n1 is cordoned" in found.message) == (Cause.EVICTED, True)


def store(*, ended: bool = False) -> Object:
    made = pod(0, running())
    made["metadata"] |= {"name": "digits-store-new", "uid": "store", "labels": {Label.ROLE: Role.STORE}}
    made["status"]["phase"] = "Pending" if ended else "Running"
    return made


def test_a_store_that_was_killed_is_named_for_a_while_though_the_ranks_train() -> None:
    found = run_checks(known(pod(0), pod(1), store(), events=(killing("digits-store-aaaaa"),)))
    assert (found[0].subject, found[0].exit_code) == (Cause.STORE, 0)
    assert "runs again" in found[0].message
    late = known(pod(0), pod(1), store(), events=(killing("digits-store-aaaaa"),), now=KILLED + RECENT_SECONDS + 1)
    assert first(late).subject is Cause.RUNNING


def test_a_store_that_does_not_run_is_named_as_long_as_that_lasts() -> None:
    found = first(known(pod(0), pod(1), store(ended=True), now=KILLED + 10 * RECENT_SECONDS))
    assert (found.subject, found.exit_code) == (Cause.STORE, 0)
    assert "does not run" in found.message


def test_a_job_without_a_store_lacks_none() -> None:
    assert first(known(pod(0), pod(1))).subject is Cause.RUNNING


def test_a_container_of_the_store_that_was_killed_and_runs_again_counts() -> None:
    made = store()
    made["status"]["containerStatuses"][0]["lastState"] = terminated(137)
    made["status"]["containerStatuses"][0]["lastState"]["terminated"]["finishedAt"] = LATER
    assert first(known(pod(0), pod(1), made)).subject is Cause.STORE


ENDED = "Error pod digits-worker-0 container pytorch exitCode: 139 terminated message: "
REPORTED = '{"rank":0,"pod":"digits-worker-0","exit_code":139,"reason":"sigsegv","message":"died of SIGSEGV"}'


@pytest.mark.parametrize(("message", "code"), [(REPORTED, 10), (REPORTED[:60], 11)], ids=["whole", "cut off"])
def test_a_pod_that_failed_and_was_replaced_is_told_by_its_operators_event(message: str, code: int) -> None:
    ended = event("Error", ENDED + message, "digits", kind="PyTorchJob", uid="")
    found = first(known(pod(0), pod(1), events=(ended,)))
    assert (found.subject, found.exit_code) == (Cause.ERROR, code)
    assert "SIGSEGV" in found.message
    late = KILLED + RECENT_SECONDS + 1
    assert first(known(pod(0), pod(1), events=(ended,), now=late)).subject is Cause.RUNNING


def test_a_pod_that_was_killed_for_memory_and_replaced_is_told_by_its_operators_event() -> None:
    ended = event("OOMKilled", ENDED.replace("139", "137"), "digits", kind="PyTorchJob", uid="")
    assert first(known(pod(0), pod(1), events=(ended,))).subject is Cause.HOST_OOM


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        ("OSError: [Errno 28] No space left on device", "--shm"),
        ("OSError: [Errno 28] No space left on device (/dev/shm/x is full)", "with more --shm"),
        ("OSError: [Errno 28] No space left on device (/checkpoints is full)", "enlarge its claim"),
        ("died of SIGBUS, as where /dev/shm is full", "with more --shm"),
        ("RuntimeError: PytorchStreamWriter failed writing file data/0: file write failed", "--mount"),
        ("RuntimeError: open file failed with strerror: Read-only file system", "/tmp"),
        ("torchrun, which the script starts, failed: DistNetworkError: x", "--standalone"),
        ("OSError: [Errno 30] Read-only file system: 'out.pt'", "/checkpoints"),
    ],
)
def test_errors_with_a_known_fix_get_a_help_of_their_own(error: str, fix: str) -> None:
    report = ENDED.replace("139", "1") + json.dumps({"rank": 0, "message": error})
    ended = event("Error", report, "digits", kind="PyTorchJob", uid="")
    assert fix in first(known(pod(0), pod(1), events=(ended,))).hint
