"""Where jobs run, as the commands see it: one protocol, spoken by a cluster and by this machine.

Both sides answer with the same Kubernetes-shaped JSON, so everything above this line (state, tables, waiting) is
written once. ``local`` keeps such objects in files, ``cluster`` asks an API server for them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from kubectl_ddp.capacity.model import Inventory
    from kubectl_ddp.checks.model import Facts as Known
    from kubectl_ddp.checks.model import Subject
    from kubectl_ddp.related_objects import RelatedKind, RelatedObjects
    from kubectl_ddp.render.choose import Facts
    from kubectl_ddp.spec.model import JobSpec

Object = dict[str, Any]
"""A Kubernetes object as JSON: apiVersion, kind, metadata, spec, status."""


@dataclass(frozen=True, slots=True)
class Queued:
    """Where a job stands in a queue of Kueue's."""

    name: str
    """Of the LocalQueue."""
    is_admitted: bool
    """Whether Kueue has let it go; it may have to wait again."""
    position: int | None = None
    """Its place among those that wait for the same quota, from 1; ``None`` where it does not wait, or nobody tells."""
    is_held: bool = False
    """Whether Kueue was told to hold it back: it is suspended, and waits for nothing but to be resumed."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One job at one moment."""

    job: Object
    """The root object (a PyTorchJob), with its status."""
    pods: tuple[Object, ...]
    """Pods of the workers and of the store, with their status; their labels tell which (``contract.Label.ROLE``)."""
    events: tuple[Object, ...] = ()
    """Events about the job and its pods, oldest first."""
    queued: Queued | None = None
    """Where it stands in a queue; ``None`` where it is in none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecCommand:
    """A program that takes the place of this one: it gets the terminal, signals and all, and its exit code is ours."""

    words: tuple[str, ...]
    environ: Mapping[str, str] | None = None
    """Its environment; this program's own when ``None``."""
    directory: str | None = None
    """Where it works; here when ``None``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What is to be run inside of a pod's container."""

    words: tuple[str, ...]
    variables: Mapping[str, str]
    """Set besides the container's own."""
    stdin: bool = False
    """Whether it reads what we are given."""
    terminal: bool = False
    """Whether it talks to a person."""


class Backend(Protocol):
    """A place where jobs run. Every method raises the errors of :mod:`kubectl_ddp.errors`, and nothing else."""

    where: str
    """``local``, or the name of the kubeconfig context."""
    namespace: str
    """Namespace of the jobs; empty on this machine."""

    def facts(self) -> Facts | None:
        """What this place is, of that which decides how a job is rendered; ``None`` where there is no choice."""

    def api_servers(self) -> tuple[str, ...]:
        """Addresses from which this place's API servers reach pods; empty where there are none, or nobody may know."""

    def preflight(self, spec: JobSpec, objects: Sequence[Object], *, is_thorough: bool) -> tuple[Subject, Known] | None:
        """What has to be known to tell whether a job can run here; ``None`` where there is nothing to ask."""

    def inventory(self) -> Inventory:
        """What decides what is free here; what may not be read is told in its place."""

    def submit(self, objects: Sequence[Object]) -> None:
        """Create a rendered job: the root object first, the rest owned by it. Raises AlreadyExists."""

    def jobs(self, *, all_namespaces: bool = False) -> list[Snapshot]:
        """Every job of ours that this place knows, oldest first."""

    def job(self, name: str, *, events: bool = True) -> Snapshot:
        """One job; without its events where nobody wants them. Raises NotFound."""

    def watch(self, name: str) -> Iterator[Snapshot]:
        """The job now, and again whenever it or one of its pods changed; ends when the job is deleted."""

    def events(self, name: str) -> list[Object]:
        """Events about a job and all that was made for it, pods that are gone too, oldest first. Raises NotFound."""

    def metrics(self, pod: Object, families: Collection[str] = ()) -> str:
        """The pod's ``/metrics`` in Prometheus' text format. Raises Unreachable.

        Where ``families`` are named these are enough; an aggregator of an earlier version tells all of them.
        """

    def hang(self, pod: Object) -> str:
        """How the pod's launcher sees its ranks now, as JSON without stacks (``contract.HANG_PATH``).

        Raises Unreachable, Forbidden.
        """

    def metrics_history(self, pod: Object) -> str | None:
        """What the pod's metrics have been, as JSON (``contract.HISTORY_PATH``); None where nothing tells it.

        Of a running pod that is what its aggregator serves, of another what that has left in the log.
        """

    def logs(
        self,
        pod: Object,
        *,
        follow: bool = False,
        tail: int | None = None,
        timestamps: bool = False,
        since: str | None = None,
    ) -> Iterator[str]:
        """Lines the pod's container wrote, without line ends; with ``follow`` until the container is gone.

        What :meth:`past` reads of a log is left out.

        With ``timestamps`` each line begins with its RFC 3339 time and one space, as ``kubectl logs --timestamps``.
        ``since`` is such a time: lines before it are left out, lines of that very second may come again.
        """

    def related_objects(self, job: Object, kinds: Collection[RelatedKind]) -> RelatedObjects:
        """What stands around a job, of these kinds; what may not be read is named in the answer, and raises nothing."""

    def annotate(self, job: Object, annotations: Mapping[str, str]) -> None:
        """Set annotations of this very job, and leave its others."""

    def enter(self, pod: Object, entry: Entry) -> ExecCommand:
        """How to run something where the pod's container runs. Raises NotFound when it does not."""

    def forward(self, pod: Object, ports: Sequence[str]) -> ExecCommand | None:
        """How to reach ports of a pod from here, each ``PORT`` or ``LOCAL:PORT``; ``None`` where they can be."""

    def code(self, name: str) -> Object | None:
        """The ConfigMap with the code that travels with a job; ``None`` when none does. Raises NotFound."""

    def renew(self, name: str, objects: Sequence[Object]) -> None:
        """Put a new run in the place of one that is over: what it owned goes, its claims and checkpoints stay."""

    def cut_off(self, name: str) -> Object | None:
        """What :meth:`renew` wrote down and did not finish: words, code and run id of the run; ``None`` as a rule."""

    def scale(self, name: str, nodes: int, *, dry_run: bool = False) -> None:
        """Set the number of worker pods; in a dry run only refuse what cannot be. Raises UsageError."""

    def suspend(self, name: str, *, suspended: bool) -> str | None:
        """Stop the pods and keep the job, or let it run again; the queue that it then waits in, where it is in one."""

    def delete(self, name: str) -> None:
        """Delete the job and everything it owns."""
