"""Findings, and which of them is told first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kubectl_ddp.errors import Cancelled, InfrastructureFailed, JobFailed, StillPending


class Cause(StrEnum):
    """What can be the matter, in the order in which it is told: what explains the others goes before them."""

    DELETING = "deleting"
    FINISHED = "finished"
    ENGINE_LOST = "engine-lost"
    """The local engine died."""
    NODE_LOST = "node-lost"
    PREEMPTED = "preempted"
    EVICTED = "evicted"
    POD_DELETED = "pod-deleted"
    OPERATOR = "operator"
    """Nobody acts on the job: its operator is absent, fails, or leaves it to another."""
    QUEUED = "queued"
    SUSPENDED = "suspended"
    QUOTA = "quota"
    ADMISSION = "admission"
    """The API server refuses its pods."""
    UNSCHEDULABLE = "unschedulable"
    VOLUME = "volume"
    IMAGE = "image"
    CONFIG = "config"
    """A ConfigMap, a Secret or a key of one that is not there."""
    INIT = "init"
    SANDBOX = "sandbox"
    """The node cannot give the pod its network."""
    START = "start"
    """The container's program cannot be started."""
    DEADLINE = "deadline"
    HOST_OOM = "host-oom"
    GPU_OOM = "gpu-oom"
    GPU_FAULT = "gpu-fault"
    """A GPU failed, or is missing."""
    NODE_UNWELL = "node-unwell"
    """A node reports pressure, or what a problem detector found, which may explain a hang."""
    HANG = "hang"
    ERROR = "error"
    """The first error of any rank."""
    STORE = "store"
    """The ranks cannot meet, because the rendezvous store is not there."""
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
"""What ``why`` exits with; a cause that is not here keeps the job from running, so it is still pending."""

_ORDER: Final = {cause: place for place, cause in enumerate(Cause)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One cause, with what shows it and what helps."""

    cause: Cause
    message: str
    evidence: tuple[str, ...] = ()
    """What was seen, in the words of who said it."""
    help: str = ""
    """What to do: one sentence, with the command in quotes."""
    is_aside: bool = False
    """It does not keep the job from going on now: it is over, or the job can do without."""
    exit_code: int | None = None
    """Where it is another than the cause's."""

    @property
    def code(self) -> int:
        """What ``why`` exits with when this is the first."""
        return self.exit_code if self.exit_code is not None else EXIT_CODES.get(self.cause, _PENDING)

    @property
    def order(self) -> tuple[bool, int]:
        """Place among the findings of a job."""
        return self.is_aside, _ORDER[self.cause]
