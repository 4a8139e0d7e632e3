"""Protocol of a place where jobs run, implemented for clusters and for this machine.

Both implementations return the same Kubernetes-shaped JSON, so state, tables and waiting are written once. ``local``
stores these objects in files. ``cluster`` reads them from an API server.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kubectl_ddp.kube.objects import Object, RelatedKind, RelatedObjects, Snapshot
from kubectl_ddp.util.concurrency import Stop

if TYPE_CHECKING:
    from kubectl_ddp.capacity import CapacityObjects
    from kubectl_ddp.preflight.model import PreflightFacts, Subject
    from kubectl_ddp.render.choose import ClusterKinds
    from kubectl_ddp.spec.model import JobSpec
    from kubectl_ddp.values.parsers import Egress


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecCommand:
    """Program that replaces this process: it takes over the terminal and signals, and its exit code is ours."""

    words: tuple[str, ...]
    environ: Mapping[str, str] | None = None
    """Environment of the program (default: that of this process)."""
    directory: str | None = None
    """Working directory (default: that of this process)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Command to run inside a pod's container."""

    words: tuple[str, ...]
    variables: Mapping[str, str]
    """Environment variables, in addition to those of the container."""
    stdin: bool = False
    """True if the command reads our standard input."""
    terminal: bool = False
    """True if the command is interactive and needs a terminal."""


class Backend(Protocol):
    """Place where jobs run. Methods raise only the errors of :mod:`kubectl_ddp.errors`."""

    where: str
    """``local``, or name of the kubeconfig context."""
    namespace: str
    """Namespace of the jobs; empty on this machine."""

    def facts(self) -> ClusterKinds | None:
        """Return the properties of the place that affect how a job is rendered; ``None`` if nothing depends on them."""

    def api_servers(self) -> tuple[str, ...]:
        """Return the addresses from which the API servers connect to pods; empty if there are none or reading them is
        denied.
        """

    def effective_egress(self, egress: Egress) -> Egress:
        """Return the egress to render a job with: closed if the job leaves it open and its namespace closes it."""

    def preflight(
        self, spec: JobSpec, objects: Sequence[Object], *, is_thorough: bool
    ) -> tuple[Subject, PreflightFacts] | None:
        """Read what the checks need to decide if a job can run here; ``None`` if the place has no checks."""

    def capacity_objects(self) -> CapacityObjects:
        """Return the data that determines free capacity, and a note for each part that may not be read."""

    def submit(self, objects: Sequence[Object]) -> None:
        """Create the objects of a rendered job: the root object first, the rest owned by it. Raises AlreadyExists."""

    def jobs(self, *, all_namespaces: bool = False) -> list[Snapshot]:
        """Return all jobs of ``kubectl ddp`` in this place, oldest first."""

    def job(self, name: str, *, events: bool = True) -> Snapshot:
        """Return one job, without its events if ``events`` is false. Raises NotFound."""

    def watch(
        self, name: str, *, reasons: Collection[str] | None = None, stop: Stop | None = None
    ) -> Iterator[Snapshot]:
        """Yield the job now, and again after each change of the job, its pods, or these events of them.

        Ends when the job is deleted.

        Args:
            name: Name of the job.
            reasons: Reasons of the events of pods that are needed, none if empty (default: all events of the job). A
                cluster sends those of all jobs of a namespace.
            stop: Request of another thread to end.
        """

    def events(self, name: str) -> list[Object]:
        """Return the events about a job and all objects created for it, oldest first. Raises NotFound.

        Events of deleted pods are included.
        """

    def metrics(self, pod: Object, families: Collection[str] = ()) -> str:
        """Return the pod's ``/metrics`` in Prometheus' text format. Raises Unreachable.

        Args:
            pod: Pod to read.
            families: Metric families that are enough (default: all). An aggregator of an earlier version returns all of
                them anyway.
        """

    def hang(self, pod: Object) -> str:
        """Return the launcher's current view of its ranks, as JSON without stacks (``contract.HANG_PATH``).

        Raises Unreachable, Forbidden.
        """

    def metrics_history(self, pod: Object) -> str | None:
        """Return the history of the pod's metrics as JSON (``contract.HISTORY_PATH``); None if not available.

        The aggregator of a running pod serves it. An ended pod has written it to its log.
        """

    def deleted_pods(self, name: str) -> Sequence[Object]:
        """Return worker pods that are gone and whose lines :meth:`logs` still has."""

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
        """Yield lines of the pod's container without line ends; with ``follow``, until the container ends.

        Lines that hold packed metrics (see :mod:`kubectl_ddp.status.metrics_parser`) are left out.

        Args:
            pod: Pod to read.
            follow: Wait for further lines.
            tail: Number of last lines to start with (default: all).
            timestamps: Prefix each line with its time in UTC (:func:`~kubectl_ddp.kube.objects.log_timestamp`) and a
                space.
            since: Time of the same form. Earlier lines are left out; lines of that very second may be repeated.
            stop: Request of another thread to end.
        """

    def related_objects(self, job: Object, kinds: Collection[RelatedKind]) -> RelatedObjects:
        """Return objects related to a job, of the given kinds. Unreadable kinds are listed in the result."""

    def annotate(self, job: Object, annotations: Mapping[str, str]) -> None:
        """Set annotations of the job. Its other annotations are kept."""

    def enter(self, pod: Object, entry: Entry) -> ExecCommand:
        """Return the command that runs ``entry`` in the pod's container. Raises NotFound if that is not running."""

    def forward(self, pod: Object, ports: Sequence[str]) -> ExecCommand | None:
        """Return the command that forwards ports of a pod, each ``PORT`` or ``LOCAL:PORT``; ``None`` if they are
        reachable.
        """

    def code(self, name: str) -> list[Object]:
        """Return the ConfigMaps with the code of a job; empty if the job has none. Raises NotFound."""

    def recreate(self, name: str, objects: Sequence[Object]) -> None:
        """Replace a finished run by a new one. Objects of the old run are deleted; claims and checkpoints are kept."""

    def pending_restart(self, name: str) -> list[Object]:
        """Return the record of an unfinished :meth:`recreate`: code, spec and run id of the new run; usually empty."""

    def scale(self, name: str, nodes: int, *, dry_run: bool = False) -> None:
        """Set the number of worker pods; in a dry run, only validate the number. Raises UsageError."""

    def suspend(self, name: str, *, suspended: bool) -> str | None:
        """Suspend the job (delete its pods, keep the job) or resume it. Returns the queue in which a resumed job waits,
        if any.
        """

    def delete(self, name: str) -> None:
        """Delete the job and everything it owns."""
