"""Additional volumes that a job requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from ddp_trainer.common.constants import Path
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.values.volumes import Mount, Source

READABLE_BY_GROUP: Final = 0o440
"""Mode of a Secret's files: readable by the pod's group."""

_PACKAGES: Final[tuple[str, dict[str, Any], dict[str, Any]]] = (
    "packages",
    {"emptyDir": {}},
    {"mountPath": str(Path.PACKAGES)},
)


def view(spec: JobSpec, *, is_local: bool) -> dict[str, Any]:
    """Return the additional volumes and their mounts for the pod template."""
    volumes, mounts = [], []
    packages = () if is_local or spec.requirements is None else (_PACKAGES,)
    for name, source, mount in (*_mounts(spec), *_secrets(spec), *_compile_cache(spec), *packages):
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


def _compile_cache(spec: JobSpec) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    if spec.compile_cache is not None and compile_cache_directory(spec) == Path.COMPILE_CACHE:
        source = {"persistentVolumeClaim": {"claimName": spec.compile_cache}}
        yield "compile-cache", source, {"mountPath": str(Path.COMPILE_CACHE)}


def compile_cache_directory(spec: JobSpec) -> str | None:
    """Return the directory of the compile cache in the pod, or None without one."""
    if spec.compile_cache is None or spec.compile_cache.startswith("/"):
        return spec.compile_cache
    return str(Path.COMPILE_CACHE)


VOLUMES: Final[Mapping[Source, Callable[[Mount], dict[str, Any]]]] = {
    Source.CLAIM: lambda mount: {
        "persistentVolumeClaim": {"claimName": mount.name} | ({"readOnly": True} if mount.read_only else {})
    },
    Source.CONFIG_MAP: lambda mount: {"configMap": {"name": mount.name}},
    Source.EMPTY: lambda mount: {"emptyDir": {"sizeLimit": mount.name}},
}
