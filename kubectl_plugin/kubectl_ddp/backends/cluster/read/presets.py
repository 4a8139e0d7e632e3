"""Shared presets of a namespace, from its ConfigMap."""

from __future__ import annotations

from kubectl_ddp.backends.cluster.http.api import Api, collection
from kubectl_ddp.errors import NotFound
from kubectl_ddp.spec.shared_presets import CONFIG_MAP, SharedPresets


def shared_presets(api: Api, namespace: str) -> SharedPresets:
    """Return the presets of a namespace; empty without the ConfigMap. Raises Forbidden and Unreachable."""
    place = f"the ConfigMap '{CONFIG_MAP}' in namespace '{namespace}'"
    try:
        found = api.get(f"{collection('v1', 'configmaps', namespace)}/{CONFIG_MAP}")
    except NotFound:
        return SharedPresets(place)
    return SharedPresets(place, found.get("data") or {})
