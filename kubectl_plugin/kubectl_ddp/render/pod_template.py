"""The key ``podTemplate``: the user's patch of the workers' pods, applied last, which keeps what the job needs.

It is a strategic merge patch, as ``kubectl patch`` applies it: the part of the format that pods need.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kubectl_ddp.errors import UsageError
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.render import metadata
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.spec.rules import check_mount_path, check_variable

MERGE_KEYS: Final[Mapping[str, str]] = {
    "containers": "name",
    "env": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ports": "containerPort",
    "resourceClaims": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""List of a pod → field that identifies its entries (``patchMergeKey`` of the API). Other lists are replaced."""
SETS: Final = frozenset({"tolerations"})
"""Lists to which a patch adds. Kubernetes replaces them, and with them the job's own tolerations of lost nodes."""
DIRECTIVE: Final = "$patch"
DELETE: Final = "delete"
REPLACE: Final = "replace"


def merge(base: Any, patch: Any, path: str) -> Any:
    """Return ``base`` with a patch applied; null and ``$patch: delete`` remove, ``$patch: replace`` replaces.

    Args:
        base: Map of an object.
        patch: Patch of it.
        path: Path of the patch, for messages.

    Raises:
        UsageError: If the patch does not have the form of the object.
    """
    if not isinstance(patch, Mapping):
        raise UsageError(f"{path} is '{patch}', not a map.", hint="Write it as in a pod.")
    if patch.get(DIRECTIVE) == REPLACE:
        return merge({}, {key: value for key, value in patch.items() if key != DIRECTIVE}, path)
    _check_directives(patch, path)
    merged = dict(base) if isinstance(base, Mapping) else {}
    for key, value in patch.items():
        if value is None or (isinstance(value, Mapping) and value.get(DIRECTIVE) == DELETE):
            merged.pop(key, None)
        elif isinstance(value, Mapping) and key not in MERGE_KEYS:
            merged[key] = merge(merged.get(key), value, f"{path}.{key}")
        elif key in MERGE_KEYS:
            merged[key] = _merge_list(merged.get(key) or [], value, MERGE_KEYS[key], f"{path}.{key}")
        elif isinstance(merged.get(key), Mapping):
            raise UsageError(f"{path}.{key} is '{value}', not a map.", hint="Write it as in a pod.")
        elif key in SETS and isinstance(value, list):
            old = merged.get(key) or []
            merged[key] = [*old, *(item for item in value if item not in old)]
        else:
            merged[key] = value
    return merged


def _merge_list(base: list[Any], patch: Any, merge_key: str, path: str) -> list[Any]:
    if not isinstance(patch, list):
        raise UsageError(f"{path} is '{json.dumps(patch)}', not a list.", hint="Write it as in a pod.")
    merged = {item[merge_key]: item for item in base}
    for index, item in enumerate(patch):
        if isinstance(item, Mapping) and set(item) == {DIRECTIVE} and item[DIRECTIVE] == REPLACE:
            merged = {}
            continue
        name = item.get(merge_key) if isinstance(item, Mapping) else None
        if not isinstance(name, (str, int)):
            raise UsageError(f"{path}[{index}] has no {merge_key}.", hint=f"Name the entry by its {merge_key}.")
        if item.get(DIRECTIVE) == DELETE:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), item, f"{path}[{name}]")
    return list(merged.values())


def _check_directives(patch: Mapping[str, Any], path: str) -> None:
    for key in patch:
        if str(key).startswith("$"):
            raise UsageError(
                f"{path} has the directive '{key}: {patch[key]}', which is not known here.",
                hint=f"Write '{DIRECTIVE}: {DELETE}', '{DIRECTIVE}: {REPLACE}', or null for a field.",
            )


KEY: Final = "podTemplate"
WORKER: Final = "worker"
"""Name of the job's container in a patch on every engine; the engine's own name is also accepted."""
OF_POD: Final = ("restartPolicy", "subdomain", "schedulerName", "schedulingGroup", "terminationGracePeriodSeconds")
OF_CONTAINER: Final = (
    *("image", "command", "args", "workingDir", "terminationMessagePath", "terminationMessagePolicy"),
    *("resources.requests", "resources.limits"),
)
NODE_RESOLVERS: Final = {False: {"Default"}, True: {"Default", "ClusterFirst"}}
"""Values of dnsPolicy with which a pod uses the resolver of its node, by hostNetwork."""
KEYS: Final = {
    "schedulerName": "scheduler",
    "terminationGracePeriodSeconds": "grace",
    "image": "image",
    "resources": "cpu, memory, shm or gpus",
}
"""Field of a pod → key of the job that sets it."""
ENTRIES: Final = {"env": "name", "ports": "containerPort", "volumeMounts": "mountPath"}


def patched(template: Object, spec: JobSpec, container: str) -> Object:
    """Return the pod template of the workers with the job's patch.

    Args:
        template: Rendered template.
        spec: The job.
        container: Name of the job's container.

    Raises:
        UsageError: If the patch is malformed, or removes or changes a field that the job needs.
    """
    patch = _with_container_name(spec.pod_template or {}, container)
    merged: Object = merge(template, patch, KEY)
    before, after = dict(_needs(template, spec, container)), dict(_needs(merged, spec, container))
    for field, value in before.items():
        if after.get(field) != value:
            name = next((name for name in KEYS if name in field), "")
            raise UsageError(
                f"{KEY} removes or changes {field}, which the job needs.",
                hint=f"Set {KEYS[name]} instead." if name else "Leave it out of the patch.",
            )
    _check_additions(template, merged, container)
    return merged


def local_part(patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a patch that has a meaning on this machine: variables with values of the job's container."""
    containers = (patch.get("spec") or {}).get("containers") or ()
    variables = [
        variable
        for item in containers
        if isinstance(item, Mapping) and item.get("name") == WORKER
        for variable in item.get("env") or ()
        if isinstance(variable, Mapping) and "valueFrom" not in variable
    ]
    return {"spec": {"containers": [{"name": WORKER, "env": variables}]}} if variables else {}


def _with_container_name(patch: Mapping[str, Any], container: str) -> dict[str, Any]:
    spec = patch.get("spec")
    if not isinstance(spec, Mapping) or not isinstance(spec.get("containers"), list):
        return dict(patch)
    named = [
        {**item, "name": container} if isinstance(item, Mapping) and item.get("name") == WORKER else item
        for item in spec["containers"]
    ]
    return {**patch, "spec": {**spec, "containers": named}}


def _needs(template: Object, spec: JobSpec, container: str) -> Iterator[tuple[str, Any]]:
    """Yield path and value of the fields that a patch may not change; the user's own values may be changed."""
    meta = _map_of(template.get("metadata"))
    free = {"labels": {*spec.labels, *metadata.NO_PROXY}, "annotations": {*spec.annotations, *metadata.NO_EVICTION}}
    for kind, chosen in free.items():
        for name, value in _map_of(meta.get(kind)).items():
            if name not in chosen:
                yield f"metadata.{kind}[{name}]", value
    pod = _map_of(template.get("spec"))
    yield from ((f"spec.{field}", pod[field]) for field in OF_POD if field in pod)
    for kind in ("volumes", "initContainers", "resourceClaims"):
        yield from ((f"spec.{kind}[{entry['name']}]", entry) for entry in pod.get(kind) or ())
    for item in pod.get("containers") or ():
        if item["name"] == container:
            yield from _needs_of_container(item, f"spec.containers[{WORKER}]", {*spec.env, *spec.secret_env})


def _map_of(value: Any) -> Mapping[str, Any]:
    """Return a map of an object; empty if a patch has removed it or made it something else."""
    return value if isinstance(value, Mapping) else {}


def _needs_of_container(container: Object, path: str, users: set[str]) -> Iterator[tuple[str, Any]]:
    yield path, container["name"]
    for field in OF_CONTAINER:
        head, _, rest = field.partition(".")
        value = container.get(head)
        if rest:
            yield from ((f"{path}.{field}[{name}]", size) for name, size in _map_of(_map_of(value).get(rest)).items())
        elif value is not None:
            yield f"{path}.{field}", value
    for kind, key in ENTRIES.items():
        for entry in container.get(kind) or ():
            if kind != "env" or entry[key] not in users | {"HOME", "USER", "LOGNAME"}:
                yield f"{path}.{kind}[{entry[key]}]", entry


def _check_additions(before: Object, after: Object, container: str) -> None:
    for item in after["spec"]["containers"]:
        if item["name"] != container:
            raise UsageError(
                f"{KEY} adds the container '{item['name']}' to spec.containers, which would keep the job from ending.",
                hint="Put it into spec.initContainers with 'restartPolicy: Always': it then ends with the job.",
            )
    is_on_host = after["spec"].get("hostNetwork") is True
    policy = after["spec"].get("dnsPolicy") or "ClusterFirst"
    if policy in NODE_RESOLVERS[is_on_host]:
        where = "the node's network and " if is_on_host else ""
        raise UsageError(
            f"{KEY} gives the pods {where}dnsPolicy {policy}, so they cannot resolve the Service of the job.",
            hint=f"Set dnsPolicy: {'ClusterFirstWithHostNet' if is_on_host else 'ClusterFirst'}.",
        )
    [old], [new] = before["spec"]["containers"], after["spec"]["containers"]
    for kind, check in (("env", check_variable), ("volumeMounts", check_mount_path)):
        key = ENTRIES[kind]
        known = {entry[key] for entry in old.get(kind) or ()}
        for entry in new.get(kind) or ():
            if entry[key] not in known:
                check(str(entry[key]))
