"""Rules between queue, gang and scheduler of a job."""

from __future__ import annotations

from typing import Final

from kubectl_ddp.engines import Engine
from kubectl_ddp.errors import UsageError
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.values.program import Gang, QueueResize

OF_KUEUE: Final = frozenset({Gang.NONE, Gang.AUTO, Gang.KUEUE, Gang.NATIVE})
"""Gangs with which a queue is one of Kueue's; Volcano and KAI have their own queues."""
SCHEDULERS: Final = {
    Gang.VOLCANO: "volcano",
    Gang.SCHEDULER_PLUGINS: "scheduler-plugins-scheduler",
    Gang.KAI: "kai-scheduler",
}
"""Default names of these schedulers."""


def the_gang_has_a_queue(spec: JobSpec) -> None:
    """Check that a job of Kueue has a queue, and that a job of the scheduler plugins has none."""
    if spec.gang is Gang.KUEUE and spec.queue is None:
        raise UsageError("Kueue starts nothing that is in no queue.", hint="Add --queue NAME, a LocalQueue.")
    if spec.gang is Gang.SCHEDULER_PLUGINS and spec.queue is not None:
        raise UsageError(
            f"The scheduler plugins have no queues, and the queue is '{spec.queue}'.", hint="Leave one of them out."
        )


def the_priority_has_a_queue(spec: JobSpec) -> None:
    """Check that a queue priority comes with a queue of Kueue, since only Kueue supports it."""
    if spec.queue_priority is not None and not is_kueue_managed(spec):
        raise UsageError(
            f"The queue priority '{spec.queue_priority}' is a class of Kueue's, and the job is in no queue of Kueue's.",
            hint="Add --queue NAME, a LocalQueue, or use --priority, which is that of the pods.",
        )


def the_queue_can_resize(spec: JobSpec) -> None:
    """Check that Kueue can resize the job while it runs, if that is requested."""
    if spec.queue_resize is not QueueResize.RUNNING:
        return
    reasons = {
        "it is in no queue of Kueue's": not is_kueue_managed(spec),
        f"its engine is '{spec.engine}', and Kueue resizes only --engine {Engine.JOB}": spec.engine is not Engine.JOB,
        f"its size is fixed by --nnodes {spec.nnodes}": not spec.nnodes.is_elastic,
        "Kueue resizes no job whose topology it decides (--gang kueue)": spec.gang is Gang.KUEUE,
    }
    if why := next((why for why, holds in reasons.items() if holds), ""):
        raise UsageError(
            f"The job cannot be resized while it runs in a queue: {why}.",
            hint=f"Leave out --queue-resize {QueueResize.RUNNING}, or change that.",
        )


def starting_pod_count(spec: JobSpec) -> int:
    """Return the number of worker pods with which the job is created. Spares exist beside the maximum of nodes only."""
    return spec.nnodes.minimum if spec.queue_resize is QueueResize.RUNNING else spec.largest_pod_count


def is_kueue_managed(spec: JobSpec) -> bool:
    """Return True if Kueue decides when the job runs."""
    return spec.queue is not None and spec.gang in OF_KUEUE
