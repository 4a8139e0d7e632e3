"""Data model of findings, and the order of causes.

How to add a cause:

1. Add a member of :class:`Cause`, placed by its precedence, and its exit code to ``EXIT_CODES`` if that is not 13.
2. Find it in the module of its topic, such as ``scheduling.py`` for pods that cannot be scheduled. A row of
   ``_HELPS`` there is enough if only the hint differs. A new function of checks is listed in ``diagnosis.py``: in
   ``OF_WAITING_PODS`` if pods do not run, else in ``CHECKS``.
3. Add the row to ``docs/on-call.md``, and a case to ``test_why_chain.py``, where ``refused(message, index)`` is a pod
   that the scheduler refused. A stage on a cluster (``tests/cluster/staged_failures.py``) is optional.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kubectl_ddp.errors import Cancelled, InfrastructureFailed, JobFailed, StillPending
from kubectl_ddp.hang.analysis import HANG_CODE
from kubectl_ddp.util.finding import Finding, Severity


class Cause(StrEnum):
    """Causes in order of precedence: a cause precedes those that it explains."""

    DELETING = "deleting"
    FINISHED = "finished"
    ENGINE_LOST = "engine-lost"
    """The local engine died."""
    NODE_LOST = "node-lost"
    PREEMPTED = "preempted"
    EVICTED = "evicted"
    POD_DELETED = "pod-deleted"
    OPERATOR = "operator"
    """No controller acts on the job: its operator is absent, fails, or leaves it to another."""
    QUEUED = "queued"
    SUSPENDED = "suspended"
    QUOTA = "quota"
    ADMISSION = "admission"
    """The API server rejects the pods."""
    UNSCHEDULABLE = "unschedulable"
    VOLUME = "volume"
    IMAGE = "image"
    CONFIG = "config"
    """A ConfigMap, a Secret or a key is missing."""
    INIT = "init"
    SANDBOX = "sandbox"
    """The node cannot set up the pod's network."""
    START = "start"
    """The container's program cannot be started."""
    DEADLINE = "deadline"
    HOST_OOM = "host-oom"
    GPU_OOM = "gpu-oom"
    GPU_FAULT = "gpu-fault"
    """A GPU failed or is missing."""
    NODE_UNWELL = "node-unwell"
    """A node reports pressure or a problem detector's finding, which may explain a hang."""
    HANG = "hang"
    ERROR = "error"
    """First error of any rank."""
    SIDECAR = "sidecar"
    """A container beside the job's runs on and keeps a pod from ending."""
    STORE = "store"
    """The rendezvous store does not run, so the ranks cannot connect."""
    OUTSIDE_GROUP = "outside-group"
    """A node that runs cannot join the group."""
    RENDEZVOUS = "rendezvous"
    NESTED_LAUNCHER = "nested-launcher"
    """The script starts a launcher in every rank."""
    DISK_FULL = "disk-full"
    """A running job cannot write its checkpoints or logs."""
    STARTING = "starting"
    RUNNING = "running"


_PENDING: Final = StillPending.exit_code
_INFRASTRUCTURE: Final = InfrastructureFailed.exit_code

EXIT_CODES: Final[Mapping[Cause, int]] = {
    Cause.DELETING: Cancelled.exit_code,
    Cause.FINISHED: 0,
    Cause.ENGINE_LOST: _INFRASTRUCTURE,
    Cause.NODE_LOST: _INFRASTRUCTURE,
    Cause.PREEMPTED: _INFRASTRUCTURE,
    Cause.EVICTED: _INFRASTRUCTURE,
    Cause.POD_DELETED: _INFRASTRUCTURE,
    Cause.SUSPENDED: Cancelled.exit_code,
    Cause.DEADLINE: _INFRASTRUCTURE,
    Cause.HOST_OOM: _INFRASTRUCTURE,
    Cause.GPU_OOM: JobFailed.exit_code,
    Cause.GPU_FAULT: _INFRASTRUCTURE,
    Cause.START: JobFailed.exit_code,
    Cause.HANG: HANG_CODE,
    Cause.ERROR: JobFailed.exit_code,
    Cause.NODE_UNWELL: _INFRASTRUCTURE,
    Cause.RUNNING: 0,
}
"""Exit code of ``why`` by cause; any other cause keeps the job from running, so the job counts as pending."""

LAST_RESORTS: Final = frozenset({Cause.STARTING, Cause.RUNNING})
"""Causes that are reported only if all other checks find nothing."""

_ORDER: Final = {cause: place for place, cause in enumerate(Cause)}


@dataclass(frozen=True, slots=True)
class CauseFinding(Finding):
    """A cause of a job's state, which is its subject. With severity INFO it does not block the job now."""

    exit_code: int = 0
    """Exit code of ``why`` if this is the first finding."""

    @property
    def order(self) -> tuple[bool, int]:
        """Sort key among the findings of a job."""
        return self.severity is Severity.INFO, _ORDER[Cause(self.subject)]


def diagnosis(
    cause: Cause,
    message: str,
    hint: str = "",
    evidence: Iterable[str] = (),
    *,
    is_aside: bool = False,
    exit_code: int | None = None,
) -> CauseFinding:
    """Return the finding for a cause.

    Args:
        cause: Cause of the job's state.
        message: What was found.
        hint: Remedy in one sentence, with the command in quotes.
        evidence: Observations, quoted from their sources; empty and repeated ones are left out.
        is_aside: True if it does not block the job now: it is over, or the job can run without.
        exit_code: Exit code if it differs from the cause's; 0 for a problem that does not affect the job.
    """
    severity = Severity.WARNING if exit_code == 0 else Severity.ERROR
    if cause is Cause.FINISHED or cause in LAST_RESORTS:
        severity = Severity.OK
    code = EXIT_CODES.get(cause, _PENDING) if exit_code is None else exit_code
    lines = tuple(filter(None, dict.fromkeys(evidence)))
    return CauseFinding(Severity.INFO if is_aside else severity, message, hint, lines, cause, exit_code=code)
