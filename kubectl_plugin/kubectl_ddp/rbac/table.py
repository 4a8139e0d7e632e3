"""Table of the API requests of each command, the only source of all data about rights.

It is the source of

- the rights that ``doctor`` and ``preflight`` check, and the Role that they request (``role_builder``),
- the table of the documentation (``reference``).

``tests/unit`` runs the commands against a server that records their requests, and compares them with the table. The
table leaves out what every authenticated user may do (``/version``, discovery, self subject reviews).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from kubectl_ddp.engines.registry import ENGINES, RUNTIMES
from kubectl_ddp.rbac.model import EVERYWHERE, Need, Right

JOBS: Final = tuple(engine.collection for engine in ENGINES.values())
"""Kinds of the job objects, one per engine."""

COMPANIONS: Final = (
    "services",
    "configmaps",
    "jobs.batch",
    "networkpolicies.networking.k8s.io",
    "podmonitors.monitoring.coreos.com",
    *(f"{plural}.{version.partition('/')[0]}" for version, plural in RUNTIMES.values()),
    "podgroups.scheduling.volcano.sh",
    "podgroups.scheduling.x-k8s.io",
    "computedomains.resource.nvidia.com",
    "resourceclaimtemplates.resource.k8s.io",
)
"""Objects that may be created with a job; the job and the cluster determine which."""

SUBMITTING: Final = ("submit", "preflight", "clone")
SHOWING: Final = ("render", "presets", "lint")
"""Commands that show what would be submitted and need no cluster."""
MAKING: Final = ("submit", "clone", "restart")
"""Commands that create jobs. ``restart`` of a finished job submits it again."""
CHANGING: Final = ("scale", "suspend", "resume", "restart")
REACHING: Final = ("exec", "profile", "port-forward")
LOOKING: Final = ("status", "why", "hang", "bundle", "logs", "events", "top", "report", "wait")
"""Commands that show one job."""
COUNTING: Final = ("list", "prune")
"""Commands that read all jobs."""
EXPLAINING: Final = ("why", "bundle")
WATCHING: Final = ("logs", "events", "wait", *CHANGING, "submit", "clone")
"""Commands that follow a job or wait for it."""
AWAITING: Final = ("submit", "clone", *CHANGING)
"""Commands that show the progress of a job while they wait."""
STANDSTILL: Final = "the progress does not name every cause of a standstill"

SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "run": (*SUBMITTING, "capacity", *SHOWING),
    "see": ("list", *LOOKING, "dashboard", "doctor"),
    "reach": REACHING,
    "change": (*CHANGING, "delete", "prune"),
}
"""Sections of ``kubectl ddp --help`` → their commands that access a cluster."""

OF_ONE: Final = (*AWAITING, *LOOKING, *REACHING)
"""Commands that first read one job and its pods."""

NEEDS: Final[tuple[Need, ...]] = (
    # -- jobs and their pods
    Need(commands=(*OF_ONE, "delete", "prune"), verbs=("get",), resources=JOBS),
    Need(commands=(*OF_ONE, *COUNTING), verbs=("list",), resources=("pods",)),
    Need(commands=(*COUNTING, "events"), verbs=("list",), resources=JOBS),
    Need(
        commands=(*LOOKING, *REACHING, *CHANGING, "delete"),
        verbs=("list",),
        resources=(*JOBS, "pods"),
        without="the job has to be named, and 'delete --all' finds none",
    ),
    Need(
        commands=("list", "prune"),
        verbs=("list",),
        resources=(*JOBS, "pods"),
        where=EVERYWHERE,
        without="-A is refused",
    ),
    Need(commands=("wait", "restart"), verbs=("list", "watch"), resources=(*JOBS, "pods")),
    Need(
        commands=("submit", "clone", "logs", "events", "scale", "suspend", "resume"),
        verbs=("list", "watch"),
        resources=(*JOBS, "pods"),
        without="nothing can be followed or waited for",
    ),
    # -- logs and events
    Need(commands=("logs",), verbs=("get",), resources=("pods", "pods/log")),
    Need(
        commands=("submit", "clone", *EXPLAINING),
        verbs=("get",),
        resources=("pods", "pods/log"),
        without="the log lines of the pods are missing",
    ),
    Need(commands=("hang",), verbs=("get",), resources=("pods/proxy",), without="no rank is seen"),
    Need(
        commands=("report",),
        verbs=("get",),
        resources=("pods", "pods/log"),
        without="the metrics of ended pods are missing",
    ),
    Need(commands=("top",), verbs=("get",), resources=("pods/proxy",), without="no rank has a row"),
    Need(
        commands=("report",),
        verbs=("get",),
        resources=("pods/proxy",),
        without="the metrics of running pods are missing",
    ),
    Need(
        commands=("list", "status", *EXPLAINING, "wait", *REACHING, *AWAITING),
        verbs=("get",),
        resources=("pods/proxy",),
        without="ranks, steps and loss are missing",
    ),
    Need(commands=("events",), verbs=("list",), resources=("events",)),
    Need(commands=("report",), verbs=("list",), resources=("events", *JOBS), without="the history is incomplete"),
    Need(
        commands=(*EXPLAINING, "logs", "report", "wait", *REACHING, *CHANGING, "submit", "clone"),
        verbs=("list",),
        resources=("events",),
        without="the reason why a pod cannot start is missing",
    ),
    Need(
        commands=WATCHING,
        verbs=("watch",),
        resources=("events",),
        without="the reason why a pod cannot start is missing",
    ),
    Need(
        commands=("status", "logs", "wait", "report", *EXPLAINING, "submit", "clone"),
        verbs=("patch",),
        resources=JOBS,
        without="the first error and the summary are lost with the pods",
    ),
    Need(
        commands=("list", *OF_ONE),
        verbs=("get",),
        resources=("localqueues.visibility.kueue.x-k8s.io/pendingworkloads",),
        without="the place in Kueue's line is reckoned from the namespace's own jobs",
    ),
    Need(
        commands=("list", *OF_ONE),
        verbs=("list",),
        resources=("workloads.kueue.x-k8s.io",),
        without="the place in Kueue's line is known where its visibility API tells it, and a job that is held back "
        "seems to wait",
    ),
    # -- creation and changes
    Need(commands=(*MAKING, "preflight"), verbs=("create",), resources=(*JOBS, *COMPANIONS)),
    # The Secret of each run. It is never read again, and is deleted with the job.
    Need(commands=(*MAKING, "preflight"), verbs=("create",), resources=("secrets",)),
    Need(commands=MAKING, verbs=("get", "patch", "delete"), resources=JOBS),
    Need(commands=MAKING, verbs=("patch",), resources=("jobs.batch",)),
    Need(commands=MAKING, verbs=("patch",), resources=("trainingruntimes.trainer.kubeflow.org",)),
    Need(
        commands=MAKING,
        verbs=("get", "patch", "delete"),
        resources=COMPANIONS,
        without="a submission that was cut off cannot be finished",
    ),
    Need(
        commands=(*MAKING, "preflight"),
        verbs=("get",),
        resources=("endpointslices.discovery.k8s.io",),
        where="default",
        names=("kubernetes",),
        without="the API server is not let in to read the job's metrics",
    ),
    Need(commands=("clone", "restart"), verbs=("list",), resources=("configmaps",)),
    Need(commands=CHANGING, verbs=("patch",), resources=JOBS),
    Need(
        commands=("suspend", "resume", "restart"),
        verbs=("list", "patch"),
        resources=("workloads.kueue.x-k8s.io",),
        without="jobs in a queue of Kueue are not changed, since only Kueue suspends and resumes them",
    ),
    Need(commands=("delete", "prune"), verbs=("delete",), resources=JOBS),
    Need(
        commands=("delete",),
        verbs=("get", "delete"),
        resources=("trainingruntimes.trainer.kubeflow.org",),
        without="what a submission has left that was cut off stays",
    ),
    Need(
        commands=("delete", "prune"),
        verbs=("get", "delete"),
        resources=("configmaps",),
        without="what a restart has left that was cut off stays",
    ),
    # -- access to pods
    Need(commands=REACHING, verbs=("get",), resources=("pods",)),
    Need(commands=("exec", "profile"), verbs=("create", "get"), resources=("pods/exec",), is_broad=True),
    Need(
        commands=("hang",),
        verbs=("create", "get"),
        resources=("pods/exec",),
        without="stacks are not shown",
        is_broad=True,
    ),
    Need(commands=("port-forward",), verbs=("create", "get"), resources=("pods/portforward",), is_broad=True),
    Need(
        commands=("dashboard",),
        verbs=("list",),
        resources=("services",),
        where=EVERYWHERE,
        without="Grafana's address has to be given, with --grafana for one",
    ),
    # -- prerequisites of a job
    Need(commands=("capacity",), verbs=("list",), resources=("nodes",), where=EVERYWHERE),
    Need(
        commands=(*SUBMITTING, *EXPLAINING),
        verbs=("list",),
        resources=("nodes",),
        where=EVERYWHERE,
        without="nodes are left out",
    ),
    Need(
        commands=(*SUBMITTING, "capacity", *EXPLAINING),
        verbs=("list",),
        resources=("pods",),
        where=EVERYWHERE,
        without="what is free on machines, and whether an operator runs, is not known",
    ),
    Need(
        commands=(*SUBMITTING, "bundle"),
        verbs=("list",),
        resources=("resourcequotas",),
        without="ResourceQuotas are left out",
    ),
    Need(
        commands=SHOWING,
        verbs=("get",),
        resources=("configmaps",),
        without="the presets that the namespace shares are not known",
    ),
    Need(
        commands=SUBMITTING,
        verbs=("get",),
        resources=("persistentvolumeclaims", "configmaps"),
        without="whether volumes and ConfigMaps are there is not known",
    ),
    Need(
        commands=EXPLAINING,
        verbs=("list",),
        resources=("persistentvolumeclaims",),
        without="a volume that keeps pods waiting is not named",
    ),
    Need(
        commands=SUBMITTING,
        verbs=("get",),
        resources=("serviceaccounts",),
        without="image pull secrets are not looked at",
    ),
    Need(
        commands=SUBMITTING,
        verbs=("get",),
        resources=("secrets",),
        without="whether Secrets and their entries are there is not known",
        is_broad=True,
    ),
    Need(
        commands=SUBMITTING,
        verbs=("create",),
        resources=("pods",),
        without="admission is not asked about the pods (by a dry run)",
        is_broad=True,
    ),
    Need(
        commands=SUBMITTING,
        verbs=("get",),
        resources=("priorityclasses.scheduling.k8s.io",),
        where=EVERYWHERE,
        without="whether the --priority is there is not known",
    ),
    Need(
        commands=SUBMITTING,
        verbs=("get",),
        resources=("configmaps",),
        where="kube-system",
        names=("cluster-autoscaler-status",),
        without="an autoscaler is guessed from the labels of machines",
    ),
    # -- Kueue
    Need(
        commands=(*SUBMITTING, "capacity"),
        verbs=("list",),
        resources=("localqueues.kueue.x-k8s.io",),
        without="queues are left out",
    ),
    Need(
        commands=(*SUBMITTING, "capacity", *EXPLAINING),
        verbs=("list",),
        resources=("clusterqueues.kueue.x-k8s.io",),
        where=EVERYWHERE,
        without="the quotas of queues are left out",
    ),
    Need(
        commands=SUBMITTING,
        verbs=("get",),
        resources=("workloadpriorityclasses.kueue.x-k8s.io",),
        where=EVERYWHERE,
        without="whether the --queue-priority is there is not known",
    ),
    Need(
        commands=SUBMITTING,
        verbs=("get",),
        resources=("localqueues.visibility.kueue.x-k8s.io/pendingworkloads",),
        without="who waits in front is not known",
    ),
    Need(
        commands=SUBMITTING,
        verbs=("get",),
        resources=("configmaps",),
        where="kueue-system",
        names=("kueue-manager-config",),
        without="whether Kueue looks after this kind of job is not known",
    ),
    Need(
        commands=EXPLAINING,
        verbs=("list",),
        resources=("localqueues.kueue.x-k8s.io", "workloads.kueue.x-k8s.io"),
        without="why Kueue does not admit a job is not known",
    ),
    Need(
        commands=EXPLAINING,
        verbs=("list",),
        resources=("localqueues.kueue.x-k8s.io", "workloads.kueue.x-k8s.io"),
        where=EVERYWHERE,
        without="only jobs of the same namespace are seen ahead in the queue",
    ),
    # -- `why`, while a command waits for a job that does not move
    Need(commands=AWAITING, verbs=("get",), resources=("pods", "pods/log"), without=STANDSTILL),
    Need(
        commands=AWAITING,
        verbs=("list",),
        resources=("persistentvolumeclaims", "localqueues.kueue.x-k8s.io", "workloads.kueue.x-k8s.io"),
        without=STANDSTILL,
    ),
    Need(
        commands=AWAITING,
        verbs=("list",),
        resources=(
            *("nodes", "pods"),
            *("clusterqueues.kueue.x-k8s.io", "localqueues.kueue.x-k8s.io", "workloads.kueue.x-k8s.io"),
        ),
        where=EVERYWHERE,
        without=STANDSTILL,
    ),
    # -- doctor
    Need(
        commands=("doctor",),
        verbs=("get",),
        resources=("namespaces",),
        without="Pod Security of the namespace is not known",
    ),
    Need(
        commands=("doctor",),
        verbs=("list",),
        resources=("nodes", "pods", "daemonsets.apps"),
        where=EVERYWHERE,
        without="operators, machines and who enforces NetworkPolicies are not seen",
    ),
)

Kind = tuple[str, str]
"""Type of a kind: API group and plural."""

KINDS: Final = frozenset(right.kind for need in NEEDS for right in need.permissions())
"""All kinds in the table."""


def needs(served: Collection[Kind] = KINDS, commands: Collection[str] = ()) -> Iterator[tuple[Need, Right]]:
    """Yield each right with its row, for the kinds that a cluster serves; ``commands`` is empty for all commands."""
    for need in NEEDS:
        if not commands or set(commands) & set(need.commands):
            yield from ((need, right) for right in need.permissions() if right.kind in served)


def to_submit(engine: str, made: Iterable[Kind]) -> list[Right]:
    """Return the rights without which submitting fails.

    Args:
        engine: Engine of the job; it determines the kind of the job object.
        made: Kinds of the objects to create, restricted to kinds that the cluster serves.
    """
    root = {(ENGINES[engine].group, ENGINES[engine].plural)}
    mine = {*made} | root
    all_that_is_made = {Right.of("create", each).kind for each in (*JOBS, *COMPANIONS)}
    found = [
        right
        for need, right in needs(commands=("submit",))
        if need.is_required
        and (right.kind in (root if need.resources == JOBS else mine) or right.kind not in all_that_is_made)
    ]
    return list(dict.fromkeys(found))


def permissions_to_check(served: Collection[Kind]) -> list[Right]:
    """Return the rights that a checkup tests; broad rights of optional features are left out."""
    found = (right for need, right in needs(served) if need.is_required or not need.is_broad)
    return list(dict.fromkeys(found))
