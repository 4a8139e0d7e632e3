"""Additional volumes that a job requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.values.volumes import Mount, Source

READABLE_BY_GROUP: Final = 0o440
"""Mode of a Secret's files: readable by the pod's group."""


def view(spec: JobSpec) -> dict[str, Any]:
    """Return the additional volumes and their mounts for the pod template."""
    volumes, mounts = [], []
    for name, source, mount in (*_mounts(spec), *_secrets(spec)):
        volumes.append({"name": name, **source})
        mounts.append({"name": name, **mount})
    return {"more_volumes": volumes, "more_mounts": mounts}


def _mounts(spec: JobSpec) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    for number, mount in enumerate(spec.mounts):
        manner = {"readOnly": True} if mount.read_only or mount.source is Source.CONFIG_MAP else {}
        yield f"mount-{number}", VOLUMES[mount.source](mount), {"mountPath": mount.path, **manner}


def _secrets(spec: JobSpec) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    for number, files in enumerate(spec.secrets):
        source = {"secret": {"secretName": files.secret, "defaultMode": READABLE_BY_GROUP}}
        yield f"secret-{number}", source, {"mountPath": files.path, "readOnly": True}


VOLUMES: Final[Mapping[Source, Callable[[Mount], dict[str, Any]]]] = {
    Source.CLAIM: lambda mount: {
        "persistentVolumeClaim": {"claimName": mount.name} | ({"readOnly": True} if mount.read_only else {})
    },
    Source.CONFIG_MAP: lambda mount: {"configMap": {"name": mount.name}},
    Source.EMPTY: lambda mount: {"emptyDir": {"sizeLimit": mount.name}},
}
