"""Jobs, pods and events as an API server lists them, put together to snapshots. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ddp_trainer.common.constants import Label
from kubectl_ddp.backend import Object, Queued, Snapshot
from kubectl_ddp.cluster.job_objects import last_timestamp
from kubectl_ddp.queued import queued

Run = tuple[str, str, str]
"""Namespace, name and run id."""


def of_all(
    jobs: Iterable[Object], pods: Iterable[Object], standing: Callable[[Object], Queued | None]
) -> list[Snapshot]:
    """Every job with its pods, oldest first; without events.

    Args:
        jobs: the root objects.
        pods: of all of them, in any order.
        standing: where a job stands in a queue.
    """
    by_run: dict[Run, list[Object]] = {}
    for pod in pods:
        by_run.setdefault(_run_of(pod), []).append(pod)
    in_order = sorted(jobs, key=lambda job: (job["metadata"]["creationTimestamp"], job["metadata"]["name"]))
    return [Snapshot(job, _in_order(by_run.get(_run_of(job), ())), queued=standing(job)) for job in in_order]


def of_one(job: Object, pods: Iterable[Object], events: Sequence[Object]) -> Snapshot:
    """A job with the pods of this run, and with the events that are about one of these very objects.

    Pods of a deleted job of the same name may still be ending.
    """
    mine = _in_order(pod for pod in pods if _run_of(pod) == _run_of(job))
    uids = {each["metadata"]["uid"] for each in (job, *mine)}
    about = [event for event in events if event["involvedObject"].get("uid") in uids]
    return Snapshot(job, mine, tuple(sorted(about, key=last_timestamp)), queued(job))


def _run_of(item: Object) -> Run:
    """Which run a job or a pod is of."""
    about = item["metadata"]
    labels = about.get("labels") or {}
    return str(about.get("namespace")), str(labels.get(Label.JOB)), str(labels.get(Label.RUN_ID))


def _in_order(pods: Iterable[Object]) -> tuple[Object, ...]:
    """Pods sorted by name, worker-10 after worker-9."""
    return tuple(sorted(pods, key=lambda pod: (len(pod["metadata"]["name"]), pod["metadata"]["name"])))
