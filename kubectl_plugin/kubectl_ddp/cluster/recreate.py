"""A new run in the place of one that is over: an object cannot be run twice, so it goes, and another one comes.

1. What the new run is made of, its words, its code and its run id, is written down: a ConfigMap that nobody owns.
2. The old root is deleted, and with it all that it owned.
3. The new run is submitted.
4. The record goes.

Wherever the command dies, the old run, the record or the new run is there, and the same command again goes on from it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Final

from ddp_trainer.common.constants import FIELD_MANAGER, Annotation, Label
from kubectl_ddp import roots
from kubectl_ddp.backend import Object
from kubectl_ddp.cluster.api import Api
from kubectl_ddp.cluster.api_errors import Conflict
from kubectl_ddp.cluster.jobs import kind_of, path
from kubectl_ddp.cluster.resources import collection
from kubectl_ddp.cluster.submission import INCOMPLETE, Submission
from kubectl_ddp.errors import AlreadyExists, DdpError, Forbidden, NotFound
from kubectl_ddp.invocation import location_flags, program
from kubectl_ddp.job_recovery import RUN, run_of

PAUSE_SECONDS: Final = 0.2
TRIES: Final = 150
"""Finalizers of an operator may hold the old object for some seconds."""


def renew(
    api: Api,
    job: Object | None,
    objects: Sequence[Object],
    submission: Submission,
    namespace: str,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Put a new run in the place of ``job``; of what an earlier try has left, which may be nothing, when cut off.

    Raises DdpError when the old one does not go, and what submitting raises; what is needed to try again is kept then.
    """
    wanted = roots.root_of(list(objects))
    name, run = str(wanted["metadata"]["name"]), str(wanted["metadata"]["labels"][Label.RUN_ID])
    _write_down(api, record_of(objects), namespace)
    if job is not None and job["metadata"]["labels"].get(Label.RUN_ID) != run:
        _delete_and_wait(api, job, sleep)
    try:
        submission.submit()
    except DdpError as error:
        error.hint = f"{error.hint} What the job is made of is kept: {_restart_command(name)} tries again.".strip()
        raise
    with contextlib.suppress(DdpError):  # the run is there; what is left of its beginning does no harm
        delete_record(api, name, namespace)


def cut_off(api: Api, name: str, namespace: str, job: Object | None) -> Object | None:
    """The record of a new run that was to take the place of an old one, which is gone; ``None`` when there is none.

    Args:
        api: the API server.
        name: of the job.
        namespace: of the job.
        job: the root that is there.
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
    """Delete the record of a job; returns whether there was one that may be deleted."""
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
    """What a rendered job can be rendered from again."""
    about = roots.root_of(list(objects))["metadata"]
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
    """Create the record; that of this very run stays as it is, and that of another has no meaning any more."""
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


def _delete_and_wait(api: Api, job: Object, sleep: Callable[[float], None]) -> None:
    about, kind = job["metadata"], kind_of(job)
    where = f"{path(kind, about['namespace'])}/{about['name']}"
    with contextlib.suppress(NotFound, Conflict):
        api.delete(where, uid=about["uid"])
    for _ in range(TRIES):
        if not _exists(api, where, about["uid"]):
            return
        sleep(PAUSE_SECONDS)
    raise DdpError(
        f"The {kind.kind} '{about['name']}' was deleted and does not go; nothing was created in its place.",
        hint=f"Look at its finalizers with kubectl; {_restart_command(about['name'])} goes on when it is gone.",
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
