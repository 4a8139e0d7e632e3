"""Jobs of an API server: root objects of all kinds, their pods, events and code, and snapshots of them.

Listed pods are reduced to a tenth of their size, because a cluster may have ten thousand: ``managedFields``,
environment, volumes and probes are most of a pod and do not describe the state of its job. A pod that is read
individually is not reduced.

The uid of a deleted pod is unknown, so events are matched by the name of their object: the job's name, or one that
starts with it. Events of a job with a longer name, or of an earlier job of the same name, are excluded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from ddp_trainer.common.constants import Label
from kubectl_ddp.backends.cluster.http.api import Api, collection
from kubectl_ddp.backends.cluster.http.api_errors import NotServed
from kubectl_ddp.engines import ENGINES, EngineKind
from kubectl_ddp.errors import DdpError, Forbidden, NoSuchJob, NotFound, UsageError
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.kueue_queue import queued
from kubectl_ddp.kube.objects import Object, Queued, Snapshot, epoch, timestamp
from kubectl_ddp.util.concurrency import map_in_threads, run_in_threads
from kubectl_ddp.util.process import location_flags, program

METADATA: Final = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "labels",
    "annotations",
    "creationTimestamp",
    "deletionTimestamp",
)
SPEC: Final = (
    "nodeName",
    "nodeSelector",
    "priority",
    "priorityClassName",
    "restartPolicy",
    "schedulerName",
    "overhead",
    "resources",
)
CONTAINER: Final = ("name", "ports", "resources", "restartPolicy")
STATUS: Final = ("phase", "reason", "message", "conditions", "podIP", "startTime")
CONTAINER_STATUSES: Final = ("initContainerStatuses", "containerStatuses")
CONTAINER_STATUS: Final = ("name", "ready", "restartCount", "state", "lastState", "started")


def without_managers(item: Object) -> Object:
    """Remove ``managedFields`` from an object in place, and return the object."""
    item["metadata"].pop("managedFields", None)
    return item


def strip_pod(pod: Object) -> Object:
    """Return the fields that describe a pod's state: its labels, its node, its containers and its conditions."""
    spec, status = pod["spec"], pod.get("status") or {}
    containers = {
        kind: [_only(container, CONTAINER) for container in spec[kind]]
        for kind in ("initContainers", "containers")
        if kind in spec
    }
    statuses = {
        kind: [_only(item, CONTAINER_STATUS) for item in status[kind]] for kind in CONTAINER_STATUSES if kind in status
    }
    return {
        "metadata": _only(pod["metadata"], METADATA),
        "spec": _only(spec, SPEC) | containers,
        "status": _only(status, STATUS) | statuses,
    }


OCCUPYING: Final = ("nodeName", "resources", "overhead")
OCCUPYING_CONTAINER: Final = ("resources", "restartPolicy")


def strip_scheduled_pod(pod: Object) -> Object | None:
    """Return the fields that determine the capacity a pod uses; ``None`` without a machine."""
    spec, metadata = pod["spec"], pod["metadata"]
    if not spec.get("nodeName"):
        return None
    lean = _only(spec, OCCUPYING)
    for kind in ("containers", "initContainers"):
        lean[kind] = [_only(container, OCCUPYING_CONTAINER) for container in spec.get(kind) or ()]
    return {
        "metadata": _only(metadata, ("name", "namespace")),
        "spec": lean,
        "status": {"phase": (pod.get("status") or {}).get("phase")},
    }


def _only(fields: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: fields[name] for name in names if name in fields}


def events_of(api: Api, job: Object, jobs: Sequence[Object]) -> list[Object]:
    """Return the events about a job, oldest first. Raises Forbidden if they may not be read.

    Args:
        api: API server.
        job: Root object.
        jobs: All jobs of the namespace.
    """
    metadata, name = job["metadata"], str(job["metadata"]["name"])
    others = [other for item in jobs if (other := str(item["metadata"]["name"])).startswith(f"{name}-")]

    def select_event(event: Object) -> Object | None:
        is_related = last_timestamp(event) >= str(metadata["creationTimestamp"]) and _is_job_event(event, name, others)
        return without_managers(event) if is_related else None

    events, _ = api.items(collection("v1", "events", metadata["namespace"]), reduce=select_event)
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
    metadata = job["metadata"]
    named, _ = api.items(
        collection("v1", "configmaps", metadata["namespace"]), labelSelector=f"{Label.JOB}={metadata['name']}"
    )
    run = metadata["labels"].get(Label.RUN_ID)
    return [item for item in named if item["metadata"]["labels"].get(Label.RUN_ID) == run]


def last_timestamp(event: Object) -> str:
    """Return the time of an event's last occurrence, to the second."""
    times = (event.get("lastTimestamp"), event.get("eventTime"), event["metadata"].get("creationTimestamp"))
    return timestamp(epoch(next((str(time) for time in times if time), None))) or ""


def _is_job_event(event: Object, name: str, longer_names: Sequence[str]) -> bool:
    involved = event.get("involvedObject") or {}
    object_name = str(involved.get("name", ""))
    if involved.get("kind") == "Workload":  # Kueue's, as in pytorchjob-digits-1a2b3
        object_name = object_name.partition("-")[2]
    return _matches_name(object_name, name) and not any(_matches_name(object_name, other) for other in longer_names)


def _matches_name(object_name: str, name: str) -> bool:
    return object_name == name or object_name.startswith(f"{name}-")


Run = tuple[str, str, str]
"""Namespace, name and run id."""


def of_all(
    jobs: Iterable[Object], pods: Iterable[Object], queue_state: Callable[[Object], Queued | None]
) -> list[Snapshot]:
    """Return a snapshot of every job with its pods, oldest first, without events.

    Args:
        jobs: Root objects.
        pods: Pods of all jobs, in any order.
        queue_state: Function that returns the position of a job in a queue.
    """
    by_run: dict[Run, list[Object]] = {}
    for pod in pods:
        by_run.setdefault(_run_of(pod), []).append(pod)
    in_order = sorted(jobs, key=lambda job: (job["metadata"]["creationTimestamp"], job["metadata"]["name"]))
    return [Snapshot(job, _in_order(by_run.get(_run_of(job), ())), queued=queue_state(job)) for job in in_order]


def of_one(job: Object, pods: Iterable[Object], events: Sequence[Object]) -> Snapshot:
    """Return the snapshot of a job, with the pods of this run and the events about these objects.

    Pods of a deleted job with the same name may still be terminating.
    """
    own_pods = _in_order(pod for pod in pods if _run_of(pod) == _run_of(job))
    uids = {item["metadata"]["uid"] for item in (job, *own_pods)}
    related_events = [event for event in events if event["involvedObject"].get("uid") in uids]
    return Snapshot(job, own_pods, tuple(sorted(related_events, key=last_timestamp)), queued(job))


def _run_of(item: Object) -> Run:
    """Return the run of a job or a pod."""
    metadata = item["metadata"]
    labels = metadata.get("labels") or {}
    return str(metadata.get("namespace")), str(labels.get(Label.JOB)), str(labels.get(Label.RUN_ID))


def _in_order(pods: Iterable[Object]) -> tuple[Object, ...]:
    """Return pods sorted by name, with worker-10 after worker-9."""
    return tuple(sorted(pods, key=lambda pod: (len(pod["metadata"]["name"]), pod["metadata"]["name"])))


class Jobs:
    """Root objects that ``kubectl ddp`` submitted, without those that an operator created from them."""

    def __init__(self, api: Api, namespace: str, notice: Callable[[str], None]) -> None:
        """Create a lookup in one namespace.

        Args:
            api: API server.
            namespace: Namespace in which names are looked up.
            notice: Called with a warning for each kind that may not be listed.
        """
        self._api = api
        self._namespace = namespace
        self._notice = notice
        self._noticed: set[str] = set()

    def all(self, namespace: str | None) -> list[Object]:
        """Return the jobs of a namespace, or of all. Kinds that may not be listed result in a warning, and so does each
        DDPJob without objects.

        Raises the error of the first forbidden kind if the others have no job.
        """
        answers, rootless = run_in_threads(
            lambda: map_in_threads(lambda kind: self._list_kind(kind, namespace), [*ENGINES.values()]),
            lambda: self._without_root(namespace),
        )
        refusals = [answer for answer in answers if isinstance(answer, Forbidden)]
        found = [job for answer in answers if not isinstance(answer, Forbidden) for job in answer]
        if refusals and not found:
            raise refusals[0]
        for message in (*(refused.message for refused in refusals), *rootless):  # a job would seem to be missing
            if message not in self._noticed:
                self._noticed.add(message)
                self._notice(f"warning: {message}")
        return found

    def _without_root(self, namespace: str | None) -> list[str]:
        """Return a sentence about each DDPJob without objects."""
        try:
            items, _ = self._api.items(ddpjobs_path(namespace), reduce=without_managers)
        except (NotServed, Forbidden):
            return []
        return [text for item in items if (text := job_kinds.why_no_root(item)) is not None]

    def _list_kind(self, kind: EngineKind, namespace: str | None) -> list[Object] | Forbidden:
        try:
            items, _ = self._api.items(path(kind, namespace), reduce=without_managers, labelSelector=Label.JOB)
        except NotServed:
            return []
        except Forbidden as refusal:
            return refusal
        return [job for item in items if _is_managed_root(job := with_type_meta(kind, item))]

    def named(self, name: str) -> Object:
        """Return the root object of a job. Raises NotFound."""
        answers = map_in_threads(lambda kind: self._fetch(kind, name), [*ENGINES.values()])
        job = next((answer for answer in answers if isinstance(answer, dict)), None)
        if job is not None:
            return job
        if refusal := next((answer for answer in answers if isinstance(answer, DdpError)), None):
            raise refusal
        if (reason := self._why_no_root(name)) is not None:
            raise NotFound(reason, hint=f"'kubectl describe ddp {name} -n {self._namespace}' shows its events.")
        raise NoSuchJob(
            name,
            f"Job '{name}' does not exist in namespace '{self._namespace}' of context '{self._api.connection.where}'.",
            hint=f"'{program()} list{location_flags()}' shows all jobs; -n chooses another namespace.",
        )

    def _why_no_root(self, name: str) -> str | None:
        """Return a sentence about the DDPJob of this name if it has no objects."""
        try:
            job = self._api.get(f"{ddpjobs_path(self._namespace)}/{name}")
        except (NotServed, NotFound, Forbidden):
            return None
        return job_kinds.why_no_root(job)

    def _fetch(self, kind: EngineKind, name: str) -> Object | DdpError | None:
        """Return the job of one kind, or the error of reading it; ``None`` if it does not exist."""
        try:
            job = with_type_meta(kind, self._api.get(f"{path(kind, self._namespace)}/{name}"))
        except (NotServed, NotFound):
            return None
        except Forbidden as refusal:
            return refusal
        if _is_managed_root(job):
            return job
        return NotFound(
            f"The {kind.kind} '{name}' in namespace '{self._namespace}' was not submitted by {program()}.",
            hint="Use kubectl for it.",
        )

    def active_job(self, name: str) -> Object:
        """Return the root object of an unfinished job. Raises NotFound, UsageError."""
        job = self.named(name)
        if {"Succeeded", "Failed"} & job_kinds.conditions(job).keys():
            raise UsageError(
                f"Job '{name}' is over and cannot be changed.",
                hint=f"Delete it: '{program()} delete {name}{location_flags()}'.",
            )
        return job

    def change(self, job: Object, patch: Object, **query: str) -> None:
        """Apply a merge patch to the job with this uid."""
        metadata = {**patch.get("metadata", {}), "uid": job["metadata"]["uid"]}
        self._api.merge(self._path_of(job), {**patch, "metadata": metadata}, **query)

    def delete(self, job: Object) -> None:
        """Delete the job with this uid, and its dependents in the background."""
        self._api.delete(self._path_of(job), uid=job["metadata"]["uid"])

    def _path_of(self, job: Object) -> str:
        return f"{path(job_kinds.engine_of(job), self._namespace)}/{job['metadata']['name']}"


def find_name_conflict(api: Api, namespace: str, job: Object) -> Object | None:
    """Return a job with the same name and another kind; ``None`` if there is none or it may not be read.

    Its pods would have the same labels as those of ``job``, and partly the same names.
    """

    def find(kind: EngineKind) -> Object | None:
        try:
            found = with_type_meta(kind, api.get(f"{path(kind, namespace)}/{job['metadata']['name']}"))
        except (NotServed, NotFound, Forbidden):
            return None
        return found if _is_managed_root(found) else None

    return next(
        filter(None, map_in_threads(find, [kind for kind in ENGINES.values() if kind.kind != job["kind"]])), None
    )


def path(kind: EngineKind, namespace: str | None) -> str:
    """Return the path of the collection of a kind."""
    return collection(kind.api_version, kind.plural, namespace)


def ddpjobs_path(namespace: str | None) -> str:
    """Return the path of the collection of DDPJobs."""
    return collection(job_kinds.API_VERSION, job_kinds.PLURAL, namespace)


def with_type_meta(kind: EngineKind, job: Object) -> Object:
    """Return a job with its kind, which lists omit, and a status, which is missing until an operator has set it."""
    return {"apiVersion": kind.api_version, "kind": kind.kind, "status": {}} | job


def _is_managed_root(job: Object) -> bool:
    """Return whether the object is a root object of ours, and not a store or one that an operator created."""
    owners = job["metadata"].get("ownerReferences") or ()
    is_made = any(owner.get("controller") for owner in owners)
    return not is_made and job_kinds.kind_of(job) is not None and Label.JOB in (job["metadata"].get("labels") or {})
