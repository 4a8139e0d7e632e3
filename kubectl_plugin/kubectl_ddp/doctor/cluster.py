"""Checks of a cluster: served APIs, running operators, and rights of the user."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kubectl_ddp.doctor.model import CheckResult, Verdict
from kubectl_ddp.doctor.permissions import check_permissions as judge_rights
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.conditions import holds
from kubectl_ddp.kube.controllers import KUEUE, OPERATORS, Operator
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.rbac.model import Right
from kubectl_ddp.rbac.table import KINDS, Kind

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
    served: Collection[Kind] = KINDS
    """Kinds used by commands that the cluster serves."""
    missing: Sequence[Right] | None = ()
    """Rights that commands need and the user lacks."""


def run_checks(facts: ClusterFacts) -> Iterator[CheckResult]:
    """Yield the results of all checks of a cluster."""
    yield _version(facts)
    yield _namespace(facts)
    yield from _check_engine_kinds(facts)
    yield _queue(facts)
    yield _nodes(facts)
    yield _network_policy(facts)
    yield _monitor(facts)
    yield from judge_rights(facts.missing, facts.namespace)


def _version(facts: ClusterFacts) -> CheckResult:
    found = f"Kubernetes {facts.version} at {facts.server}, as {facts.user or 'somebody'}"
    major, _, minor = facts.version.removeprefix("v").partition(".")
    known = (int(major or 0), int("".join(filter(str.isdigit, minor.partition(".")[0])) or 0))
    if known < OLDEST:
        return CheckResult("API server", Verdict.WARN, found, f"--engine job needs Kubernetes {OLDEST[0]}.{OLDEST[1]}.")
    return CheckResult("API server", Verdict.OK, found)


def _namespace(facts: ClusterFacts) -> CheckResult:
    if not facts.has_namespace:
        return CheckResult("namespace", Verdict.FAIL, f"'{facts.namespace}' does not exist", "Choose another with -n.")
    if facts.labels is None:
        return CheckResult(
            "namespace", Verdict.OK, f"'{facts.namespace}'; its labels may not be read, any Pod Security will do"
        )
    profile = facts.labels.get("pod-security.kubernetes.io/enforce", "")
    found = f"'{facts.namespace}', Pod Security {profile or 'not enforced'}; our pods pass restricted"
    return CheckResult("namespace", Verdict.OK if profile in _PROFILES else Verdict.WARN, found)


def _check_engine_kinds(facts: ClusterFacts) -> Iterator[CheckResult]:
    for engine, root in job_kinds.ROOTS.items():
        if engine not in facts.engines:
            continue
        who = OPERATORS[engine]
        verdict, found, fix = _operator(facts, who) if who.selector else (Verdict.OK, f"{who.name} acts on it", "")
        yield CheckResult(f"engine {engine}", verdict, f"{root.kind} is served; {found}", fix)
    absent = [engine for engine in job_kinds.ROOTS if engine not in facts.engines]
    if absent:
        yield CheckResult("other engines", Verdict.OK, f"{', '.join(absent)} not served; --engine auto takes another")


def _operator(facts: ClusterFacts, who: Operator) -> tuple[Verdict, str, str]:
    pods = facts.operators.get(who.selector)
    if pods is None:
        return Verdict.WARN, f"whether {who.name} runs may not be seen", ""
    if not pods:
        return (
            Verdict.FAIL,
            f"{who.name} does not run",
            f"Start it, or use another --engine; its pods have {who.selector}.",
        )
    ready = [pod for pod in pods if holds(pod, "Ready")]
    if not ready:
        place = f"-n {pods[0]['metadata']['namespace']} -l {who.selector}"
        return Verdict.FAIL, f"{who.name} is not ready", f"'kubectl describe pods {place}' says why."
    return Verdict.OK, f"{who.name} runs ({len(ready)} ready)", ""


def _queue(facts: ClusterFacts) -> CheckResult:
    if "kueue.x-k8s.io" not in facts.groups:
        return CheckResult("queues", Verdict.OK, "Kueue is not served; --queue needs it, or Volcano or KAI")
    verdict, found, fix = _operator(facts, KUEUE)
    return CheckResult("queues", Verdict.WARN if verdict is Verdict.FAIL else verdict, f"Kueue is served; {found}", fix)


def _nodes(facts: ClusterFacts) -> CheckResult:
    if facts.nodes is None:
        return CheckResult("nodes", Verdict.WARN, "may not be listed", "preflight and why say less without.")
    return CheckResult(
        "nodes", Verdict.OK if facts.nodes else Verdict.FAIL, f"{facts.nodes} ready, nvidia.com/gpu: {facts.gpus}"
    )


def _network_policy(facts: ClusterFacts) -> CheckResult:
    fix = "Where none is enforced, pods of others reach the rendezvous port; see SECURITY.md."
    if facts.daemons is None:
        return CheckResult("NetworkPolicy", Verdict.WARN, "who enforces it may not be seen", fix)
    found = sorted({known for known in ENFORCERS for name in facts.daemons if known in name})
    if found:
        return CheckResult("NetworkPolicy", Verdict.OK, f"enforced by {', '.join(found)}")
    return CheckResult("NetworkPolicy", Verdict.WARN, "no known enforcer among the DaemonSets", fix)


def _monitor(facts: ClusterFacts) -> CheckResult:
    if "monitoring.coreos.com" in facts.groups:
        return CheckResult("Prometheus", Verdict.OK, "PodMonitor is served, so jobs are scraped")
    return CheckResult(
        "Prometheus", Verdict.WARN, "PodMonitor is not served", "'top' works without; dashboards need it."
    )
