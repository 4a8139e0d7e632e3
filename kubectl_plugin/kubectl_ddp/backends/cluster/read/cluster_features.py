"""Detection of optional features of a cluster by what its API server serves, takes and stores; nothing is created.

Feature gates cannot be read without the rights of an administrator, and versions do not tell them. So each feature is
detected by its API: a served kind, a field of a schema, a dry run, or the configuration of its controller.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import yaml

from kubectl_ddp.backends.cluster.http.api import Api, collection
from kubectl_ddp.backends.cluster.http.resources import Discovery
from kubectl_ddp.engines import ENGINES, EngineKind
from kubectl_ddp.errors import DdpError, UsageError
from kubectl_ddp.preflight.doctor import CONFIGURED_GATES, RESTART_ACTIONS, ClusterFeatures
from kubectl_ddp.preflight.model import Unknown
from kubectl_ddp.render.choose import GANG_KINDS
from kubectl_ddp.util.bounded_answer import API_DOCUMENT
from kubectl_ddp.util.concurrency import map_concurrently, run_concurrently
from kubectl_ddp.values.program import Gang

SCHEDULING_GROUP: Final = '"schedulingGroup"'
"""Field of a pod that names its PodGroup, as the OpenAPI schema of a kind with pods has it."""
GIVEN_CODE: Final = 129
"""Exit code in the restart rule of the dry run; its value does not matter."""


def passes_scheduling_group(api: Api, engine: EngineKind) -> bool | Unknown:
    """Return whether the pods of an engine keep ``spec.schedulingGroup``. CRDs drop fields that they do not know."""
    try:
        return SCHEDULING_GROUP in api.text(f"/openapi/v3/apis/{engine.api_version}", limits=API_DOCUMENT)
    except DdpError as error:
        return Unknown(
            f"Whether pods of the engine {engine.name} can be in a native gang is not known: {error.message}"
        )


def detect_features(api: Api, discovery: Discovery, namespace: str, engines: list[str]) -> ClusterFeatures:
    """Return the optional features of a cluster that serves ``engines``."""
    gangs = _served_gangs(discovery)
    asked = [ENGINES[name] for name in engines] if Gang.NATIVE in gangs else []
    actions, gates = run_concurrently(partial(_restart_actions, api, namespace), partial(_configured_gates, api))
    passed = map_concurrently(partial(passes_scheduling_group, api), asked)
    native = [engine.name for engine, passes in zip(asked, passed, strict=True) if passes is True]
    return ClusterFeatures(gangs=gangs, native_engines=native, restart_actions=actions, gates=gates)


def _served_gangs(discovery: Discovery) -> dict[Gang, str]:
    """Return gang scheduler → served version of the kind that identifies it, in order of preference."""
    found: dict[Gang, str] = {}
    for gang, (version, kind) in GANG_KINDS:
        if gang not in found and discovery.resource_for_kind(version, kind) is not None:
            found[gang] = version
    return found


def _restart_actions(api: Api, namespace: str) -> list[str] | None:
    """Return the actions of container restart rules that the API server stores, by dry runs of a Job; ``None`` if it
    takes no dry run.
    """
    found = []
    for action in RESTART_ACTIONS:
        try:
            stored = api.create(
                collection("batch/v1", "jobs", namespace), _job_with(action), dryRun="All", fieldValidation="Ignore"
            )
        except UsageError:  # an unknown action is invalid
            continue
        except DdpError:
            return None
        [container] = stored["spec"]["template"]["spec"]["containers"]
        found += [action] if container.get("restartPolicyRules") else []  # a field whose gate is off is dropped
    return found


def _job_with(action: str) -> dict[str, Any]:
    rule = {"action": action, "exitCodes": {"operator": "In", "values": [GIVEN_CODE]}}
    container = {"name": "check", "image": "check", "restartPolicy": "Never", "restartPolicyRules": [rule]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "ddp-doctor-check"},
        "spec": {"suspend": True, "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
    }


def _configured_gates(api: Api) -> dict[str, bool | None]:
    """Return feature gate → its value in its controller's configuration, ``None`` if unset; without unreadable ones."""
    found: dict[str, bool | None] = {}
    for gate, config_map in CONFIGURED_GATES.items():
        try:
            data = api.get(config_map).get("data") or {}
            told = yaml.safe_load(next(iter(data.values()), ""))
        except (DdpError, yaml.YAMLError):
            continue
        gates = told.get("featureGates") if isinstance(told, Mapping) else None
        found[gate] = gates.get(gate) if isinstance(gates, Mapping) else None
    return found
