"""Volumes as directories of this machine: creation for a pod's mounts, and removal.

An emptyDir belongs to one pod and is removed with it. With medium Memory it is also in memory here. A claim belongs to
the job: every pod that mounts it uses the same directory. A mount below another mount is a link in it. /dev/shm stays
the machine's own. A pod's /tmp becomes its ``TMPDIR``. The path /tmp itself is not redirected, since scripts and data
of this machine may be below it. The replacement's path is short, because sockets are created in it.
"""

from __future__ import annotations

import base64
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from ddp_trainer.common.constants import Path as ContractPath
from kubectl_ddp.errors import PreflightFailed
from kubectl_ddp.kube.objects import Object

_PREFIX: Final = "ddp-"

CLAIMS: Final = "claims"
"""Directory of the volumes that belong to the job, below all of its volumes."""

SECRETS: Final = "secrets"
"""Directory of the job's Secrets, next to :data:`CLAIMS`, with one directory of files per Secret."""


@dataclass(frozen=True, slots=True)
class Mounts:
    """Locations of the volumes of one pod."""

    directories: dict[str, str] = field(default_factory=dict)
    """Mount path → directory on this machine."""
    scratch: str | None = None
    """Directory used in place of /tmp, if the pod mounts one."""
    temporary: list[str] = field(default_factory=list)
    """Directories outside of the job's own, including the scratch directory; removed when the pod has ended."""


ConfigMaps = Mapping[str, Mapping[str, bytes]]
"""ConfigMaps of the job: name → entries by key."""


def mount(pod: Object, volumes: Path, config_maps: ConfigMaps) -> Mounts:
    """Create the directories of a pod's volumes, and write the files of ConfigMaps.

    Raises:
        PreflightFailed: If this machine does not support a kind of volume.
    """
    kinds = {volume["name"]: volume for volume in pod["spec"].get("volumes") or ()}
    mounts = Mounts()
    # Sorted so that a mount below another is created after it and linked into it.
    for entry in sorted(_entries(pod["spec"]), key=lambda one: str(one["mountPath"])):
        path, volume = entry["mountPath"].rstrip("/"), kinds[entry["name"]]
        if path == ContractPath.SHARED_MEMORY:
            continue
        if path == ContractPath.SCRATCH:
            mounts.temporary.append(tempfile.mkdtemp(prefix=_PREFIX))
            mounts = replace(mounts, scratch=mounts.temporary[-1])
            continue
        directory = _in_memory(volume, mounts) or _directory(volume, pod, volumes, config_maps)
        directory /= entry.get("subPath") or ""
        directory.mkdir(parents=True, exist_ok=True)
        for name in _config_maps(volume):
            for key, data in config_maps.get(name, {}).items():
                (directory / key).write_bytes(data)
        _link(path, directory, mounts.directories)
        mounts.directories[path] = str(directory)
    return mounts


def _entries(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the mounts of the pod's container and init containers."""
    containers = [*(spec.get("initContainers") or ()), spec["containers"][0]]
    mounts = (mount for container in containers for mount in container.get("volumeMounts") or ())
    return list({mount["mountPath"]: mount for mount in mounts}.values())


def _in_memory(volume: Mapping[str, Any], mounts: Mounts) -> Path | None:
    """Create a directory in memory for an emptyDir with medium Memory, if this machine supports it."""
    if (volume.get("emptyDir") or {}).get("medium") != "Memory" or not os.access(ContractPath.SHARED_MEMORY, os.W_OK):
        return None
    mounts.temporary.append(tempfile.mkdtemp(prefix=_PREFIX, dir=ContractPath.SHARED_MEMORY))
    return Path(mounts.temporary[-1])


def _link(path: str, directory: Path, mounted: Mapping[str, str]) -> None:
    """Link a directory into the mount that contains its path, if there is one."""
    above = max((other for other in mounted if path.startswith(f"{other}/")), key=len, default=None)
    if above is not None:
        link = Path(mounted[above]) / path.removeprefix(f"{above}/")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(directory)


def _config_maps(volume: Mapping[str, Any]) -> list[str]:
    sources = [volume, *(volume.get("projected") or {}).get("sources", ())]
    return [str(source["configMap"].get("name")) for source in sources if source.get("configMap")]


def _secret(volume: Mapping[str, Any]) -> str:
    return str((volume.get("secret") or {}).get("secretName", ""))


def _directory(volume: Mapping[str, Any], pod: Object, volumes: Path, config_maps: ConfigMaps) -> Path:
    name = str(volume["name"])
    named = _config_maps(volume)
    if "emptyDir" in volume or (named and config_maps.keys() >= {*named}):
        return pod_directory(pod, volumes) / name
    if (secret := _secret(volume)) and (volumes / SECRETS / secret).is_dir():
        return volumes / SECRETS / secret
    if "persistentVolumeClaim" in volume:
        return volumes / CLAIMS / str(volume["persistentVolumeClaim"]["claimName"])
    if "hostPath" in volume:
        return Path(str(volume["hostPath"]["path"]))
    kind = next((key for key in volume if key != "name"), "unknown")
    raise PreflightFailed(
        f"Volume '{name}' is a {kind}, which this machine has not.", hint="Leave it out for a local run."
    )


def check(template: Object, objects: Iterable[Object]) -> None:
    """Check the volumes of a template before a pod exists.

    Args:
        template: Pod template.
        objects: Objects of the job.

    Raises:
        PreflightFailed: If :func:`mount` would refuse a volume.
    """
    objects = list(objects)
    no_pod, config_maps = {"metadata": {"uid": ""}}, config_maps_of(objects)
    secrets = {item["metadata"]["name"] for item in objects if item.get("kind") == "Secret"}
    mounted = {entry["name"] for entry in _entries(template["spec"])}
    for volume in template["spec"].get("volumes") or ():
        if volume["name"] in mounted and _secret(volume) not in secrets:
            _directory(volume, no_pod, Path(os.devnull), config_maps)


def keep_secrets(objects: Iterable[Object], volumes: Path) -> list[Object]:
    """Write the Secrets of a job to files that only this user can read, and return the other objects."""
    others = []
    for item in objects:
        if item.get("kind") != "Secret":
            others.append(item)
            continue
        directory = volumes / SECRETS / item["metadata"]["name"]
        directory.mkdir(parents=True, mode=0o700)
        for key, data in _data(item).items():
            with os.fdopen(os.open(directory / key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "wb") as file:
                file.write(data)
    return others


def config_maps_of(objects: Iterable[Object]) -> dict[str, dict[str, bytes]]:
    """Return the ConfigMaps among the objects of a job."""
    return {item["metadata"]["name"]: _data(item) for item in objects if item.get("kind") == "ConfigMap"}


def _data(item: Object) -> dict[str, bytes]:
    """Return the entries of a ConfigMap or a rendered Secret."""
    texts, binaries = item.get("data") or item.get("stringData") or {}, item.get("binaryData") or {}
    return {key: text.encode() for key, text in texts.items()} | {
        key: base64.b64decode(text) for key, text in binaries.items()
    }


def pod_directory(pod: Object, volumes: Path) -> Path:
    """Return the directory of a pod's emptyDirs; a replacement pod has its own."""
    return volumes / "pods" / str(pod["metadata"]["uid"])


def unmount(pod: Object, mounts: Mounts, volumes: Path) -> None:
    """Remove the volumes that belong to the pod only."""
    shutil.rmtree(pod_directory(pod, volumes), ignore_errors=True)
    drop_temporary(mounts)


def drop_temporary(mounts: Mounts) -> None:
    """Remove directories outside of the job's; call it after the pod's processes have ended."""
    for directory in mounts.temporary:
        shutil.rmtree(directory, ignore_errors=True)
