"""What a kind of root object needs to be rendered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ddp_trainer.common import constants
from kubectl_ddp.roots import Root


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTemplates:
    """One engine: its templates, and in what they differ from the others'."""

    root: Root
    template: str
    """Template of the root object."""
    before: tuple[str, ...] = ()
    """Templates of what the API server must know before it takes the root."""
    beside: tuple[str, ...] = ()
    """Templates of what only this engine needs beside the root."""
    container: str = constants.CONTAINER
    """Name of the trainer's container."""
    job_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that the engine looks for on the batch Job inside of a set."""
    restart_policy: str | None = "Never"
    """Of the pod template; ``None`` where the operator sets it."""
    has_subdomain: bool = False
    """Whether the pods are named by a Service of the job's name, which somebody has to make."""
    limits_job: bool = True
    """Whether the deadline stands at the batch Job; otherwise the root object has it."""
