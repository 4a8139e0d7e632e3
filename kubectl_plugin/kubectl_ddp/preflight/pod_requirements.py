"""Requirements of a pod: resources, eligible machines, and placement relative to its own kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kubectl_ddp.preflight.quantities import Amounts, requests_of

REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequirements:
    """Requirements of each pod of one kind."""

    wants: Amounts
    selector: Mapping[str, str]
    affinity: tuple[Mapping[str, Any], ...]
    """Terms of the required node affinity, at least one of which must match."""
    tolerations: tuple[Mapping[str, Any], ...]
    together: tuple[str, ...]
    """Topology labels whose value all pods must share."""
    spread: tuple[str, ...]
    """Topology labels over whose values the pods must be spread with a skew of at most one."""


def pod_requirements(pod: Mapping[str, Any]) -> PodRequirements:
    """Return the requirements of a pod specification rendered by this package, whose pod affinity refers to its own
    kind.
    """
    affinity = pod.get("affinity") or {}
    nodes = (affinity.get("nodeAffinity") or {}).get(REQUIRED) or {}
    spread = pod.get("topologySpreadConstraints") or ()
    return PodRequirements(
        wants=requests_of(pod),
        selector=pod.get("nodeSelector") or {},
        affinity=tuple(nodes.get("nodeSelectorTerms") or ()),
        tolerations=tuple(pod.get("tolerations") or ()),
        together=tuple(term["topologyKey"] for term in (affinity.get("podAffinity") or {}).get(REQUIRED) or ()),
        spread=tuple(each["topologyKey"] for each in spread if each["whenUnsatisfiable"] == "DoNotSchedule"),
    )
