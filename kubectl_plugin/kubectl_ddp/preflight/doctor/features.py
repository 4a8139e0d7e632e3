"""Findings about optional features of a cluster: gang schedulers, restarts in place, elastic jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kubectl_ddp.engines import ENGINES
from kubectl_ddp.util.finding import Finding, Severity, ok
from kubectl_ddp.values.engine import Gang

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
    yield _gangs(features, has_kueue=has_kueue)
    yield _restarts(features.restart_actions)
    yield _elastic(features, engines, has_kueue=has_kueue)


def _gangs(features: ClusterFeatures, *, has_kueue: bool) -> Finding:
    told = ["kueue, with --queue"] if has_kueue else []
    told += [
        f"native ({version}, engines {', '.join(features.native_engines) or 'none'})"
        if gang is Gang.NATIVE
        else f"{gang} ({version})"
        for gang, version in features.gangs.items()
    ]
    off = "native is off, without the feature gates GenericWorkload and GangScheduling"
    told += [] if Gang.NATIVE in features.gangs else [off]
    return ok(f"--gang: {'; '.join(told)}", subject="gang schedulers")


def _restarts(actions: Sequence[str] | None) -> Finding:
    if actions is None:
        return Finding(
            Severity.UNKNOWN, "the API server takes no dry run of a Job from you", subject="restart in place"
        )
    told = {
        RESTART: "a container alone (feature gate ContainerRestartRules)",
        RESTART_ALL: "all containers of a pod (RestartAllContainersOnContainerExits)",
    }
    on, off = (
        " and ".join(text for action, text in told.items() if (action in actions) is is_on) for is_on in (True, False)
    )
    text = "; ".join(filter(None, [on and f"restart rules for {on}", off and f"no restart rules for {off}"]))
    return ok(text, subject="restart in place")


def _elastic(features: ClusterFeatures, engines: Sequence[str], *, has_kueue: bool) -> Finding:
    served = [ENGINES[name] for name in engines]
    always = [engine.name for engine in served if engine.is_scalable]
    told = [f"scale works with {' and '.join(always)}"] if always else []
    told += [f"{each.name}: {_gate(features, each.scaling_gate)}" for each in served if each.scaling_gate]
    told += [f"Kueue: {_gate(features, KUEUE_ELASTIC_GATE)}"] if has_kueue else []
    return ok("; ".join(told) or "no served engine can be scaled", subject="elastic jobs")


def _gate(features: ClusterFeatures, gate: str) -> str:
    if gate not in features.gates:
        return f"whether {gate} is on cannot be read"
    is_on = features.gates[gate]
    return (
        f"{gate} is not configured, so its default applies"
        if is_on is None
        else f"{gate} is {'on' if is_on else 'off'}"
    )
