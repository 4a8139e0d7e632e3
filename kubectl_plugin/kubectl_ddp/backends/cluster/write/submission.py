"""Creation of a rendered job, in an order that is safe if the command is interrupted at any time.

1. The root object is created suspended and marked incomplete, so that no pod of it starts. A create request, unlike an
   apply request, succeeds for only one of two submitters of the same name. The label of Kueue's queue is not set yet,
   because Kueue would start the job. Objects that must exist before the root, such as a TrainingRuntime, are created
   earlier and get their owner afterwards.
2. All other objects are created, owned by the root; Jobs among them suspended too. The Secret of the run is created
   without being read, so that the submitter needs no right to read Secrets.
3. The Jobs are resumed, then the root, in the patch that removes the mark.

An interrupted command leaves a marked root, which runs nothing. Submitting the same job again deletes it and starts
over. Deletion works as for any job, even if only the objects before the root exist.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Final

from ddp_trainer.common.constants import GROUP, Annotation, Label
from kubectl_ddp.backends.cluster.http.api import Api, collection
from kubectl_ddp.backends.cluster.http.api_errors import Conflict
from kubectl_ddp.backends.cluster.http.resources import Discovery, not_served
from kubectl_ddp.backends.cluster.read.jobs import find_name_conflict
from kubectl_ddp.engines import ENGINES, RUNTIMES
from kubectl_ddp.errors import AlreadyExists, DdpError, Forbidden, NotFound, UsageError
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.kueue_queue import KUEUE_QUEUE
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.util.process import location_flags, program

INCOMPLETE: Final = f"{GROUP}/incomplete"
"""Annotation of a root object whose submission is not complete."""

OPTIONAL: Final[Mapping[str, str]] = {"PodMonitor": "Prometheus will not find the job by itself"}
"""Optional kind → consequence of its absence."""

PAUSE_SECONDS: Final = 0.25
TRIES: Final = 120
"""Maximum number of attempts to create an object, in 30 s: the garbage collector may not have deleted an object of this
name yet, or a webhook may not have seen the object before it.
"""

PLATFORM_MONITOR: Final = "ddp-workers"
"""PodMonitor of the chart ddp-platform. In a namespace that has it, Prometheus finds every job."""


class Submission:
    """Submission of one job to a cluster."""

    def __init__(
        self,
        api: Api,
        objects: Sequence[Object],
        namespace: str,
        *,
        notice: Callable[[str], None],
        discovery: Discovery | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Determine which of the objects' kinds the cluster serves.

        Raises:
            PreflightFailed: If the cluster does not serve a kind that the job needs.
            UsageError: If the objects are not exactly one job.
        """
        self._api = api.with_warning_handler(lambda warning: notice(f"warning: {warning}"))
        self._namespace = namespace
        self._sleep = sleep
        found = [(kind, item) for item in objects if (kind := job_kinds.kind_of(item)) is not None]
        if len(found) != 1:
            kinds = ", ".join(engine.kind for engine in ENGINES.values())
            raise UsageError(f"A job is one of {kinds}, with what it needs; here are {len(found)}.")
        [(self._kind, self._root)] = found
        self._plurals = self._served(objects, discovery or Discovery(api), notice)
        self._notice = notice
        others = [item for item in objects if item is not self._root and item["kind"] in self._plurals]
        self._before = [item for item in others if item["kind"] in RUNTIMES]
        self._companions = [
            item for item in others if item["kind"] not in RUNTIMES and not self._is_duplicate_monitor(item)
        ]

    def _served(self, objects: Sequence[Object], discovery: Discovery, notice: Callable[[str], None]) -> dict[str, str]:
        plurals: dict[str, str] = {}
        for item in objects:
            kind = item["kind"]
            plural = discovery.resource_for_object(item)
            if plural is not None:
                plurals[kind] = plural
            elif kind in OPTIONAL:
                notice(f"{kind} is left out, since the cluster does not know it: {OPTIONAL[kind]}.")
            else:
                raise not_served(item["apiVersion"], kind, self._api.connection.where)
        return plurals

    def _is_duplicate_monitor(self, item: Object) -> bool:
        """Return whether the object is a PodMonitor beside that of the platform. Two of them would count every series
        twice.
        """
        if item["kind"] != "PodMonitor":
            return False
        try:
            self._api.get(f"{self._collection(item)}/{PLATFORM_MONITOR}")
        except (NotFound, Forbidden):
            return False
        return True

    def dry_run(self) -> list[Object]:
        """Return the objects as the API server would store them; nothing is changed.

        Raises AlreadyExists and the errors of rejected objects.
        """
        if self._before:
            self._notice(
                f"The {self._kind.kind} itself is not checked: the API server takes one only after its "
                f"{self._before[0]['kind']}, and a dry run creates none."
            )
        objects = [*self._before, self._root, *self._companions]
        wanted = [item for item in objects if not job_kinds.has_dependency(item, objects)]
        try:
            return [self._api.create(self._collection(item), item, dryRun="All") for item in wanted]
        except AlreadyExists:
            if self._is_complete(self._existing()):
                return [self._api.get(self._path(item)) for item in wanted if item["kind"] != "Secret"]
            raise

    def submit(self) -> None:
        """Create the job. An identical existing job is left unchanged. Raises AlreadyExists."""
        root = self._claim()
        if root is None:
            return
        try:
            for item in self._before:
                self._api.merge(self._path(item), {"metadata": {"ownerReferences": _owned_by(root)}})
            for item in self._companions:
                self._create_owned(item, root)
            self._finalize_root(root)
        except BaseException:  # Ctrl-C too: delete a partial job, which has not run
            with contextlib.suppress(DdpError):
                self._delete_root(root)
            raise

    def _claim(self) -> Object | None:
        """Create the root object, suspended and marked; ``None`` if the identical job exists.

        Raises AlreadyExists.
        """
        if (other := find_name_conflict(self._api, self._namespace, self._root)) is not None:
            raise self._already_exists_error(other)
        root = deepcopy(self._root)
        root["metadata"].setdefault("annotations", {})[INCOMPLETE] = "true"
        job_kinds.put(root, self._kind.suspend, value=True)
        root["metadata"]["labels"].pop(KUEUE_QUEUE, None)
        for tried in range(TRIES):
            self._sleep(PAUSE_SECONDS if tried > 1 else 0)
            if not self._is_ready_for_root():
                continue
            try:
                return self._api.create(self._collection(root), root)
            except AlreadyExists:
                pass
            except Forbidden as refusal:
                if not self._is_too_early(refusal) or tried == TRIES - 1:
                    raise
                continue
            with contextlib.suppress(NotFound):  # deleted between the two requests
                existing = self._existing()
                if self._is_complete(existing):
                    return None
                self._delete_root(existing)
        raise self._already_exists_error(self._root)

    def _is_too_early(self, refusal: Forbidden) -> bool:
        """Return whether a webhook of the root's operator has not yet seen the objects created just before.

        Kubeflow Trainer 2.3 has two sentences for it, with different quotation marks.
        """
        names = (item["metadata"]["name"] for item in self._before)
        return any(f"{quote}{name}{quote} not found" in str(refusal) for name in names for quote in "\"'")

    def _is_ready_for_root(self) -> bool:
        """Create the objects that must precede the root. Returns false while those of an earlier job are being deleted.

        Raises AlreadyExists if another object has the name.
        """
        for item in self._before:
            with contextlib.suppress(AlreadyExists):
                self._api.create(self._collection(item), item)
                continue
            try:
                existing = self._api.get(self._path(item))
            except NotFound:
                return False
            if (existing["metadata"].get("labels") or {}).get(Label.JOB) != self._root["metadata"]["name"]:
                raise self._already_exists_error(item)
            if not existing["metadata"].get("ownerReferences"):  # from an interrupted submission
                self._api.apply(self._path(item), item)
            elif not self._exists(self._root):
                with contextlib.suppress(NotFound, Conflict):
                    self._api.delete(self._path(item), uid=existing["metadata"]["uid"])
                return False
        return True

    def _exists(self, item: Object) -> bool:
        try:
            self._api.get(self._path(item))
        except NotFound:
            return False
        return True

    def _existing(self) -> Object:
        """Return the existing root object of this name. Raises NotFound, and AlreadyExists if it is another job."""
        existing = self._api.get(self._path(self._root))
        if "deletionTimestamp" in existing["metadata"]:
            raise self._already_exists_error(self._root, hint="It is being deleted; try again in a moment.")
        if _annotations(existing).get(Annotation.DIGEST) != _annotations(self._root).get(Annotation.DIGEST):
            raise self._already_exists_error(self._root)
        return existing

    @staticmethod
    def _is_complete(root: Object) -> bool:
        return INCOMPLETE not in _annotations(root)

    def _create_owned(self, item: Object, root: Object) -> None:
        """Create an object that is owned by the root. Raises AlreadyExists if another object has the name."""
        owned = deepcopy(item)
        owned["metadata"]["ownerReferences"] = _owned_by(root)
        if owned["kind"] == "Job":
            owned["spec"]["suspend"] = True
        if owned["kind"] == "Secret":
            self._create_without_get(owned)
            return
        for tried in range(TRIES):
            self._sleep(PAUSE_SECONDS if tried > 1 else 0)
            with contextlib.suppress(AlreadyExists):
                self._api.create(self._collection(item), owned)
                return
            with contextlib.suppress(NotFound, Conflict):
                existing = self._api.get(self._path(item))
                if not _is_of(existing, root):
                    raise self._already_exists_error(item)
                if existing["metadata"]["ownerReferences"][0]["uid"] == root["metadata"]["uid"]:
                    self._api.apply(self._path(item), owned)  # created, and the answer was lost
                    return
                self._api.delete(self._path(item), uid=existing["metadata"]["uid"])
        raise self._already_exists_error(item)

    def _create_without_get(self, item: Object) -> None:
        """Create an object without reading an existing one of its name. Raises AlreadyExists.

        The name contains the run id, so only an interrupted submission of the same run can have left it. The garbage
        collector deletes it after its root.
        """
        for tried in range(TRIES):
            self._sleep(PAUSE_SECONDS if tried else 0)
            with contextlib.suppress(AlreadyExists):
                self._api.create(self._collection(item), item)
                return
        raise self._already_exists_error(item, hint="Submit again: each run has a Secret with another name.")

    def _finalize_root(self, root: Object) -> None:
        for item in self._companions:
            if item["kind"] == "Job":
                self._api.merge(self._path(item), {"spec": {"suspend": item["spec"].get("suspend", False)}})
        labels = self._root["metadata"]["labels"]
        queue = {"labels": {KUEUE_QUEUE: labels[KUEUE_QUEUE]}} if KUEUE_QUEUE in labels else {}
        patch: Object = {"metadata": {"uid": root["metadata"]["uid"], "annotations": {INCOMPLETE: None}, **queue}}
        job_kinds.put(patch, self._kind.suspend, job_kinds.is_suspend_requested(self._root))
        self._api.merge(self._path(root), patch)

    def _delete_root(self, root: Object) -> None:
        with contextlib.suppress(NotFound, Conflict):
            self._api.delete(self._path(root), uid=root["metadata"]["uid"])

    def _collection(self, item: Object) -> str:
        namespace = item["metadata"].get("namespace") or self._namespace
        return collection(item["apiVersion"], self._plurals[item["kind"]], namespace)

    def _path(self, item: Object) -> str:
        return f"{self._collection(item)}/{item['metadata']['name']}"

    def _already_exists_error(self, item: Object, *, hint: str = "") -> AlreadyExists:
        name, job = item["metadata"]["name"], self._root["metadata"]["name"]
        where = self._api.connection.where
        namespace = item["metadata"].get("namespace") or self._namespace
        return AlreadyExists(
            f"There is another {item['kind']} '{name}' in namespace '{namespace}' of context '{where}' already.",
            hint=hint or f"Choose another --name, or delete it with '{program()} delete {job}{location_flags()}'.",
        )


def _owned_by(root: Object) -> list[Object]:
    return [
        {name: root[name] for name in ("apiVersion", "kind")}
        | {name: root["metadata"][name] for name in ("name", "uid")}
        | {"controller": False}
    ]


def _annotations(item: Object) -> Mapping[str, str]:
    return item["metadata"].get("annotations") or {}


def _is_of(item: Object, root: Object) -> bool:
    """Return whether an object belongs to the root, or to a deleted root of the same name that is still being cleaned
    up.
    """
    owners = item["metadata"].get("ownerReferences") or ()
    return [(owner["kind"], owner["name"]) for owner in owners[:1]] == [(root["kind"], root["metadata"]["name"])]
