"""Creation of the objects of a DDPJob or a TrainJob, which owns all of them.

The owner exists first, so each step can be repeated: an object that the owner has already is kept, and an object of
another owner is never changed. The root comes last, suspended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.backends.cluster.http.api_errors import Conflict
from kubectl_ddp.backends.cluster.http.resources import Discovery
from kubectl_ddp.backends.cluster.read.jobs import find_conflicting_job
from kubectl_ddp.backends.cluster.write.submission import Submission
from kubectl_ddp.errors import AlreadyExists, Forbidden
from kubectl_ddp.kube import ddpjob, job_kinds
from kubectl_ddp.kube.objects import Object


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
        self._owner: Mapping[str, Any] = ddpjob.owner_reference(owner)

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
        if (other := find_conflicting_job(self._api, self._namespace, self._root)) is not None:
            raise self._conflict(other)
        self.create_companions()
        root = deepcopy(self._root)
        job_kinds.put(root, self._kind.suspend, value=True)
        try:
            return self._ensure(root)
        except Forbidden as refusal:
            if self._is_too_early(refusal):
                raise Conflict(refusal.message) from refusal
            raise

    def create_companions(self) -> None:
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
        if self._owner["uid"] not in ddpjob.owner_uids(existing):
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
        owners = [(each["kind"], each["name"]) for each in existing["metadata"].get("ownerReferences") or ()]
        is_leftover = (self._owner["kind"], self._owner["name"]) in owners
        if is_leftover or "deletionTimestamp" in existing["metadata"]:
            return Conflict(
                f"The {existing['kind']} '{existing['metadata']['name']}' of an earlier job is being deleted."
            )
        return self._already_exists_error(existing)
