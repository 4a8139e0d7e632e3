"""Presets that a namespace shares, for jobs of a cluster."""

from __future__ import annotations

import dataclasses

from kubectl_ddp.backends.select import Where, cluster_of, is_local
from kubectl_ddp.spec.shared_presets import SharedPresets


def shared_by(where: Where, namespace: str | None = None) -> SharedPresets:
    """Return the presets of the namespace; empty on this machine. Raises DdpError if the cluster cannot be read."""
    at = dataclasses.replace(where.where, namespace=namespace or where.namespace)
    return SharedPresets() if is_local(at) else cluster_of(at).shared_presets()
