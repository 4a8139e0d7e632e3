"""Replacement of a finished run by a new one. Objects cannot run twice, so they are deleted and created again.

1. The specification, the code and the run id of the new run are stored in a record: a ConfigMap without an owner.
2. The old root object is deleted, and with it all that it owns.
3. The new run is submitted.
4. The record is deleted.

If the command is interrupted, the old run, the record or the new run exists. Repeating the command completes it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Final

from ddp_trainer.common.constants import FIELD_MANAGER, Annotation, Label
from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.backends.cluster.http.api_errors import Conflict
from kubectl_ddp.backends.cluster.http.resources import collection
from kubectl_ddp.backends.cluster.read.jobs import path
from kubectl_ddp.backends.cluster.write.submission import INCOMPLETE, Submission
from kubectl_ddp.backends.job_recovery import RUN, run_of
from kubectl_ddp.errors import AlreadyExists, DdpError, Forbidden, NotFound
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.util.invocation import location_flags, program

PAUSE_SECONDS: Final = 0.2
TRIES: Final = 150
"""Number of polls for the deletion. Finalizers of an operator may delay it by seconds."""


def renew(api: Api, job: Object | None, objects: Sequence[Object], submission: Submission, namespace: str) -> None:
    """Replace the run of ``job`` by a new one. If ``job`` is None, complete an interrupted replacement.

    Raises:
        DdpError: If the old run is not deleted in time, or the submission fails. The record is kept for another
            attempt.
    """
    wanted = job_kinds.root_of(list(objects))
    name, run = str(wanted["metadata"]["name"]), str(wanted["metadata"]["labels"][Label.RUN_ID])
    _write_down(api, record_of(objects), namespace)
    if job is not None and job["metadata"]["labels"].get(Label.RUN_ID) != run:
        _delete_and_wait(api, job)
    try:
        submission.submit()
    except DdpError as error:
        error.hint = f"{error.hint} What the job is made of is kept: {_restart_command(name)} tries again.".strip()
        raise
    with contextlib.suppress(DdpError):  # the run exists; the remaining record is harmless
        delete_record(api, name, namespace)


def cut_off(api: Api, name: str, namespace: str, job: Object | None) -> Object | None:
    """Return the record of a new run whose replacement of the old run was interrupted; ``None`` if there is none.

    Args:
        api: API server.
        name: Name of the job.
        namespace: Namespace of the job.
        job: Existing root object.
    """
    try:
        record = api.get(f"{_records(namespace)}/{_name_of(name)}")
    except (NotFound, Forbidden):
        return None
    run = run_of(record)
    if run is None or job is None:
        return record if run is not None else None
    about = job["metadata"]
    if about["labels"].get(Label.RUN_ID) == run:
        return record if INCOMPLETE in (about.get("annotations") or {}) else None
    return record if "deletionTimestamp" in about else None


def delete_record(api: Api, name: str, namespace: str) -> bool:
    """Delete the record of a job. Returns true if one existed and may be deleted."""
    where = f"{_records(namespace)}/{_name_of(name)}"
    try:
        record = api.get(where)
        if run_of(record) is None:
            return False
        api.delete(where, uid=record["metadata"]["uid"])
    except (NotFound, Conflict, Forbidden):
        return False
    return True


def record_of(objects: Sequence[Object]) -> Object:
    """Return the ConfigMap from which a rendered job can be rendered again."""
    about = job_kinds.root_of(list(objects))["metadata"]
    code = next((item for item in objects if item["kind"] == "ConfigMap"), {})
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": _name_of(about["name"]),
            "labels": {Label.MANAGED_BY: FIELD_MANAGER},
            "annotations": {
                RUN: about["labels"][Label.RUN_ID],
                Annotation.SPEC: about["annotations"][Annotation.SPEC],
            },
        },
        **{key: code[key] for key in ("data", "binaryData") if key in code},
    }


def _write_down(api: Api, record: Object, namespace: str) -> None:
    """Create the record. An existing record of the same run is kept; that of another run is obsolete and replaced."""
    name = record["metadata"]["name"]
    for _ in range(2):
        with contextlib.suppress(AlreadyExists):
            api.create(_records(namespace), record)
            return
        existing = api.get(f"{_records(namespace)}/{name}")
        run = run_of(existing)
        if run == run_of(record):
            return
        if run is not None:
            api.delete(f"{_records(namespace)}/{name}", uid=existing["metadata"]["uid"])
    raise AlreadyExists(
        f"There is another ConfigMap '{name}' in namespace '{namespace}', under which a restart is written down.",
        hint="Delete or rename it.",
    )


def _delete_and_wait(api: Api, job: Object) -> None:
    about, kind = job["metadata"], job_kinds.engine_of(job)
    where = f"{path(kind, about['namespace'])}/{about['name']}"
    with contextlib.suppress(NotFound, Conflict):
        api.delete(where, uid=about["uid"])
    for _ in range(TRIES):
        if not _exists(api, where, about["uid"]):
            return
        time.sleep(PAUSE_SECONDS)
    raise DdpError(
        f"The {kind.kind} '{about['name']}' was deleted but still exists; no new one was created.",
        hint=f"Check its finalizers with kubectl. Once it is gone, {_restart_command(about['name'])} finishes it.",
    )


def _exists(api: Api, where: str, uid: str) -> bool:
    try:
        return bool(api.get(where)["metadata"]["uid"] == uid)
    except NotFound:
        return False


def _records(namespace: str) -> str:
    return collection("v1", "configmaps", namespace)


def _name_of(job: str) -> str:
    return f"{job}-restart"


def _restart_command(name: str) -> str:
    return f"'{program()} restart {name}{location_flags()}'"
