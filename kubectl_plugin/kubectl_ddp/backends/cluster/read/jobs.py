"""Lookup of jobs on an API server. All kinds of root objects are queried concurrently."""

from __future__ import annotations

from collections.abc import Callable

from ddp_trainer.common.constants import Label
from kubectl_ddp.backends.cluster.http.api import Api, collection
from kubectl_ddp.backends.cluster.http.api_errors import NotServed
from kubectl_ddp.backends.cluster.read.pod_transform import without_managers
from kubectl_ddp.engines import ENGINES, EngineKind
from kubectl_ddp.errors import DdpError, Forbidden, NoSuchJob, NotFound, UsageError
from kubectl_ddp.kube import ddpjob, job_kinds
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.util.concurrency import map_concurrently, run_concurrently
from kubectl_ddp.util.process import location_flags, program


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
        answers, rootless = run_concurrently(
            lambda: map_concurrently(lambda kind: self._list_kind(kind, namespace), [*ENGINES.values()]),
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
        return [text for item in items if (text := ddpjob.why_no_root(item)) is not None]

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
        answers = map_concurrently(lambda kind: self._fetch(kind, name), [*ENGINES.values()])
        job = next((answer for answer in answers if isinstance(answer, dict)), None)
        if job is not None:
            return job
        if refusal := next((answer for answer in answers if isinstance(answer, DdpError)), None):
            raise refusal
        if (reason := self._why_no_root(name)) is not None:
            raise NotFound(reason, hint=f"'kubectl describe ddp {name} -n {self._namespace}' shows its events.")
        raise NoSuchJob(
            name,
            f"There is no job '{name}' in namespace '{self._namespace}' of context '{self._api.connection.where}'.",
            hint=f"'{program()} list{location_flags()}' names them all; -n chooses another namespace.",
        )

    def _why_no_root(self, name: str) -> str | None:
        """Return a sentence about the DDPJob of this name if it has no objects."""
        try:
            job = self._api.get(f"{ddpjobs_path(self._namespace)}/{name}")
        except (NotServed, NotFound, Forbidden):
            return None
        return ddpjob.why_no_root(job)

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
        about = {**patch.get("metadata", {}), "uid": job["metadata"]["uid"]}
        self._api.merge(self._path_of(job), {**patch, "metadata": about}, **query)

    def delete(self, job: Object) -> None:
        """Delete the job with this uid, and its dependents in the background."""
        self._api.delete(self._path_of(job), uid=job["metadata"]["uid"])

    def _path_of(self, job: Object) -> str:
        return f"{path(job_kinds.engine_of(job), self._namespace)}/{job['metadata']['name']}"


def find_conflicting_job(api: Api, namespace: str, job: Object) -> Object | None:
    """Return a job with the same name and another kind; ``None`` if there is none or it may not be read.

    Its pods would have the same labels as those of ``job``, and partly the same names.
    """

    def asked(kind: EngineKind) -> Object | None:
        try:
            found = with_type_meta(kind, api.get(f"{path(kind, namespace)}/{job['metadata']['name']}"))
        except (NotServed, NotFound, Forbidden):
            return None
        return found if _is_managed_root(found) else None

    return next(
        filter(None, map_concurrently(asked, [kind for kind in ENGINES.values() if kind.kind != job["kind"]])), None
    )


def path(kind: EngineKind, namespace: str | None) -> str:
    """Return the path of the collection of a kind."""
    return collection(kind.api_version, kind.plural, namespace)


def ddpjobs_path(namespace: str | None) -> str:
    """Return the path of the collection of DDPJobs."""
    return collection(ddpjob.API_VERSION, ddpjob.PLURAL, namespace)


def with_type_meta(kind: EngineKind, job: Object) -> Object:
    """Return a job with its kind, which lists omit, and a status, which is missing until an operator has set it."""
    return {"apiVersion": kind.api_version, "kind": kind.kind, "status": {}} | job


def _is_managed_root(job: Object) -> bool:
    """Return whether the object is a root object of ours, and not a store or one that an operator created."""
    owners = job["metadata"].get("ownerReferences") or ()
    is_made = any(owner.get("controller") for owner in owners)
    return not is_made and job_kinds.kind_of(job) is not None and Label.JOB in (job["metadata"].get("labels") or {})
