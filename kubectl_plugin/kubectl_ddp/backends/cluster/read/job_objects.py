"""Events and code of a job in the cluster.

The uid of a deleted pod is unknown, so events are matched by the name of their object: the job's name, or one that
starts with it. Events of a job with a longer name, or of an earlier job of the same name, are excluded.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddp_trainer.common.constants import Label
from kubectl_ddp.backends.cluster.http.api import Api, collection
from kubectl_ddp.backends.cluster.read.pod_transform import without_managers
from kubectl_ddp.errors import Forbidden
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.kube.timestamps import epoch, timestamp


def events_of(api: Api, job: Object, jobs: Sequence[Object]) -> list[Object]:
    """Return the events about a job, oldest first. Raises Forbidden if they may not be read.

    Args:
        api: API server.
        job: Root object.
        jobs: All jobs of the namespace.
    """
    about, name = job["metadata"], str(job["metadata"]["name"])
    longer = [other for each in jobs if (other := str(each["metadata"]["name"])).startswith(f"{name}-")]

    def select_event(event: Object) -> Object | None:
        is_mine = last_timestamp(event) >= str(about["creationTimestamp"]) and _involves_job(event, name, longer)
        return without_managers(event) if is_mine else None

    events, _ = api.items(collection("v1", "events", about["namespace"]), reduce=select_event)
    return sorted(events, key=last_timestamp)


def recent_events(api: Api, name: str, namespace: str) -> list[Object]:
    """Return the events about objects named like the job and its pods; empty if events may not be read.

    The names are matched here, because the API server's selectors cannot match prefixes.
    """
    try:
        return api.items(
            collection("v1", "events", namespace),
            reduce=lambda event: without_managers(event) if is_named_after(event, name) else None,
        )[0]
    except Forbidden:
        return []


def is_named_after(event: Object, name: str) -> bool:
    """Return whether an event is about an object named like the job or its pods."""
    return _matches_name(str(event["involvedObject"].get("name", "")), name)


def code_of(api: Api, job: Object) -> list[Object]:
    """Return the ConfigMaps with the code of this run; empty if it has none."""
    about = job["metadata"]
    named, _ = api.items(
        collection("v1", "configmaps", about["namespace"]), labelSelector=f"{Label.JOB}={about['name']}"
    )
    run = about["labels"].get(Label.RUN_ID)
    return [each for each in named if each["metadata"]["labels"].get(Label.RUN_ID) == run]


def last_timestamp(event: Object) -> str:
    """Return the time of an event's last occurrence, to the second."""
    times = (event.get("lastTimestamp"), event.get("eventTime"), event["metadata"].get("creationTimestamp"))
    return timestamp(epoch(next((str(time) for time in times if time), None))) or ""


def _involves_job(event: Object, name: str, longer: Sequence[str]) -> bool:
    involved = event.get("involvedObject") or {}
    about = str(involved.get("name", ""))
    if involved.get("kind") == "Workload":  # Kueue's, as in pytorchjob-digits-1a2b3
        about = about.partition("-")[2]
    return _matches_name(about, name) and not any(_matches_name(about, other) for other in longer)


def _matches_name(about: str, name: str) -> bool:
    return about == name or about.startswith(f"{name}-")
