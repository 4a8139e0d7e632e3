"""The presets that the namespace of a job shares, asked for where a cluster is meant."""

from __future__ import annotations

import dataclasses

from kubectl_ddp.backends import Where, cluster_of, is_local
from kubectl_ddp.spec.shared_presets import SharedPresets


def shared_by(where: Where, namespace: str | None = None) -> SharedPresets:
    """Those of the namespace where ``where`` looks; this machine has none. Raises DdpError where it cannot be asked."""
    at = dataclasses.replace(where.where, namespace=namespace or where.namespace)
    return SharedPresets() if is_local(at) else cluster_of(at).shared_presets()
