"""Reconciliation of DDPJobs: the objects of each one, its size, its suspension and its status.

1. The specification is resolved and rendered as ``kubectl ddp submit`` does. An invalid one is reported in the
   condition Valid, and nothing is created.
2. The Secret of the run is created under a random name, and then the run id is written to the status. A process that
   dies in between leaves an unused Secret, which is deleted with the DDPJob.
3. The other objects are created, the root last and suspended; then the root is resumed. The DDPJob owns all of them.
4. From then on only the size and the suspension of the root are changed, and the status is kept.

Every step reads what is there, so another process can continue after each request.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ddp_controller.ddpjob_status import (
    JobResult,
    expires_at,
    is_over,
    is_suspended,
    result_of,
    status_of_lost_run,
    status_of_run,
    status_without_run,
)
from ddp_controller.executor import merge_same, report_event
from ddp_controller.world import MOST_REASON_CHARACTERS
from ddp_trainer.common.constants import Annotation
from ddp_trainer.common.safe_text import escape_control_chars
from kubectl_ddp.backends.cluster import ClusterBackend
from kubectl_ddp.backends.cluster.http.api import Api, collection
from kubectl_ddp.backends.cluster.http.api_errors import Conflict, Expired
from kubectl_ddp.backends.cluster.http.resources import Discovery
from kubectl_ddp.backends.cluster.read.jobs import ddpjobs_path, path
from kubectl_ddp.backends.cluster.write.ddpjob_submission import OwnedSubmission
from kubectl_ddp.backends.cluster.write.scaling import scaling_error, set_active, stale_annotations, to_scale
from kubectl_ddp.client.layers import layer_of_object
from kubectl_ddp.client.submission import Prepared, prepare_object
from kubectl_ddp.code.archive import Code, read_back
from kubectl_ddp.engines import ENGINES
from kubectl_ddp.errors import DdpError, NotFound, Unreachable, UsageError
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.kueue_queue import KUEUE_QUEUE
from kubectl_ddp.kube.objects import Object, Snapshot, condition_of, epoch
from kubectl_ddp.spec.resolve import DefaultingContext, Resolved, resolve
from kubectl_ddp.values.program import Script
from kubectl_ddp.version import default_image

PAUSE_SECONDS: Final = 1.0
"""Time until a job is looked at again that waits for something that is not watched."""
LONGEST_PAUSE_SECONDS: Final = 60.0
TRANSIENT: Final = (Conflict, Unreachable, Expired)
"""Errors that say nothing about the job."""
MALFORMED: Final = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""Errors that one job must not cause to the others."""
NOTED: Final[Mapping[str, str]] = {
    "Valid": "Warning",
    "Running": "Normal",
    "Suspended": "Normal",
    "Succeeded": "Normal",
    "Failed": "Warning",
}
"""Condition whose change is an event → type of the event."""

Version = tuple[str, ...]


@dataclass(slots=True)
class _Seen:
    """Result of the last reconciliation of a DDPJob."""

    version: Version
    """Versions of the objects that it read."""
    again_at: float | None
    """Unix time at which it is looked at again without a change; None for never."""
    pause: float = 0.0


class Reconciler:
    """Creates and changes the objects of DDPJobs, and writes their status."""

    def __init__(self, api: Api, *, log: Callable[..., None], clock: Callable[[], float] = time.time) -> None:
        self._api = api
        self._log = log
        self._clock = clock
        self._seen: dict[str, _Seen] = {}
        self._discovery = Discovery(api)

    def reconcile_all(
        self, jobs: list[Object], runs: Mapping[str, Snapshot], *, may_act: Callable[[], bool] = lambda: True
    ) -> None:
        """Reconcile the DDPJobs that have changed, or whose time has come.

        Args:
            jobs: All DDPJobs.
            runs: Uid of a DDPJob → its root object with pods.
            may_act: Returns false once this process has lost the Lease or has to stop.
        """
        before, self._seen = self._seen, {}
        for job in jobs:
            uid, now = str(job["metadata"]["uid"]), self._clock()
            seen, version = before.get(uid), _version(job, runs.get(uid))
            is_due = seen is None or seen.version != version or (seen.again_at is not None and seen.again_at <= now)
            if seen is not None and not is_due:
                self._seen[uid] = seen
            elif may_act():
                self._seen[uid] = self._process(job, runs.get(uid), version, seen)

    def _process(self, job: Object, run: Snapshot | None, version: Version, seen: _Seen | None) -> _Seen:
        """Reconcile one DDPJob, and return when to do so again."""
        pause = seen.pause if seen is not None else 0.0
        try:
            again_at = self.reconcile(job, run)
        except (DdpError, *MALFORMED) as error:
            pause = min(max(PAUSE_SECONDS, 2 * pause), LONGEST_PAUSE_SECONDS)
            if not isinstance(error, (Conflict, NotFound)):  # decided on an old copy, or just deleted
                reason = escape_control_chars(f"{type(error).__name__}: {error}"[:MOST_REASON_CHARACTERS])
                self._log("refused", action="reconcile", job=_name(job), error=reason)
            return _Seen(version, self._clock() + pause, pause)
        return _Seen(version, again_at)

    def reconcile(self, job: Object, run: Snapshot | None) -> float | None:
        """Reconcile one DDPJob, and return the Unix time at which to do so again; None for its next change.

        Raises the errors of the API server.
        """
        if "deletionTimestamp" in job["metadata"]:
            return None
        if is_over(job):
            return self._delete_expired(job)
        status = job.get("status") or {}
        if run is None and status.get("root"):
            run = self._fetch_root(job)
            if run is None:
                self._write_status(job, status_of_lost_run(job, self._clock()))
                return None
        if run is None:
            return self._start(job)
        self._keep(job, run)
        return None

    # -- creation ------------------------------------------------------------------------------------------------------

    def _start(self, job: Object) -> float | None:
        """Create the objects of a DDPJob. Returns when to look again."""
        now = self._clock()
        try:
            code, is_awaited = self._code(job)
            if is_awaited:
                waiting = JobResult("Unknown", "WaitingForCode", "The submitter has not sent the code yet.")
                self._write_status(job, status_without_run(job, waiting, now))
                return now + PAUSE_SECONDS
            prepared = self._prepared(job, code)
            run_id = (job.get("status") or {}).get("runId") or secrets.token_hex(6)
            submission = self._submission(job, prepared, run_id)
            if is_suspended(job):  # no run before it is wanted: Kueue would start one that exists
                self._write_status(job, status_without_run(job, JobResult(), now))
                return None
            if not (job.get("status") or {}).get("runId"):
                submission.create_secret()
                status = {**status_without_run(job, JobResult(), now), "runId": run_id, "image": prepared.spec.image}
                job = self._write_status(job, status)
            root = submission.create_missing()
        except TRANSIENT:
            raise
        except (DdpError, *MALFORMED) as error:
            reason = "Invalid" if isinstance(error, (UsageError, *MALFORMED)) else type(error).__name__
            result = JobResult("False", reason, escape_control_chars(str(error)))
            self._write_status(job, status_without_run(job, result, now))
            self._discovery = Discovery(self._api)  # a kind may be installed until the next look
            return now + LONGEST_PAUSE_SECONDS
        self._log("created", job=_name(job), root=f"{root['kind']}/{root['metadata']['name']}")
        self._keep(job, Snapshot(root, ()))
        return None

    def _submission(self, job: Object, prepared: Prepared, run_id: str) -> OwnedSubmission:
        objects = prepared.objects(run_id)
        annotations = job_kinds.root_of(objects)["metadata"]["annotations"]
        created = epoch(job["metadata"].get("creationTimestamp")) or self._clock()
        submitted = (job["metadata"].get("annotations") or {}).get(Annotation.SUBMITTED)
        annotations[Annotation.SUBMITTED] = submitted or f"{created:.3f}"
        notice = lambda text: self._log("notice", job=_name(job), text=text)  # noqa: E731
        return OwnedSubmission(self._api, objects, job, notice=notice, discovery=self._discovery)

    def _prepared(self, job: Object, code: Code | None) -> Prepared:
        """Return the job as ``kubectl ddp submit`` would prepare it. Raises UsageError and PreflightFailed."""
        backend = backend_of(self._api, job, self._log)
        layer = {key: given for key, given in layer_of_object(job).items() if key != "namespace"}
        context = DefaultingContext(image=default_image(), shared=lambda _: backend.shared_presets(), reads_files=False)
        resolved = resolve([layer], context)
        # The controller deletes the DDPJob after this time. A root that expired first would count as deleted by a user.
        resolved = replace(resolved, spec=replace(resolved.spec, ttl_seconds=None))
        _check_code(resolved, code)
        return prepare_object(resolved, code).resolve_engine(backend)

    def _code(self, job: Object) -> tuple[Code | None, bool]:
        """Return the code that the submitter sent, and whether it is still awaited."""
        metadata = job["metadata"]
        wanted = (metadata.get("annotations") or {}).get(job_kinds.CODE)
        if wanted is None:
            return None, False
        found: list[Object] = []
        with contextlib.suppress(NotFound):
            while True:
                name = f"{metadata['name']}-code-{wanted}" + (f"-{len(found)}" if found else "")
                found.append(self._api.get(f"{collection('v1', 'configmaps', metadata['namespace'])}/{name}"))
        code = read_back(found)
        return (code, False) if code is not None and code.hash == wanted else (None, True)

    # -- changes -------------------------------------------------------------------------------------------------------

    def _keep(self, job: Object, run: Snapshot) -> None:
        """Suspend, resume and scale the run as the DDPJob asks, and write its status."""
        self._sync_suspend(job, run.job)
        result = self._control_size(job, run.job)
        nodes = (job.get("spec") or {}).get(job_kinds.REPLICAS)
        requested = {} if nodes is None else {"requestedReplicas": nodes}
        self._write_status(job, status_of_run(job, run, result, self._clock()) | requested)

    def _control_size(self, job: Object, root: Object) -> JobResult:
        """Scale the root if ``spec.replicas`` has changed, and return the condition Valid.

        The size of the root may differ from it later: quota and moves of pods change it, too.
        """
        nodes = (job.get("spec") or {}).get(job_kinds.REPLICAS)
        if nodes is None or nodes == (job.get("status") or {}).get("requestedReplicas"):
            is_current = condition_of(job, "Valid").get("observedGeneration") == job["metadata"].get("generation")
            return result_of(job) if is_current else JobResult()
        try:
            patch = to_scale(root, nodes)
            try:
                self._change(root, patch)
            except UsageError as refusal:
                raise scaling_error(root, refusal) from refusal
        except UsageError as error:
            return JobResult("False", "CannotScale", str(error))
        self._log("scaled", job=_name(job), nodes=nodes)
        return JobResult()

    def _sync_suspend(self, job: Object, root: Object) -> None:
        wanted = is_suspended(job)
        if KUEUE_QUEUE in root["metadata"]["labels"]:
            is_new = condition_of(job, "Suspended").get("observedGeneration") != job["metadata"].get("generation")
            if is_new and (wanted or condition_of(job, "Suspended").get("status") == "True"):
                if not wanted and (stale := stale_annotations(root)):
                    self._change(root, stale)
                set_active(self._api, root, active=not wanted, sleep=_try_later)
            return
        if job_kinds.is_suspend_requested(root) != wanted:
            patch: Object = {}
            job_kinds.put(patch, job_kinds.engine_of(root).suspend, wanted)
            self._change(root, patch)
            job_kinds.put(root, job_kinds.engine_of(root).suspend, wanted)

    def _change(self, root: Object, patch: Object) -> None:
        merge_same(self._api, path(job_kinds.engine_of(root), root["metadata"]["namespace"]), root, patch)

    def _delete_expired(self, job: Object) -> float | None:
        """Delete a finished DDPJob whose time to live is over. Returns when to look again."""
        end = expires_at(job)
        if end is None or end > self._clock():
            return end
        with contextlib.suppress(NotFound):
            self._api.delete(_path(job), uid=job["metadata"]["uid"])
        self._log("expired", job=_name(job))
        return None

    # -- status --------------------------------------------------------------------------------------------------------

    def _fetch_root(self, job: Object) -> Snapshot | None:
        """Return the root object if it exists; the watch of the DDPJobs may be ahead of that of the roots."""
        metadata = job["metadata"]
        for kind in ENGINES.values():
            if f"{kind.resource}/{metadata['name']}" == job["status"]["root"]:
                with contextlib.suppress(NotFound):
                    found = self._api.get(f"{path(kind, metadata['namespace'])}/{metadata['name']}")
                    return Snapshot(found, ()) if job_kinds.owner_of(found) == metadata["name"] else None
        return None

    def _write_status(self, job: Object, status: Object) -> Object:
        """Write the status if it has changed, report it in events, and return the DDPJob with it."""
        if status == job.get("status"):
            return job
        metadata = job["metadata"]
        stale = {key: None for key in (job.get("status") or {}) if key not in status}
        meta = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        changed = self._api.merge(f"{_path(job)}/status", {"metadata": meta, "status": {**status, **stale}})
        for kind, severity in NOTED.items():
            is_trouble = kind == "Valid"
            now, before = condition_of(changed, kind), condition_of(job, kind)
            holds = (now.get("status") == "False") if is_trouble else (now.get("status") == "True")
            if holds and (now["status"], now["message"]) != (before.get("status"), before.get("message")):
                with contextlib.suppress(DdpError):
                    report_event(self._api, job, severity, now["reason"], now["message"] or str(now["reason"]))
        return changed


def _check_code(resolved: Resolved, code: Code | None) -> None:
    """Check that the code of a job was sent. Raises UsageError."""
    spec = resolved.spec
    is_script = isinstance(spec.program, Script) and spec.code_claim is None
    if code is None and (is_script or spec.code is not None):
        what = f"script '{spec.program.path}'" if isinstance(spec.program, Script) else f"directory '{spec.code}'"
        raise UsageError(
            f"The {what} is on the machine of the submitter, and the cluster does not have it.",
            hint="Create the job with 'kubectl ddp submit', or name a module, a command or a codeClaim.",
        )


def _version(job: Object, run: Snapshot | None) -> Version:
    """Return the versions of all objects that a decision about a DDPJob is based on."""
    objects = (job, run.job, *run.pods) if run is not None else (job,)
    return tuple(str(item["metadata"].get("resourceVersion")) for item in objects)


def backend_of(api: Api, job: Object, log: Callable[..., None]) -> ClusterBackend:
    """Return the cluster with the namespace of a job; its notices go to the log."""
    return ClusterBackend(
        connection=replace(api.connection, namespace=str(job["metadata"]["namespace"])),
        notice=lambda text: log("notice", job=_name(job), text=text),
    )


def _path(job: Object) -> str:
    return f"{ddpjobs_path(job['metadata']['namespace'])}/{job['metadata']['name']}"


def _name(job: Object) -> str:
    return f"{job['metadata']['namespace']}/{job['metadata']['name']}"


def _try_later(_seconds: float) -> None:
    raise Conflict("Kueue has not created the Workload yet.")
