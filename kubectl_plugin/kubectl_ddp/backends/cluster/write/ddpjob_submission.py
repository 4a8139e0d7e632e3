"""Submission of a job as one DDPJob, and the creation of the objects that a DDPJob or a TrainJob owns.

1. The DDPJob is created, with the digest of the job.
2. The ConfigMaps with its code are created, owned by it. The controller waits for them.
3. The submission ends when the controller has created the root object, or has refused the job.

A controller answers within a second by the first ``status``, and later while another one takes over. Without an answer,
the DDPJob is deleted, and the command creates the objects itself if it may. The API server deletes it only if no
controller has written to it meanwhile.

An interrupted command leaves a DDPJob. Submitting the same job again completes it.

The controller creates all other objects. The owner exists first, so each step can be repeated:
an object that the owner has already is kept, and an object of another owner is never changed. The root comes last,
suspended.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Final

from ddp_trainer.common.constants import FIELD_MANAGER, Annotation, Label
from kubectl_ddp.backends.cluster.http.api import Api, collection
from kubectl_ddp.backends.cluster.http.api_errors import Conflict, NotServed, PolicyDenied
from kubectl_ddp.backends.cluster.http.resources import Discovery
from kubectl_ddp.backends.cluster.read.jobs import ddpjobs_path, find_name_conflict
from kubectl_ddp.backends.cluster.write.submission import Submission
from kubectl_ddp.code.archive import read_back
from kubectl_ddp.errors import AlreadyExists, DdpError, Forbidden, NotFound, UsageError
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object, condition_of
from kubectl_ddp.spec.serialization import spec_from_dict, to_ddpjob

PAUSE_SECONDS: Final = 0.1
TIMEOUT_SECONDS: Final = 30.0
"""Time in which the controller creates the root object, or refuses the job."""
TRIES: Final = int(TIMEOUT_SECONDS / PAUSE_SECONDS)
ANSWER_SECONDS: Final = 5.0
"""Time in which the controller writes its first status."""
ANSWER_TRIES: Final = int(ANSWER_SECONDS / PAUSE_SECONDS)
COPIED: Final = (Annotation.DIGEST, Annotation.SUBMITTED)


def ddpjob_of(objects: Sequence[Object]) -> Object:
    """Return the DDPJob of a rendered job."""
    root = job_kinds.root_of(list(objects))
    job = to_ddpjob(spec_from_dict(job_kinds.submitted_spec(root)))
    annotations = {key.value: root["metadata"]["annotations"].get(key, "") for key in COPIED}
    code = read_back([item for item in objects if item["kind"] == "ConfigMap"])
    job["metadata"]["annotations"] = annotations | ({job_kinds.CODE: code.hash} if code is not None else {})
    job["metadata"]["labels"] = {Label.MANAGED_BY.value: FIELD_MANAGER}
    return job


def is_observed(api: Api, path: str, job: Object) -> bool:
    """Return whether a controller sees this generation of a DDPJob within the time of an answer."""
    generation = job["metadata"].get("generation", 0)
    for _ in range(ANSWER_TRIES):
        if (job.get("status") or {}).get("observedGeneration", 0) >= generation:
            return True
        time.sleep(PAUSE_SECONDS)
        with contextlib.suppress(Forbidden, NotFound):  # the change is made
            job = api.get(path)
    return False


class DDPJobSubmission:
    """Submission of one job as a DDPJob."""

    def __init__(
        self,
        api: Api,
        objects: Sequence[Object],
        namespace: str,
        *,
        may_create_objects: Callable[[], bool],
        notice: Callable[[str], None],
        sleep: Callable[[float], None] = time.sleep,
        earlier: Object | None = None,
    ) -> None:
        """Create a submission.

        Args:
            api: API server.
            objects: Objects of the rendered job.
            namespace: Namespace of the job.
            may_create_objects: Returns true if the user may create these objects; called if no controller answers.
            notice: Called with the sentence about a missing controller.
            sleep: Waits for some seconds.
            earlier: DDPJob of which this is a new run. Its specification, labels and annotations are kept as written.
        """
        self._api = api
        self._may_create_objects = functools.cache(may_create_objects)  # asked with each poll
        self._notice = notice
        self._code = [item for item in objects if item["kind"] == "ConfigMap"]
        self._job = ddpjob_of(objects)
        if earlier is not None:
            self._take_over(earlier)
        self._namespace = namespace
        self._sleep = sleep
        self._collection = ddpjobs_path(namespace)
        self._path = f"{self._collection}/{self._job['metadata']['name']}"

    def _take_over(self, earlier: Object) -> None:
        """Keep what users have written into an earlier DDPJob, so that applying the same file again changes nothing."""
        self._job["spec"] = {key: value for key, value in earlier["spec"].items() if key != job_kinds.SUSPEND}
        earlier_metadata, metadata = earlier["metadata"], self._job["metadata"]
        metadata["labels"] = {**metadata["labels"], **(earlier_metadata.get("labels") or {})}
        metadata["annotations"] = {**(earlier_metadata.get("annotations") or {}), **metadata["annotations"]}

    def submit(self) -> bool:
        """Create the job. Returns false if the user may not create a DDPJob here, or no controller acts on it.

        An identical job is left unchanged.

        Raises:
            AlreadyExists: If there is another DDPJob of this name.
            UsageError: If the API server or the controller refuses the job.
            DdpError: If no controller acts on it.
        """
        try:
            job = self._claim()
        except PolicyDenied:
            raise
        except (Forbidden, NotServed):
            return False
        try:
            for item in self._code:
                self._send(item, job)
            return self._wait_for_root(job)
        except BaseException:  # Ctrl-C too
            if not (job.get("status") or {}).get("root"):
                with contextlib.suppress(DdpError):
                    self._api.delete(self._path, uid=job["metadata"]["uid"])
            raise

    def _claim(self) -> Object:
        """Return the DDPJob, which is created unless the identical one exists."""
        with contextlib.suppress(AlreadyExists):
            return self._api.create(self._collection, self._job)
        existing = self._api.get(self._path)
        metadata, key = existing["metadata"], Annotation.DIGEST
        is_same = (metadata.get("annotations") or {}).get(key) == self._job["metadata"]["annotations"][key]
        if "deletionTimestamp" in metadata or not is_same:
            hint = "It is being deleted; try again in a moment." if is_same else "Choose another --name, or delete it."
            raise AlreadyExists(
                f"There is another {job_kinds.KIND} '{metadata['name']}' in namespace '{self._namespace}' already.",
                hint=hint,
            )
        return existing

    def _send(self, item: Object, job: Object) -> None:
        """Create a ConfigMap with code. Its run has no id yet."""
        labels = {key: value for key, value in item["metadata"]["labels"].items() if key != Label.RUN_ID}
        metadata = {
            "name": item["metadata"]["name"],
            "labels": labels,
            "ownerReferences": [job_kinds.owner_reference(job)],
        }
        where = collection("v1", "configmaps", self._namespace)
        for _ in range(TRIES):
            with contextlib.suppress(AlreadyExists):
                self._api.create(where, {**item, "metadata": metadata})
                return
            with contextlib.suppress(NotFound, Conflict):
                existing = self._api.get(f"{where}/{metadata['name']}")
                if job["metadata"]["uid"] in job_kinds.owner_uids(existing):
                    return
                if job_kinds.owner_of(existing) != job["metadata"]["name"]:
                    break
                self._api.delete(f"{where}/{metadata['name']}", uid=existing["metadata"]["uid"])  # of a deleted job
            self._sleep(PAUSE_SECONDS)
        raise AlreadyExists(
            f"There is another ConfigMap '{metadata['name']}' in namespace '{self._namespace}' already.",
            hint="Choose another --name.",
        )

    def _wait_for_root(self, job: Object) -> bool:
        """Return true once the root object is there, and false if the DDPJob was withdrawn."""
        for count in range(TRIES):
            try:
                found = self._api.get(self._path)
            except NotFound:
                raise DdpError(f"The {job_kinds.KIND} '{job['metadata']['name']}' was deleted meanwhile.") from None
            valid = condition_of(found, "Valid")
            if (found.get("status") or {}).get("root"):
                return True
            if valid.get("status") == "False":
                raise UsageError(str(valid.get("message")))
            if count >= ANSWER_TRIES and not found.get("status") and self._delete_if_not_observed(found):
                return False
            self._sleep(PAUSE_SECONDS)
        raise DdpError(
            f"No controller has acted on the {job_kinds.KIND} '{job['metadata']['name']}' for {TIMEOUT_SECONDS:g} s.",
            hint="Check that ddp-controller runs with --ddpjobs; the chart ddp-platform installs it.",
        )

    def _delete_if_not_observed(self, job: Object) -> bool:
        """Delete a DDPJob that no controller has seen, with its code. Returns false if it stays."""
        if not self._may_create_objects():
            return False
        metadata = job["metadata"]
        try:
            self._api.delete(self._path, uid=metadata["uid"], version=metadata["resourceVersion"])
        except Conflict:  # somebody has changed it, perhaps a controller
            return False
        for item in self._code:
            with contextlib.suppress(NotFound, Conflict):
                where = f"{collection('v1', 'configmaps', self._namespace)}/{item['metadata']['name']}"
                existing = self._api.get(where)
                if metadata["uid"] in job_kinds.owner_uids(existing):
                    self._api.delete(where, uid=existing["metadata"]["uid"])
        self._notice(
            f"No controller has acted on the {job_kinds.KIND} '{metadata['name']}' for {ANSWER_SECONDS:g} s, so this "
            "command creates the objects of the job. The chart ddp-platform installs the controller."
        )
        return True


class OwnedSubmission(Submission):
    """Objects of one job that a DDPJob or a TrainJob owns."""

    def __init__(
        self,
        api: Api,
        objects: Sequence[Object],
        owner: Object,
        *,
        notice: Callable[[str], None],
        discovery: Discovery | None = None,
    ) -> None:
        """Create a submission; see :class:`Submission`.

        Args:
            api: API server.
            objects: Objects of the job.
            owner: The DDPJob or TrainJob.
            notice: Called with the warnings of the API server.
            discovery: Kinds that the cluster serves.
        """
        super().__init__(api, objects, owner["metadata"]["namespace"], notice=notice, discovery=discovery)
        self._owner: Mapping[str, Any] = job_kinds.owner_reference(owner)

    def create_secret(self) -> None:
        """Create the Secret of the run, if it has one. Its name must be new."""
        for secret in (item for item in self._companions if item["kind"] == "Secret"):
            self._api.create(self._collection(secret), self._owned(secret))

    def create_missing(self) -> Object:
        """Create what is missing except for the Secret, and return the root object.

        Raises:
            AlreadyExists: If an object of the same name has another owner.
            Conflict: If objects of an earlier job are being deleted, or an operator is not ready. Try again.
        """
        if (other := find_name_conflict(self._api, self._namespace, self._root)) is not None:
            raise self._conflict(other)
        self.create_missing_objects()
        root = deepcopy(self._root)
        job_kinds.put(root, self._kind.suspend, value=True)
        try:
            return self._ensure(root)
        except Forbidden as refusal:
            if self._is_too_early(refusal):
                raise Conflict(refusal.message) from refusal
            raise

    def create_missing_objects(self) -> None:
        """Create what is missing except for the Secret and the root. Raises AlreadyExists and Conflict."""
        for item in (*self._before, *self._companions):
            if item["kind"] != "Secret":
                self._ensure(item)

    def _ensure(self, item: Object) -> Object:
        """Return the object, which is created if it is missing."""
        owned = self._owned(item)
        with contextlib.suppress(AlreadyExists):
            return self._api.create(self._collection(item), owned)
        existing = self._api.get(self._path(item))
        if self._owner["uid"] not in job_kinds.owner_uids(existing):
            raise self._conflict(existing | {"kind": item["kind"]})
        if item["kind"] != "ConfigMap":
            return existing
        return self._api.apply(self._path(item), owned)  # the submitter sent it before the run had an id

    def _owned(self, item: Object) -> Object:
        owned = deepcopy(item)
        owned["metadata"]["ownerReferences"] = [dict(self._owner)]
        return owned

    def _conflict(self, existing: Object) -> AlreadyExists | Conflict:
        """Return the error for an object of the same name, which an earlier job of the name may have left."""
        owners = [(owner["kind"], owner["name"]) for owner in existing["metadata"].get("ownerReferences") or ()]
        is_leftover = (self._owner["kind"], self._owner["name"]) in owners
        if is_leftover or "deletionTimestamp" in existing["metadata"]:
            return Conflict(
                f"The {existing['kind']} '{existing['metadata']['name']}' of an earlier job is being deleted."
            )
        return self._already_exists_error(existing)
