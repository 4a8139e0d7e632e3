"""Data model of findings, and the order of causes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kubectl_ddp.errors import Cancelled, InfrastructureFailed, JobFailed, StillPending


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
    STORE = "store"
    """The rendezvous store does not run, so the ranks cannot connect."""
    RENDEZVOUS = "rendezvous"
    STARTING = "starting"
    RUNNING = "running"


EXIT_HUNG: Final = 14

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
    Cause.HANG: EXIT_HUNG,
    Cause.ERROR: JobFailed.exit_code,
    Cause.NODE_UNWELL: _INFRASTRUCTURE,
    Cause.RUNNING: 0,
}
"""Exit code of ``why`` by cause; any other cause keeps the job from running, so the job counts as pending."""

_ORDER: Final = {cause: place for place, cause in enumerate(Cause)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One cause, with evidence and a remedy."""

    cause: Cause
    message: str
    evidence: tuple[str, ...] = ()
    """Observations, quoted from their sources."""
    help: str = ""
    """Remedy in one sentence, with the command in quotes."""
    is_aside: bool = False
    """True if it does not block the job now: it is over, or the job can run without."""
    exit_code: int | None = None
    """Exit code if it differs from the cause's."""

    @property
    def code(self) -> int:
        """Exit code of ``why`` if this is the first finding."""
        return self.exit_code if self.exit_code is not None else EXIT_CODES.get(self.cause, _PENDING)

    @property
    def order(self) -> tuple[bool, int]:
        """Sort key among the findings of a job."""
        return self.is_aside, _ORDER[self.cause]
