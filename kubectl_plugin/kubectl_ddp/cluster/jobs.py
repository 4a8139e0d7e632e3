"""The jobs of ours among an API server's objects: all four kinds are asked at once, since any may hold the job."""

from __future__ import annotations

from collections.abc import Callable

from ddp_trainer.common.constants import Label
from kubectl_ddp import roots
from kubectl_ddp.backend import Object
from kubectl_ddp.cluster.api import Api
from kubectl_ddp.cluster.api_errors import NotServed
from kubectl_ddp.cluster.pod_transform import without_managers
from kubectl_ddp.cluster.resources import collection
from kubectl_ddp.errors import DdpError, Forbidden, NoSuchJob, NotFound, UsageError
from kubectl_ddp.invocation import location_flags, program
from kubectl_ddp.parallel import each

KINDS = tuple(roots.ROOTS.values())


class Jobs:
    """Root objects that were submitted from here, and not those that an operator made of one."""

    def __init__(self, api: Api, namespace: str, notice: Callable[[str], None]) -> None:
        """Those of one namespace.

        Args:
            api: the API server.
            namespace: where a name is looked for.
            notice: told of the kinds that may not be listed.
        """
        self._api = api
        self._namespace = namespace
        self._notice = notice

    def all(self, namespace: str | None) -> list[Object]:
        """Every job of a namespace, or of all; of a kind that may not be listed a notice.

        Raises what the first kind is refused with, when no job is found among the others.
        """
        answers = each(lambda kind: self._list_kind(kind, namespace), KINDS)
        refusals = [answer for answer in answers if isinstance(answer, Forbidden)]
        found = [job for answer in answers if not isinstance(answer, Forbidden) for job in answer]
        if refusals and not found:
            raise refusals[0]
        for refused in refusals:  # else a job that runs would seem not to be there
            self._notice(f"warning: {refused.message}")
        return found

    def _list_kind(self, kind: roots.Root, namespace: str | None) -> list[Object] | Forbidden:
        try:
            items, _ = self._api.items(path(kind, namespace), reduce=without_managers, labelSelector=Label.JOB)
        except NotServed:
            return []
        except Forbidden as refusal:
            return refusal
        return [job for item in items if _is_managed_root(job := with_type_meta(kind, item))]

    def named(self, name: str) -> Object:
        """The root object of a job. Raises NotFound."""
        answers = each(lambda kind: self._fetch(kind, name), KINDS)
        job = next((answer for answer in answers if isinstance(answer, dict)), None)
        if job is not None:
            return job
        if refusal := next((answer for answer in answers if isinstance(answer, DdpError)), None):
            raise refusal
        raise NoSuchJob(
            name,
            f"There is no job '{name}' in namespace '{self._namespace}' of context '{self._api.connection.where}'.",
            hint=f"'{program()} list{location_flags()}' names them all; -n chooses another namespace.",
        )

    def _fetch(self, kind: roots.Root, name: str) -> Object | DdpError | None:
        """The job of a kind, or why it cannot be had; ``None`` when there is none."""
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
        """The root object of a job that is not over. Raises NotFound, UsageError."""
        job = self.named(name)
        if {"Succeeded", "Failed"} & roots.conditions(job).keys():
            raise UsageError(
                f"Job '{name}' is over and cannot be changed.",
                hint=f"Delete it: '{program()} delete {name}{location_flags()}'.",
            )
        return job

    def change(self, job: Object, patch: Object) -> None:
        """Merge a patch into this very job, not into its successor of the same name."""
        about = {**patch.get("metadata", {}), "uid": job["metadata"]["uid"]}
        self._api.merge(self._path_of(job), {**patch, "metadata": about})

    def delete(self, job: Object) -> None:
        """Delete this very job, and in the background what it owns."""
        self._api.delete(self._path_of(job), uid=job["metadata"]["uid"])

    def _path_of(self, job: Object) -> str:
        return f"{path(kind_of(job), self._namespace)}/{job['metadata']['name']}"


def find_conflicting_job(api: Api, namespace: str, job: Object) -> Object | None:
    """A job of ours with the name of ``job`` and of another kind, whose pods would have the same labels, and some the
    same names; None where there is none, or where that may not be read.
    """

    def asked(kind: roots.Root) -> Object | None:
        try:
            found = with_type_meta(kind, api.get(f"{path(kind, namespace)}/{job['metadata']['name']}"))
        except (NotServed, NotFound, Forbidden):
            return None
        return found if _is_managed_root(found) else None

    return next(filter(None, each(asked, [kind for kind in KINDS if kind.kind != job["kind"]])), None)


def path(kind: roots.Root, namespace: str | None) -> str:
    """Where the objects of a kind are."""
    return collection(kind.api_version, kind.plural, namespace)


def kind_of(job: Object) -> roots.Root:
    """The kind of a root object."""
    return roots.kind_of(job) or roots.PYTORCHJOB


def with_type_meta(kind: roots.Root, job: Object) -> Object:
    """A job with its kind, which lists leave out, and a status, which a job that no operator has seen lacks."""
    return {"apiVersion": kind.api_version, "kind": kind.kind, "status": {}} | job


def _is_managed_root(job: Object) -> bool:
    """Whether it is a root of ours, and not what an operator made of one, or a store."""
    owners = job["metadata"].get("ownerReferences") or ()
    is_made = any(owner.get("controller") for owner in owners)
    return not is_made and roots.kind_of(job) is not None and Label.JOB in (job["metadata"].get("labels") or {})
