"""A place whose one job goes through scripted moments: what a cluster might show, without one.

It simplifies: time does not pass by itself. The next moment comes when the last one was looked at, so nothing is
missed. A watch without a next moment waits without end, unless the job is deleted.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence

from kubectl_ddp.capacity import CapacityObjects
from kubectl_ddp.errors import NotFound, Unreachable
from kubectl_ddp.kube.objects import Object, RelatedKind, RelatedObjects, Snapshot
from kubectl_ddp.util.concurrency import Stop
from kubectl_ddp.values.parsers import Egress


class ScriptedBackend:
    """Implements :class:`kubectl_ddp.backends.base.Backend` for one job."""

    where = "scripted"
    namespace = "team"

    def __init__(
        self,
        moments: Sequence[Snapshot],
        *,
        metrics: Sequence[Mapping[str, str]] = (),
        logs: Mapping[str, Sequence[str]] | None = None,
        around: Mapping[RelatedKind, tuple[Object, ...]] | None = None,
        is_deleted_at_the_end: bool = False,
    ) -> None:
        """A job.

        Args:
            moments: what a watch shows, one after the other.
            metrics: pod → text of each successive request; the last one stays.
            logs: uid of a pod → its lines, with their times.
            around: what stands around the job.
            is_deleted_at_the_end: whether the job is gone after the last moment.
        """
        self._moments = moments
        self._metrics = list(metrics)
        self._logs = logs or {}
        self._around = around or {}
        self._ends = is_deleted_at_the_end
        self.annotations: dict[str, str] = {}

    def job(self, name: str, *, events: bool = True) -> Snapshot:
        """The first moment."""
        if not self._moments:
            raise NotFound(f"Job '{name}' does not exist.")
        return self._moments[0]

    def watch(
        self, name: str, *, reasons: Collection[str] | None = None, stop: Stop | None = None
    ) -> Iterator[Snapshot]:
        """All moments."""
        del reasons
        self.job(name)
        yield from self._moments
        if not self._ends:
            ended = threading.Event()
            with (stop or Stop()).call_on_stop(ended.set):
                ended.wait()

    def metrics(self, pod: Object, families: Collection[str] = ()) -> str:
        """The pod's part of the present metrics, all of it; asking for the first pod again turns the page."""
        page = self._metrics[0] if self._metrics else {}
        text = page.get(pod["metadata"]["name"])
        if len(self._metrics) > 1:
            del self._metrics[0]
        if text is None:
            raise Unreachable("It does not answer.")
        return text

    def hang(self, pod: Object) -> str:
        """No launcher shows anything."""
        raise Unreachable("It does not answer.")

    def metrics_history(self, pod: Object) -> None:
        """No history."""

    def deleted_pods(self, name: str) -> Sequence[Object]:
        """No pods."""
        del name
        return ()

    def logs(
        self,
        pod: Object,
        *,
        follow: bool = False,
        tail: int | None = None,
        timestamps: bool = False,
        since: str | None = None,
        stop: Stop | None = None,
    ) -> Iterator[str]:
        """Lines of the container; ``since`` is to the second, as an API server's."""
        del follow, tail, stop
        for line in self._logs.get(f"{pod['metadata']['uid']}/{_restarts(pod)}", ()):
            if since is None or line[:19] >= since[:19]:
                yield line if timestamps else line.partition(" ")[2]

    def facts(self) -> None:
        """There is nothing to choose."""

    def api_servers(self) -> tuple[str, ...]:
        """There are none."""
        return ()

    def effective_egress(self, egress: Egress) -> Egress:
        """The job's own."""
        return egress

    def preflight(self, spec: object, objects: Sequence[Object], *, is_thorough: bool) -> None:
        pass

    def capacity_objects(self) -> CapacityObjects:
        return CapacityObjects(nodes=[], pods=[])

    def submit(self, objects: Sequence[Object]) -> None:
        """Not scripted."""
        raise NotImplementedError

    def jobs(self, *, all_namespaces: bool = False) -> list[Snapshot]:
        """The job."""
        del all_namespaces
        return [self._moments[0]] if self._moments else []

    def related_objects(self, job: Object, kinds: Collection[RelatedKind]) -> RelatedObjects:
        del job
        return RelatedObjects(found={kind: items for kind, items in self._around.items() if kind in kinds})

    def annotate(self, job: Object, annotations: Mapping[str, str]) -> None:
        """Kept in :attr:`annotations`."""
        del job
        self.annotations |= annotations

    def scale(self, name: str, nodes: int, *, dry_run: bool = False) -> None:
        """Not scripted."""
        raise NotImplementedError

    def suspend(self, name: str, *, suspended: bool) -> None:
        """Not scripted."""
        raise NotImplementedError

    def delete(self, name: str) -> None:
        """Not scripted."""
        raise NotImplementedError


def _restarts(pod: Object) -> int:
    count: int = pod["status"]["containerStatuses"][0]["restartCount"]
    return count
