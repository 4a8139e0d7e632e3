"""Reads the facts: the job first, then all that its state makes worth a look, at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from kubectl_ddp import roots
from kubectl_ddp.aside import Aside
from kubectl_ddp.backend import Backend, Object, Snapshot
from kubectl_ddp.conditions import condition_of
from kubectl_ddp.errors import DdpError
from kubectl_ddp.evidence import stores, workers
from kubectl_ddp.hang.sight import Sight, look_at
from kubectl_ddp.parallel import each
from kubectl_ddp.queued import KUEUE_QUEUE
from kubectl_ddp.scrape import scrape
from kubectl_ddp.state import job_state
from kubectl_ddp.surroundings import Around
from kubectl_ddp.why.facts import Facts, has_label, is_silent

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
    kinds = wanted(snapshot) | also
    talking = _talking(snapshot)[:MOST_LOGS]
    with (
        Aside(lambda: backend.look_around(snapshot.job, kinds)) as around,
        Aside(lambda: each(partial(_lines, backend), talking)) as lines,
    ):
        samples = scrape(backend, snapshot)
        state, now = job_state(snapshot, samples, where=backend.where), clock()
        told = zip(talking, lines.result(), strict=True)
        return Facts(
            snapshot=snapshot,
            state=state,
            now=now,
            sight=look_at(backend, snapshot) if is_silent(state, now) else Sight(),
            around=around.result(),
            samples=samples,
            lines={str(pod["metadata"]["name"]): said for pod, said in told if said is not None},
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


def _lines(backend: Backend, pod: Object) -> tuple[str, ...] | None:
    try:
        return tuple(backend.logs(pod, tail=LINES, timestamps=True))
    except DdpError:  # it ends just now, or its node does not answer: the others may tell
        return None
