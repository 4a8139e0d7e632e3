"""Strategic merge patch of a pod template, as ``kubectl patch`` applies it: the part of the format that pods need."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from kubectl_ddp.errors import UsageError

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
