"""What a pod asks of the machines: what it takes, which it can be on, and how pods like it lie to one another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kubectl_ddp.checks.quantities import Amounts, requests_of

REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequirements:
    """One pod of a kind of which there may be many."""

    wants: Amounts
    selector: Mapping[str, str]
    affinity: tuple[Mapping[str, Any], ...]
    """Terms of the required node affinity, of which one must hold."""
    tolerations: tuple[Mapping[str, Any], ...]
    together: tuple[str, ...]
    """Labels in whose value all such pods agree."""
    spread: tuple[str, ...]
    """Labels over whose values they lie evenly, to one more or less."""


def pod_requirements(pod: Mapping[str, Any]) -> PodRequirements:
    """Of a pod's specification, as we render it: what its affinity to pods names are its own kind."""
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
