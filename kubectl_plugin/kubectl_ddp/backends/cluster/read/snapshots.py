"""Snapshots of jobs from lists of jobs, pods and events. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ddp_trainer.common.constants import Label
from kubectl_ddp.backends.cluster.read.job_objects import last_timestamp
from kubectl_ddp.kube.kueue_queue import queued
from kubectl_ddp.kube.objects import Object, Queued, Snapshot

Run = tuple[str, str, str]
"""Namespace, name and run id."""


def of_all(
    jobs: Iterable[Object], pods: Iterable[Object], standing: Callable[[Object], Queued | None]
) -> list[Snapshot]:
    """Return a snapshot of every job with its pods, oldest first, without events.

    Args:
        jobs: Root objects.
        pods: Pods of all jobs, in any order.
        standing: Function that returns the position of a job in a queue.
    """
    by_run: dict[Run, list[Object]] = {}
    for pod in pods:
        by_run.setdefault(_run_of(pod), []).append(pod)
    in_order = sorted(jobs, key=lambda job: (job["metadata"]["creationTimestamp"], job["metadata"]["name"]))
    return [Snapshot(job, _in_order(by_run.get(_run_of(job), ())), queued=standing(job)) for job in in_order]


def of_one(job: Object, pods: Iterable[Object], events: Sequence[Object]) -> Snapshot:
    """Return the snapshot of a job, with the pods of this run and the events about these objects.

    Pods of a deleted job with the same name may still be terminating.
    """
    mine = _in_order(pod for pod in pods if _run_of(pod) == _run_of(job))
    uids = {each["metadata"]["uid"] for each in (job, *mine)}
    about = [event for event in events if event["involvedObject"].get("uid") in uids]
    return Snapshot(job, mine, tuple(sorted(about, key=last_timestamp)), queued(job))


def _run_of(item: Object) -> Run:
    """Return the run of a job or a pod."""
    about = item["metadata"]
    labels = about.get("labels") or {}
    return str(about.get("namespace")), str(labels.get(Label.JOB)), str(labels.get(Label.RUN_ID))


def _in_order(pods: Iterable[Object]) -> tuple[Object, ...]:
    """Return pods sorted by name, with worker-10 after worker-9."""
    return tuple(sorted(pods, key=lambda pod: (len(pod["metadata"]["name"]), pod["metadata"]["name"])))
