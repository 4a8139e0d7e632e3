"""Reads the facts: the job first, then all that its state makes worth a look, at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from kubectl_ddp import roots
from kubectl_ddp.backend import Backend, Object, Snapshot
from kubectl_ddp.errors import DdpError
from kubectl_ddp.evidence import stores, workers
from kubectl_ddp.queued import KUEUE_QUEUE
from kubectl_ddp.scrape import scrape
from kubectl_ddp.state import job_state
from kubectl_ddp.surroundings import Around, Surroundings
from kubectl_ddp.why.facts import Facts, condition_of, has_label

LINES: Final = 200
"""How many of its last lines a pod is asked for."""
MOST_LOGS: Final = 16
"""Of so many pods at most; a job of a thousand would be read for minutes."""


def gather(
    backend: Backend, name: str, *, also: frozenset[Around] = frozenset(), clock: Callable[[], float] = time.time
) -> Facts:
    """Everything that may explain the job; ``also`` what would not, by what the job shows.

    Raises NotFound, and what else reading the job itself is refused with.
    """
    snapshot = backend.job(name, events=False)  # they are read with what stands around it
    around: list[Surroundings] = []
    lines: dict[str, tuple[str, ...]] = {}
    kinds = wanted(snapshot) | also
    # Daemons, since a server may be silent for a minute, and Ctrl-C waits for nobody.
    readers = [threading.Thread(target=lambda: around.append(backend.look_around(snapshot.job, kinds)), daemon=True)]
    readers += [
        threading.Thread(target=_read_lines, args=(backend, pod, lines), daemon=True)
        for pod in _talking(snapshot)[:MOST_LOGS]
    ]
    for reader in readers:
        reader.start()
    samples = scrape(backend, snapshot)
    for reader in readers:
        reader.join()
    return Facts(
        snapshot=snapshot,
        state=job_state(snapshot, samples, where=backend.where),
        now=clock(),
        around=around[0] if around else Surroundings(),
        samples=samples,
        lines=lines,
    )


def wanted(snapshot: Snapshot) -> frozenset[Around]:
    """What is worth a look, of all that stands around a job."""
    return frozenset(kind for kind, is_wanted in _WANTED.items() if is_wanted(snapshot))


def _is_over(snapshot: Snapshot) -> bool:
    return bool({"Succeeded", "Failed"} & roots.conditions(snapshot.job).keys())


def _lacks_pods(snapshot: Snapshot) -> bool:
    return not _is_over(snapshot) and len(workers(snapshot.pods)) < roots.desired_nodes(snapshot.job)


def _is_placed_badly(snapshot: Snapshot) -> bool:
    return any(condition_of(pod, "PodScheduled").get("status") == "False" for pod in snapshot.pods)


def _is_queued(snapshot: Snapshot) -> bool:
    return bool(has_label(snapshot.job, KUEUE_QUEUE)) and not _is_over(snapshot)


_WANTED: Final[Mapping[Around, Callable[[Snapshot], bool]]] = {
    Around.EVENTS: lambda _: True,
    Around.NODES: lambda snapshot: bool(snapshot.pods),
    Around.BOUND: _is_placed_badly,
    Around.CLAIMS: _is_placed_badly,
    Around.OPERATOR: _lacks_pods,
    Around.WORKLOADS: _is_queued,
    Around.LOCAL_QUEUES: _is_queued,
    Around.CLUSTER_QUEUES: _is_queued,
    Around.QUEUE_CONTROLLER: _is_queued,
}


def _talking(snapshot: Snapshot) -> list[Object]:
    """Pods that run."""
    pods = [*workers(snapshot.pods), *stores(snapshot.pods)]
    return [pod for pod in pods if not _is_over(snapshot) and pod.get("status", {}).get("phase") == "Running"]


def _read_lines(backend: Backend, pod: Object, into: dict[str, tuple[str, ...]]) -> None:
    try:
        into[str(pod["metadata"]["name"])] = tuple(backend.logs(pod, tail=LINES, timestamps=True))
    except DdpError:  # it ends just now, or its node does not answer: the others may tell
        return
