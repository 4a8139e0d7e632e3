"""The history of a job as one list by time."""

from __future__ import annotations

from kubectl_ddp.status.timeline import history
from tests.support.kube_objects import job, pod, snapshot, terminated

EVENT = {
    "type": "Warning", "reason": "FailedScheduling", "message": "0/2 nodes\n are available", "count": 3,
    "involvedObject": {"kind": "Pod", "name": "digits-worker-1"}, "lastTimestamp": "2026-01-02T03:04:09Z",
    "metadata": {},
}  # fmt: skip


def test_events_ends_of_containers_and_states_are_one_list_by_time() -> None:
    found = history(snapshot(job("Created", "Running"), pod(0, terminated(137))), [EVENT])
    assert [(one.time[11:19], one.type, one.reason, one.object) for one in found] == [
        ("03:04:05", "Warning", "Terminated", "pod/digits-worker-0"),
        ("03:04:09", "Warning", "FailedScheduling", "pod/digits-worker-1"),
        ("03:05:05", "Normal", "PyTorchJobCreated", "pytorchjob/digits"),
        ("03:05:05", "Normal", "PyTorchJobRunning", "pytorchjob/digits"),
    ]
    assert found[0].message == "Container pytorch killed by SIGKILL (exit code 137)."
    assert (found[1].message, found[1].count) == ("0/2 nodes are available", 3)


def test_a_state_that_an_event_tells_of_is_told_once() -> None:
    event = EVENT | {"reason": "PyTorchJobRunning", "involvedObject": {"kind": "PyTorchJob", "name": "digits"}}
    assert [one.reason for one in history(snapshot(job("Running")), [event])] == ["PyTorchJobRunning"]


def test_a_series_counts_by_its_last_time() -> None:
    series = {"series": {"count": 7, "lastObservedTime": "2026-01-02T09:00:00.123456Z"}, "eventTime": "2026-01-02T08:"}
    plain = {key: value for key, value in EVENT.items() if key not in {"lastTimestamp", "count"}}
    (one,) = history(snapshot(job()), [plain | series])
    assert (one.time, one.count) == ("2026-01-02T09:00:00Z", 7)


def test_ends_of_earlier_containers_are_told_too() -> None:
    found = history(snapshot(job(), pod(0, last=terminated(1))), [])
    assert [one.message for one in found] == ["Container pytorch exited with code 1."]
