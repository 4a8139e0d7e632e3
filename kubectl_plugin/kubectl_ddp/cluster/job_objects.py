"""What the cluster has and remembers of a job beside its objects: events, and the code that came along.

Pods that are gone cannot be asked whose they were, so an event counts by the name of what it is about: the job's own,
or one that begins with it. What belongs to a job with a longer name, or to a job of the same name before, does not.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddp_trainer.common.constants import Label
from kubectl_ddp.backend import Object
from kubectl_ddp.cluster.api import Api
from kubectl_ddp.cluster.pod_transform import without_managers
from kubectl_ddp.cluster.resources import collection
from kubectl_ddp.errors import Forbidden


def events_of(api: Api, job: Object, jobs: Sequence[Object]) -> list[Object]:
    """Events about a job, oldest first. Raises Forbidden when they may not be read.

    Args:
        api: the API server.
        job: the root object.
        jobs: all of the namespace.
    """
    about, name = job["metadata"], str(job["metadata"]["name"])
    longer = [other for each in jobs if (other := str(each["metadata"]["name"])).startswith(f"{name}-")]

    def select_event(event: Object) -> Object | None:
        is_mine = last_timestamp(event) >= str(about["creationTimestamp"]) and _involves_job(event, name, longer)
        return without_managers(event) if is_mine else None

    events, _ = api.items(collection("v1", "events", about["namespace"]), reduce=select_event)
    return sorted(events, key=last_timestamp)


def recent_events(api: Api, name: str, namespace: str) -> list[Object]:
    """Events about what is named as the job and its pods are; no selector of the API server's can say that.

    None where they may not be read: a job can be read without its events.
    """
    try:
        return api.items(
            collection("v1", "events", namespace),
            reduce=lambda event: without_managers(event) if is_named_after(event, name) else None,
        )[0]
    except Forbidden:
        return []


def is_named_after(event: Object, name: str) -> bool:
    """Whether an event is about something that is named as the job, or as its pods are."""
    return _matches_name(str(event["involvedObject"].get("name", "")), name)


def code_of(api: Api, job: Object) -> Object | None:
    """The ConfigMap of this run of a job; ``None`` when it has none."""
    about = job["metadata"]
    named, _ = api.items(
        collection("v1", "configmaps", about["namespace"]), labelSelector=f"{Label.JOB}={about['name']}"
    )
    run = about["labels"].get(Label.RUN_ID)
    return next((each for each in named if each["metadata"]["labels"].get(Label.RUN_ID) == run), None)


def last_timestamp(event: Object) -> str:
    """When it happened last, to the second."""
    times = (event.get("lastTimestamp"), event.get("eventTime"), event["metadata"].get("creationTimestamp"))
    return next((f"{str(time)[:19]}Z" for time in times if time), "")


def _involves_job(event: Object, name: str, longer: Sequence[str]) -> bool:
    involved = event.get("involvedObject") or {}
    about = str(involved.get("name", ""))
    if involved.get("kind") == "Workload":  # Kueue's, as in pytorchjob-digits-1a2b3
        about = about.partition("-")[2]
    return _matches_name(about, name) and not any(_matches_name(about, other) for other in longer)


def _matches_name(about: str, name: str) -> bool:
    return about == name or about.startswith(f"{name}-")
