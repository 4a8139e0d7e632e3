"""Replacement of a finished run by a new one. Objects cannot run twice, so they are deleted and created again.

1. The specification, the code and the run id of the new run are stored in a record: a ConfigMap without an owner, and
   further ones if the code has several parts.
2. The old root object, or the DDPJob that owns it, is deleted, and with it all that it owns.
3. The new run is submitted.
4. The record is deleted.

If the command is interrupted, the old run, the record or the new run exists. Repeating the command completes it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Final

from ddp_trainer.common.constants import FIELD_MANAGER, Annotation, Label
from kubectl_ddp.backends.cluster.http.api import Api, collection
from kubectl_ddp.backends.cluster.http.api_errors import Conflict, NotServed
from kubectl_ddp.backends.cluster.read.jobs import ddpjobs_path, path
from kubectl_ddp.backends.cluster.write.submission import INCOMPLETE
from kubectl_ddp.backends.job_recovery import RUN, run_of
from kubectl_ddp.engines import RUNTIMES
from kubectl_ddp.errors import AlreadyExists, DdpError, Forbidden, NotFound
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.util.process import location_flags, program

PAUSE_SECONDS: Final = 0.2
TRIES: Final = 150
"""Number of polls for the deletion. Finalizers of an operator may delay it by seconds."""


def recreate(
    api: Api, old: Sequence[Object], objects: Sequence[Object], submit: Callable[[], object], namespace: str
) -> None:
    """Replace a run by a new one, or complete an interrupted replacement.

    Args:
        api: API server.
        old: Root object of the old run, after the DDPJob that owns it; empty if it is deleted already.
        objects: Objects of the new run.
        submit: Submits the new run.
        namespace: Namespace of the job.

    Raises:
        DdpError: If the old run is not deleted in time, or the submission fails. The record is kept for another
            attempt.
    """
    wanted = job_kinds.root_of(list(objects))
    name, run = str(wanted["metadata"]["name"]), str(wanted["metadata"]["labels"][Label.RUN_ID])
    for record in records_of(objects):
        _write_down(api, record, namespace)
    if old and old[-1]["metadata"]["labels"].get(Label.RUN_ID) != run:
        _delete_and_wait(api, old)
    try:
        submit()
    except DdpError as error:
        error.hint = f"{error.hint} What the job is made of is kept: {_restart_command(name)} tries again.".strip()
        raise
    with contextlib.suppress(DdpError):  # the run exists; the remaining record is harmless
        delete_record(api, name, namespace)


def pending_restart(api: Api, name: str, namespace: str, job: Object | None) -> list[Object]:
    """Return the record of a new run whose replacement of the old run was interrupted; empty if there is none.

    Args:
        api: API server.
        name: Name of the job.
        namespace: Namespace of the job.
        job: Existing root object.
    """
    try:
        records = _read_records(api, name, namespace)
    except Forbidden:
        return []
    records = [record for record in records if run_of(record) == run_of(records[0])]
    if not records or job is None:
        return records
    metadata = job["metadata"]
    if metadata["labels"].get(Label.RUN_ID) == run_of(records[0]):
        return records if INCOMPLETE in (metadata.get("annotations") or {}) else []
    return records if "deletionTimestamp" in metadata else []


def delete_record(api: Api, name: str, namespace: str) -> bool:
    """Delete the record of a job. Returns true if one existed and may be deleted."""
    try:
        records = _read_records(api, name, namespace)
        for record in reversed(records):  # without the first, nothing leads to the others
            metadata = record["metadata"]
            api.delete(f"{_records(namespace)}/{metadata['name']}", uid=metadata["uid"])
    except (NotFound, Conflict, Forbidden):
        return False
    return bool(records)


def _read_records(api: Api, name: str, namespace: str) -> list[Object]:
    """Return the ConfigMaps of a record, the first one first, and what earlier records have left."""
    found: list[Object] = []
    with contextlib.suppress(NotFound):
        while run_of(record := api.get(f"{_records(namespace)}/{_name_of(name, len(found))}")) is not None:
            found.append(record)
    return found


def records_of(objects: Sequence[Object]) -> list[Object]:
    """Return the ConfigMaps from which a rendered job can be rendered again."""
    metadata = job_kinds.root_of(list(objects))["metadata"]
    parts = [item for item in objects if item["kind"] == "ConfigMap"] or [{}]
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": _name_of(metadata["name"], number),
                "labels": {Label.MANAGED_BY: FIELD_MANAGER},
                "annotations": {
                    RUN: metadata["labels"][Label.RUN_ID],
                    Annotation.SPEC: metadata["annotations"][Annotation.SPEC],
                },
            },
            **{key: part[key] for key in ("data", "binaryData") if key in part},
        }
        for number, part in enumerate(parts)
    ]


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


def _delete_and_wait(api: Api, old: Sequence[Object]) -> None:
    """Delete the first of the objects, and wait until all are gone."""
    with contextlib.suppress(NotFound, Conflict):
        api.delete(_path(old[0]), uid=old[0]["metadata"]["uid"])
    for _ in range(TRIES):
        remaining = [item for item in old if _exists(api, item)]
        if not remaining:
            return
        time.sleep(PAUSE_SECONDS)
    name = old[0]["metadata"]["name"]
    raise DdpError(
        f"The {remaining[0]['kind']} '{name}' was deleted but still exists; no new one was created.",
        hint=f"Check its finalizers with kubectl. Once it is gone, {_restart_command(name)} finishes it.",
    )


def _path(item: Object) -> str:
    name, namespace = item["metadata"]["name"], item["metadata"]["namespace"]
    is_ddpjob = item["kind"] == job_kinds.KIND
    return f"{ddpjobs_path(namespace) if is_ddpjob else path(job_kinds.engine_of(item), namespace)}/{name}"


def _exists(api: Api, item: Object) -> bool:
    try:
        return bool(api.get(_path(item))["metadata"]["uid"] == item["metadata"]["uid"])
    except NotFound:
        return False


def _records(namespace: str) -> str:
    return collection("v1", "configmaps", namespace)


def _name_of(job: str, number: int) -> str:
    return f"{job}-restart" + (f"-{number}" if number else "")


def _restart_command(name: str) -> str:
    return f"'{program()} restart {name}{location_flags()}'"


def delete_remains(api: Api, name: str, namespace: str) -> bool:
    """Delete the ownerless objects of a job that does not exist. Returns true if there were any.

    Objects with an owner are deleted with their owner.
    """
    found = delete_record(api, name, namespace)
    for version, plural in RUNTIMES.values():
        path = f"{collection(version, plural, namespace)}/{name}"
        try:
            metadata = api.get(path)["metadata"]
        except (NotFound, NotServed):
            continue
        if (metadata.get("labels") or {}).get(Label.JOB) == name and not metadata.get("ownerReferences"):
            api.delete(path, uid=metadata["uid"])
            found = True
    return found
