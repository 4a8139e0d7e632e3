"""Lookup of the pod and process of a rank, which change with every rendezvous.

A rank with metrics reports its own pod and process. For a rank without metrics, the launcher reports the pod but no
process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddp_trainer.common.metric_names import Metric
from kubectl_ddp.backends.base import Backend
from kubectl_ddp.errors import NotFound
from kubectl_ddp.kube.objects import Object, Snapshot
from kubectl_ddp.observe.scrape import scrape
from kubectl_ddp.status.describe import why_no_ranks
from kubectl_ddp.status.job_state import JobState, job_state
from kubectl_ddp.status.metrics_parser import Samples
from kubectl_ddp.util.process import location_flags, program

_SHOWN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Pod, and optionally the process of a rank in it."""

    pod: Object
    rank: int | None = None
    local_rank: int | None = None
    pid: int | None = None
    """Process id, inside the container."""

    @property
    def name(self) -> str:
        """Name of the pod."""
        return str(self.pod["metadata"]["name"])

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment variables for a command that runs beside the rank, with torchrun's names."""
        variables = {"RANK": self.rank, "LOCAL_RANK": self.local_rank, "RANK_PID": self.pid}
        return {name: str(value) for name, value in variables.items() if value is not None}

    def __str__(self) -> str:
        """Return the place as a sentence."""
        facts = {"local rank": self.local_rank, "process": self.pid}
        text = ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
        return f"Pod {self.name}." if self.rank is None else f"Rank {self.rank}: pod {self.name}, {text}."


def find_rank(backend: Backend, name: str, rank: int) -> Place:
    """Find the pod and the process of a rank. Raises NotFound."""
    snapshot = backend.job(name)
    samples = scrape(backend, snapshot)
    return place_of_rank(job_state(snapshot, samples), snapshot.pods, samples, rank)


def place_of_rank(state: JobState, pods: Sequence[Object], samples: Mapping[str, Samples], rank: int) -> Place:
    """Find the pod and the process of a rank in data that was already read. Raises NotFound."""
    by_name = {str(pod["metadata"]["name"]): pod for pod in pods}
    found = next((rank_state for rank_state in state.ranks if rank_state.rank == rank), None)
    launchers = dict(_locate_from_launchers(state, samples, rank))
    if found is None:
        for pod, index in launchers.items():
            return Place(pod=by_name[pod], rank=rank, local_rank=index)
        raise NotFound(
            f"The pod of rank {rank} of job '{state.name}' is unknown: {_why(state)}", hint=_status_hint(state)
        )
    pid = samples[found.pod].value(Metric.RANK_PID, rank=str(rank))
    # A rank that has just started may have reported its process but not its local rank.
    local_rank = found.local_rank if found.local_rank is not None else launchers.get(found.pod)
    return Place(pod=by_name[found.pod], rank=rank, local_rank=local_rank, pid=int(pid) if pid is not None else None)


def _locate_from_launchers(state: JobState, samples: Mapping[str, Samples], rank: int) -> Iterator[tuple[str, int]]:
    """Yield pod and local rank as reported by launchers. Pods outside the newest worker group are skipped, because they
    still report the previous group.
    """
    for pod, pod_samples in samples.items():
        first = pod_samples.value(Metric.FIRST_RANK)
        is_in_it = pod_samples.value(Metric.RENDEZVOUS_ROUND) == state.generation and (state.world_size or 0) > rank
        if first is not None and is_in_it and first <= rank < first + state.processes_per_node:
            yield pod, rank - int(first)


def find_pod(snapshot: Snapshot, pod: str) -> Place:
    """Find a pod of the job by its name, or by the part after the job's name, as in ``worker-1`` or ``store``.

    Raises:
        NotFound: If no pod matches, or if several names start with it.
    """
    names = [str(item["metadata"]["name"]) for item in snapshot.pods]
    job = snapshot.job["metadata"]["name"]
    meant = {pod, f"{job}-{pod}"}
    beginning = [name for name in names if any(name.startswith(f"{word}-") for word in meant)]
    for item, name in zip(snapshot.pods, names, strict=True):
        if name in meant or beginning == [name]:
            return Place(pod=item)
    hint = f"There are {', '.join(names)}." if names else "It has none just now."
    raise NotFound(f"Job '{job}' has no pod '{pod}'.", hint=hint)


def _why(state: JobState) -> str:
    ranks = ", ".join(str(rank_state.rank) for rank_state in state.ranks[:_SHOWN]) + ", ..." * (
        len(state.ranks) > _SHOWN
    )
    return f"the ranks with metrics are {ranks}." if state.ranks else why_no_ranks(state)


def _status_hint(state: JobState) -> str:
    return f"'{program()} status {state.name} --ranks{location_flags()}' shows all; --pod selects a pod by name."
