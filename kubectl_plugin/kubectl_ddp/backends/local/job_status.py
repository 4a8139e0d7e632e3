"""Status of a job of this machine: its conditions, and whether its engine lives.

Conditions are set and replaced by the rules of the Kubeflow operator (``pkg/util/status.go``).
"""

from __future__ import annotations

import copy
import json
import os
import select
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kubectl_ddp.backends.local.directory import TEMPORARY, JobDirectory, read_json, root_of, write_json
from kubectl_ddp.backends.local.process import Identity, kill, marked
from kubectl_ddp.kube.objects import Object, Snapshot
from kubectl_ddp.status.job_state import ENGINE_LOST

FINAL: Final = frozenset({"Succeeded", "Failed"})

_DISPLACES: Final = {"Running": {"Restarting"}, "Restarting": {"Running"}}
"""Condition → the conditions that it replaces."""


def is_true(status: Mapping[str, Any], condition: str) -> bool:
    """Return True if the job has the condition with status True."""
    return any(item["type"] == condition and item["status"] == "True" for item in status.get("conditions") or ())


def is_finished(status: Mapping[str, Any]) -> bool:
    """Return True if the job has succeeded or failed."""
    return any(is_true(status, condition) for condition in FINAL)


def set_condition(status: dict[str, Any], condition: str, value: str, *, reason: str, message: str, now: str) -> bool:
    """Set a condition and return True if it changed. The conditions of a finished job do not change."""
    present = {item["type"]: item for item in status.get("conditions") or ()}
    before = present.get(condition)
    if is_finished(status) or (before is not None and (before["status"], before["reason"]) == (value, reason)):
        return False
    if before is not None and condition == "Created":
        return False
    moved = before is None or before["status"] != value
    entry = {
        "type": condition,
        "status": value,
        "reason": reason,
        "message": message,
        "lastUpdateTime": now,
        "lastTransitionTime": now if before is None or moved else before["lastTransitionTime"],
    }
    remaining = [item for kind, item in present.items() if kind not in {condition, *_DISPLACES.get(condition, ())}]
    if condition in FINAL:
        remaining = [item | {"status": "False"} if item["type"] == "Running" else item for item in remaining]
    status["conditions"] = [*remaining, entry]
    return True


_LOST_EXIT_CODE: Final = 137


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """Process that runs a job, or that is about to start the engine."""

    identity: Identity
    is_starting: bool

    @property
    def is_gone(self) -> bool:
        """True if the engine has ended. An engine on another machine cannot be checked and counts as running."""
        return self.identity.is_here() and not self.identity.is_alive()


def claim(directory: JobDirectory, *, is_starting: bool) -> None:
    """Record that this process runs the job, or is starting its engine."""
    identity = Identity.of(os.getpid()).to_json()
    write_json(directory.engine_file, {**identity, "starting": is_starting})


def engine_of(directory: JobDirectory) -> EngineProcess | None:
    """Return the job's engine, running or not; None if there never was one."""
    document = read_json(directory.engine_file)
    identity = Identity.from_json(document)
    return EngineProcess(identity, bool(document.get("starting"))) if identity is not None else None


def snapshot(directory: JobDirectory) -> Snapshot:
    """Return the job from its files.

    Raises:
        NotFound: If the job does not exist.
    """
    # The order matters: an engine that has ended wrote its last status before this read, and removed the directory of a
    # deleted job completely.
    engine = engine_of(directory)
    is_lost = engine is None or engine.is_gone
    objects = directory.objects()
    written = directory.status()
    job = {**root_of(objects), "status": written.get("job") or {}}
    pods = written.get("pods") or []
    if is_lost and not is_finished(job["status"]):
        _mark_lost(job, pods, engine)
    return Snapshot(job=job, pods=tuple(pods), events=tuple(written.get("events") or ()))


def _mark_lost(job: Object, pods: list[Object], engine: EngineProcess | None) -> None:
    process = f" (process {engine.identity.pid})" if engine is not None else ""
    text = f"The local engine{process} ended without reporting a status: it was killed, or the machine was restarted."
    job["status"] = copy.deepcopy(job["status"])
    # The time of the loss is not recorded; the engine's last update is the closest.
    moment = _last_update_time(job)
    set_condition(job["status"], "Failed", "True", reason=ENGINE_LOST, message=text, now=moment)
    for pod in pods:
        if pod["status"]["phase"] not in {"Succeeded", "Failed"}:
            pod["status"]["phase"] = "Failed"
            status = pod["status"]["containerStatuses"][0]
            ended = {"exitCode": _LOST_EXIT_CODE, "reason": ENGINE_LOST, "message": "", "finishedAt": moment}
            status.update({"ready": False, "state": {"terminated": ended}})


def _last_update_time(job: Object) -> str:
    times = [item["lastUpdateTime"] for item in job["status"].get("conditions") or ()]
    return str(max([*times, str(job["metadata"].get("creationTimestamp", ""))]))


def wait_until_gone(identity: Identity) -> None:
    """Block until a process has ended."""
    pidfd = identity.open()
    if pidfd is None:
        return
    try:
        waiting = select.poll()
        waiting.register(pidfd, select.POLLIN)
        waiting.poll()
    finally:
        os.close(pidfd)


def remove_orphans(directory: JobDirectory) -> None:
    """Remove what a dead engine left outside of the job's directory: processes and scratch directories."""
    uid = root_of(directory.objects())["metadata"].get("uid")
    while uid and (left := marked(f"{uid}/")):
        identities = [_identity(pid) for pid in left]
        kill(left)
        for identity in identities:
            if identity is not None:
                wait_until_gone(identity)
    for pod in directory.status().get("pods") or ():
        for temporary in json.loads((pod["metadata"].get("annotations") or {}).get(TEMPORARY, "[]")):
            shutil.rmtree(temporary, ignore_errors=True)


def _identity(pid: int) -> Identity | None:
    try:
        return Identity.of(pid)
    except ProcessLookupError:
        return None


def remove(directory: JobDirectory) -> None:
    """Remove the directory of a job: rename it atomically, then delete its files."""
    trash = directory.path.with_name(f".{directory.name}.deleted.{os.getpid()}")
    try:
        directory.path.rename(trash)
    except FileNotFoundError:
        return
    shutil.rmtree(trash, ignore_errors=True)
