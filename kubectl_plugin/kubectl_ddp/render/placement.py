"""Placement of the pods: node labels, and topology between nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.spec.rules import REQUIRED
from kubectl_ddp.values.node_requirements import GPU_PRODUCT, Placement


def view(spec: JobSpec, mine: Mapping[str, str], node_labels: Sequence[str] = ()) -> dict[str, Any]:
    """Return the placement settings for the pod template.

    Args:
        spec: The job.
        mine: Labels that all its worker pods share.
        node_labels: Labels that a node must have, with any value.
    """
    product = {GPU_PRODUCT: spec.gpu_type} if spec.gpu_type else {}
    return {
        "node_selector": {**spec.node_selector, **product},
        "affinity": {**(spec.affinity or {}), **_affinity(spec, mine), **_node_affinity(spec, node_labels)},
        "spread": _spread(spec, mine),
    }


def _affinity(spec: JobSpec, mine: Mapping[str, str]) -> dict[str, Any]:
    """Return affinity that places a pod next to others of its job.

    Kubernetes accepts the first pod without any others.
    """
    terms = {
        required: [
            {"topologyKey": wish.key, "labelSelector": {"matchLabels": dict(mine)}}
            for wish in spec.topology
            if wish.placement is Placement.PACK and wish.required is required
        ]
        for required in (True, False)
    }
    found: dict[str, Any] = {}
    if terms[True]:
        found[REQUIRED] = terms[True]
    if terms[False]:
        found["preferredDuringSchedulingIgnoredDuringExecution"] = [
            {"weight": 100, "podAffinityTerm": term} for term in terms[False]
        ]
    return {"podAffinity": found} if found else {}


def _node_affinity(spec: JobSpec, labels: Sequence[str]) -> dict[str, Any]:
    """Return the job's affinity for nodes, of which every alternative also wants these labels, with any value."""
    if not labels:
        return {}
    chosen = (spec.affinity or {}).get("nodeAffinity") or {}
    terms = (chosen.get(REQUIRED) or {"nodeSelectorTerms": [{}]})["nodeSelectorTerms"]
    exists = [{"key": label, "operator": "Exists"} for label in labels]
    combined = [{**term, "matchExpressions": [*(term.get("matchExpressions") or ()), *exists]} for term in terms]
    return {"nodeAffinity": {**chosen, REQUIRED: {"nodeSelectorTerms": combined}}}


def _spread(spec: JobSpec, mine: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        {
            "maxSkew": 1,
            "topologyKey": wish.key,
            "whenUnsatisfiable": "DoNotSchedule" if wish.required else "ScheduleAnyway",
            "labelSelector": {"matchLabels": dict(mine)},
        }
        for wish in spec.topology
        if wish.placement is Placement.SPREAD
    ]
