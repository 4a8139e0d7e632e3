"""All current samples of a job's pods, for programs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kubectl_ddp.backends.base import Backend
from kubectl_ddp.errors import DdpError
from kubectl_ddp.kube.objects import Object, Snapshot
from kubectl_ddp.status.metrics_parser import iter_samples
from kubectl_ddp.status.termination_message import is_running, workers
from kubectl_ddp.util.concurrency import each


@dataclass(frozen=True, slots=True)
class Sample:
    """Current value of one series of a pod."""

    pod: str
    name: str
    labels: Mapping[str, str]
    value: float


def read_samples(backend: Backend, snapshot: Snapshot, families: Collection[str] = ()) -> list[Sample]:
    """Return the samples of a job's running worker pods, without the pods that do not answer.

    Args:
        backend: Place of the job.
        snapshot: The job.
        families: Metric families to return (default: all).
    """

    def of_pod(pod: Object) -> list[Sample]:
        try:
            text = backend.metrics(pod, families)
        except DdpError:  # starting, ending, or blocked by a network policy
            return []
        name = str(pod["metadata"]["name"])
        return [
            Sample(name, family, labels, value)
            for family, labels, value in iter_samples(text)
            if not families or family in families
        ]

    running = [pod for pod in workers(snapshot.pods) if is_running(pod)]
    return [sample for samples in each(of_pod, running) for sample in samples]
