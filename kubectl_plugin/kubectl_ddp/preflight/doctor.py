"""Checks of a cluster: served APIs, running operators, optional features, and rights of the user.

Facts are read elsewhere and evaluated here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kubectl_ddp.engines import ENGINES, Operator
from kubectl_ddp.kube.kueue_queue import KUEUE
from kubectl_ddp.kube.objects import Object, holds
from kubectl_ddp.preflight.controllers import CONTROLLER_SELECTOR, controller_pods, controller_problem, fix_of
from kubectl_ddp.rbac.rights import KINDS, OWN, SECTIONS, Kind, Need, Right, needs, summarize_permissions
from kubectl_ddp.util.finding import Finding, Severity, error, ok, warning
from kubectl_ddp.values.program import Gang

RESTART, RESTART_ALL = RESTART_ACTIONS = ("Restart", "RestartAllContainers")
"""Actions of a container's restart rules: the container alone, or all containers of the pod."""
KUEUE_ELASTIC_GATE: Final = "ElasticJobsViaWorkloadSlices"
CONFIGURED_GATES: Final[Mapping[str, str]] = {
    "ElasticJobSet": "/api/v1/namespaces/jobset-system/configmaps/jobset-manager-config",
    KUEUE_ELASTIC_GATE: "/api/v1/namespaces/kueue-system/configmaps/kueue-manager-config",
}
"""Feature gate of a controller → ConfigMap that sets it, at its default place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFeatures:
    """Optional features that were detected."""

    gangs: Mapping[Gang, str] = field(default_factory=dict)
    """Gang schedulers → apiVersion by which they were found, in the order of ``--gang auto``."""
    native_engines: Sequence[str] = ()
    """Engines whose pods can be in a gang of Kubernetes' own scheduler."""
    restart_actions: Sequence[str] | None = ()
    """Accepted actions of :data:`RESTART_ACTIONS`; ``None`` if that is not known."""
    gates: Mapping[str, bool | None] = field(default_factory=dict)
    """Gates of :data:`CONFIGURED_GATES` → their value, ``None`` if it is not set; without those that cannot be read."""


def check_features(features: ClusterFeatures, engines: Sequence[str], *, has_kueue: bool) -> Iterator[Finding]:
    """Yield one finding per feature. ``engines`` are served."""
    yield _gang_schedulers(features, has_kueue=has_kueue)
    yield _restarts(features.restart_actions)
    yield _elastic(features, engines, has_kueue=has_kueue)


def _gang_schedulers(features: ClusterFeatures, *, has_kueue: bool) -> Finding:
    parts = ["kueue, with --queue"] if has_kueue else []
    parts += [
        f"native ({version}, engines {', '.join(features.native_engines) or 'none'})"
        if gang is Gang.NATIVE
        else f"{gang} ({version})"
        for gang, version in features.gangs.items()
    ]
    off = "native is off, without the feature gates GenericWorkload and GangScheduling"
    parts += [] if Gang.NATIVE in features.gangs else [off]
    return ok(f"--gang: {'; '.join(parts)}", subject="gang schedulers")


def _restarts(actions: Sequence[str] | None) -> Finding:
    if actions is None:
        return Finding(
            Severity.UNKNOWN, "the API server takes no dry run of a Job from you", subject="restart in place"
        )
    parts = {
        RESTART: "a container alone (feature gate ContainerRestartRules)",
        RESTART_ALL: "all containers of a pod (RestartAllContainersOnContainerExits)",
    }
    on, off = (
        " and ".join(text for action, text in parts.items() if (action in actions) is is_on) for is_on in (True, False)
    )
    text = "; ".join(filter(None, [on and f"restart rules for {on}", off and f"no restart rules for {off}"]))
    return ok(text, subject="restart in place")


def _elastic(features: ClusterFeatures, engines: Sequence[str], *, has_kueue: bool) -> Finding:
    served = [ENGINES[name] for name in engines]
    always = [engine.name for engine in served if engine.is_scalable]
    parts = [f"scale works with {' and '.join(always)}"] if always else []
    parts += [f"{engine.name}: {_gate(features, engine.scaling_gate)}" for engine in served if engine.scaling_gate]
    parts += [f"Kueue: {_gate(features, KUEUE_ELASTIC_GATE)}"] if has_kueue else []
    return ok("; ".join(parts) or "no served engine can be scaled", subject="elastic jobs")


def _gate(features: ClusterFeatures, gate: str) -> str:
    if gate not in features.gates:
        return f"whether {gate} is on cannot be read"
    is_on = features.gates[gate]
    return (
        f"{gate} is not configured, so its default applies"
        if is_on is None
        else f"{gate} is {'on' if is_on else 'off'}"
    )


OLDEST: Final = (1, 31)
"""Oldest version with all features of the Indexed Job that we use (success policy)."""

ENFORCERS: Final = (
    "calico",
    "cilium",
    "antrea",
    "kube-router",
    "weave",
    "ovn",
    "canal",
    "azure-npm",
    "kube-network-policies",
)
"""Parts of the names of DaemonSets that enforce NetworkPolicies."""

KUEUE_GROUP: Final = "kueue.x-k8s.io"
_PROFILES: Final = frozenset({"", "privileged", "baseline", "restricted"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """Properties of a cluster. ``None`` marks those that could not be read."""

    where: str
    server: str
    namespace: str
    version: str
    user: str
    groups: Mapping[str, str]
    """Served API groups → their preferred version."""
    engines: Sequence[str]
    """Engines whose kinds are served."""
    labels: Mapping[str, str] | None
    """Labels of the namespace."""
    has_namespace: bool
    operators: Mapping[str, Sequence[Object] | None]
    """Label selector → pods."""
    daemons: Sequence[str] | None
    """Names of the DaemonSets of all namespaces."""
    gpus: int | None
    """Total ``nvidia.com/gpu`` of all nodes."""
    nodes: int | None
    local_queues: Sequence[str] | None = ()
    """Names of the namespace's LocalQueues."""
    features: ClusterFeatures = ClusterFeatures()
    served: Collection[Kind] = KINDS
    """Kinds used by commands that the cluster serves."""
    missing: Sequence[Right] | None = ()
    """Rights that commands need and the user lacks."""


def run_checks(facts: ClusterFacts) -> Iterator[Finding]:
    """Yield the results of all checks of a cluster."""
    yield _version(facts)
    yield _namespace(facts)
    yield from _check_engine_kinds(facts)
    yield _queue(facts)
    yield from _controller(facts)
    yield from check_features(facts.features, facts.engines, has_kueue=KUEUE_GROUP in facts.groups)
    yield _nodes(facts)
    yield _network_policy(facts)
    yield _monitor(facts)
    yield from check_permissions(facts.missing, facts.namespace)


def _version(facts: ClusterFacts) -> Finding:
    found = f"Kubernetes {facts.version} at {facts.server}, as {facts.user or 'somebody'}"
    major, _, minor = facts.version.removeprefix("v").partition(".")
    known = (int(major or 0), int("".join(filter(str.isdigit, minor.partition(".")[0])) or 0))
    if known < OLDEST:
        return warning(found, f"--engine job needs Kubernetes {OLDEST[0]}.{OLDEST[1]}.", subject="API server")
    return ok(found, subject="API server")


def _namespace(facts: ClusterFacts) -> Finding:
    if not facts.has_namespace:
        return error(f"'{facts.namespace}' does not exist", "Choose another with -n.", subject="namespace")
    if facts.labels is None:
        return ok(f"'{facts.namespace}'; its labels may not be read, any Pod Security will do", subject="namespace")
    profile = facts.labels.get("pod-security.kubernetes.io/enforce", "")
    found = f"'{facts.namespace}', Pod Security {profile or 'not enforced'}; our pods pass restricted"
    return Finding(Severity.OK if profile in _PROFILES else Severity.WARNING, found, subject="namespace")


def _check_engine_kinds(facts: ClusterFacts) -> Iterator[Finding]:
    for name, engine in ENGINES.items():
        if name in facts.engines:
            yield _operator(facts, engine.operator, engine.kind, f"engine {name}")
    absent = [name for name in ENGINES if name not in facts.engines]
    if absent:
        yield ok(f"{', '.join(absent)} not served; --engine auto takes another", subject="other engines")


def _operator(facts: ClusterFacts, who: Operator, kind: str, subject: str) -> Finding:
    name = f"{kind} is served; {who.name}"
    if not who.selector:
        return ok(f"{name} acts on it", subject=subject)
    pods = facts.operators.get(who.selector)
    if pods is None:
        return warning(f"{name} may not be seen", subject=subject)
    if not pods:
        fix = f"Start it, or use another --engine; its pods have {who.selector}."
        return error(f"{name} does not run", fix, subject=subject)
    if ready := [pod for pod in pods if holds(pod, "Ready")]:
        return ok(f"{name} {_version_of(ready[0])}runs ({len(ready)} ready)", subject=subject)
    place = f"-n {pods[0]['metadata']['namespace']} -l {who.selector}"
    return error(f"{name} is not ready", f"'kubectl describe pods {place}' shows the reason.", subject=subject)


def _version_of(pod: Object) -> str:
    """Return the tag of the image of an operator's pod, followed by a space; empty if it has none."""
    containers = (pod.get("spec") or {}).get("containers") or [{}]
    _, colon, tag = str(containers[0].get("image", "")).partition("@")[0].rpartition("/")[2].partition(":")
    return f"{tag} " if colon else ""


def _queue(facts: ClusterFacts) -> Finding:
    if KUEUE_GROUP not in facts.groups:
        return ok("Kueue is not served; --queue needs it, or Volcano or KAI", subject="queues")
    found = _operator(facts, KUEUE, "Kueue", "queues")
    if facts.local_queues is not None:
        names = ", ".join(facts.local_queues) or "none"
        found = replace(found, message=f"{found.message}; LocalQueues of '{facts.namespace}': {names}")
    return replace(found, severity=Severity.WARNING) if found.severity is Severity.ERROR else found


def _controller(facts: ClusterFacts) -> Iterator[Finding]:
    found = facts.operators.get(CONTROLLER_SELECTOR)
    if found is None:
        return
    pods = controller_pods(found, facts.namespace)
    if trouble := controller_problem(pods):
        yield warning(trouble, fix_of(pods), subject="controller")
    else:
        ready = sum(holds(pod, "Ready") for pod in pods)
        yield ok(f"runs ({ready} ready)" if pods else "not installed; it is optional", subject="controller")


def _nodes(facts: ClusterFacts) -> Finding:
    if facts.nodes is None:
        return warning("may not be listed", "preflight and why say less without.", subject="nodes")
    return Finding(
        Severity.OK if facts.nodes else Severity.ERROR,
        f"{facts.nodes} ready, nvidia.com/gpu: {facts.gpus}",
        subject="nodes",
    )


def _network_policy(facts: ClusterFacts) -> Finding:
    fix = "Where none is enforced, pods of others reach the rendezvous port; see SECURITY.md."
    if facts.daemons is None:
        return warning("who enforces it may not be seen", fix, subject="NetworkPolicy")
    found = sorted({known for known in ENFORCERS for name in facts.daemons if known in name})
    if found:
        return ok(f"enforced by {', '.join(found)}", subject="NetworkPolicy")
    return warning("no known enforcer among the DaemonSets", fix, subject="NetworkPolicy")


def _monitor(facts: ClusterFacts) -> Finding:
    if "monitoring.coreos.com" in facts.groups:
        return ok("PodMonitor is served, so jobs are scraped", subject="Prometheus")
    return warning("PodMonitor is not served", "'top' works without; dashboards need it.", subject="Prometheus")


MAX_LIMITATIONS: Final = 3


def check_permissions(missing: Collection[Right] | None, namespace: str) -> Iterator[Finding]:
    """Yield the missing rights and their consequences. ``None`` means that the API server does not report rights."""
    if missing is None:
        yield warning("the API server does not report your rights", "Try 'kubectl auth can-i'.", subject="rights")
        return
    for section, commands in SECTIONS.items():
        lacks = [(need, right) for need, right in needs(commands=commands) if right in missing]
        what = f"rights: {section}"
        if lacks:
            named = summarize_permissions(right for _, right in lacks)
            yield Finding(_severity(lacks), f"missing: {named}", _fix(lacks, commands), subject=what)
        else:
            yield ok(f"{', '.join(commands)}: all granted in namespace '{namespace}'", subject=what)


def _severity(lacks: Sequence[tuple[Need, Right]]) -> Severity:
    """Return ERROR if a Role of the namespace is enough to fix it. Broader rights are a matter of trust, so WARNING."""
    fails = any(need.is_required and not need.is_broad and right.where == OWN for need, right in lacks)
    return Severity.ERROR if fails else Severity.WARNING


def _fix(lacks: Sequence[tuple[Need, Right]], commands: Sequence[str]) -> str:
    failing = {command for need, _ in lacks if need.is_required for command in need.commands}
    requested = {right for need, right in needs() if not need.is_broad}
    broad = summarize_permissions(right for _, right in lacks if right not in requested)
    less = list(dict.fromkeys(need.without for need, _ in lacks if need.without))
    if _severity(lacks) is Severity.ERROR:
        less = []  # limitations do not matter for a command that fails
    more = f" and {len(less) - MAX_LIMITATIONS} more" if len(less) > MAX_LIMITATIONS else ""
    parts = [
        f"{', '.join(command for command in commands if command in failing)} cannot work" if failing else "",
        f"'{broad}' opens every pod of the namespace, so request it separately" if broad else "",
        f"{'; '.join(less[:MAX_LIMITATIONS])}{more}" if less else "",
    ]
    text = "; ".join(filter(None, parts))
    return f"{text[:1].upper()}{text[1:]}."
