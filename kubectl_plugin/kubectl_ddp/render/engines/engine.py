"""Settings for rendering one kind of root object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ddp_trainer.common import constants
from kubectl_ddp.kube.job_kinds import Root


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTemplates:
    """Templates and settings of one engine."""

    root: Root
    template: str
    """Template of the root object."""
    before: tuple[str, ...] = ()
    """Templates of objects that must exist before the root."""
    beside: tuple[str, ...] = ()
    """Additional templates of this engine."""
    container: str = constants.CONTAINER
    """Name of the trainer's container."""
    job_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that the engine expects on the batch Job inside a set."""
    restart_policy: str | None = "Never"
    """Restart policy of the pod template; None if the operator sets it."""
    has_subdomain: bool = False
    """True if a Service with the job's name provides the pods' DNS names; it is rendered with the job."""
    limits_job: bool = True
    """True if the deadline is set on the batch Job; otherwise it is set on the root object."""
