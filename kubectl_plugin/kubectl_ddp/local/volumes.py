"""Volumes as directories: what a pod mounts, and what becomes of it.

An emptyDir belongs to one pod and goes with it. A claim belongs to the job: every pod that mounts it sees the same
directory. /dev/shm stays the machine's own. A pod's /tmp becomes its ``TMPDIR``: scripts and data of this machine may
well lie below /tmp, so that path itself is left alone, and the replacement is short, since sockets are made in it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddp_trainer.contract import Path as ContractPath
from kubectl_ddp.backend import Object
from kubectl_ddp.errors import PreflightFailed


@dataclass(frozen=True, slots=True)
class Mounts:
    """Where the volumes of one pod are."""

    directories: dict[str, str] = field(default_factory=dict)
    """Mount path → directory of this machine."""
    scratch: str | None = None
    """Directory that stands for /tmp, when the pod has one of its own."""


ConfigMaps = Mapping[str, Mapping[str, str]]
"""Name of a ConfigMap of the job → its texts by key."""


def mount(pod: Object, volumes: Path, config_maps: ConfigMaps) -> Mounts:
    """Make the directories of a pod's volumes, and fill those of ConfigMaps.

    Raises:
        PreflightFailed: a kind of volume that this machine cannot have.
    """
    kinds = {volume["name"]: volume for volume in pod["spec"].get("volumes") or ()}
    directories: dict[str, str] = {}
    scratch: str | None = None
    for entry in pod["spec"]["containers"][0].get("volumeMounts") or ():
        path = entry["mountPath"].rstrip("/")
        if path == ContractPath.SHARED_MEMORY:
            continue
        if path == ContractPath.SCRATCH:
            scratch = tempfile.mkdtemp(prefix="ddp-")
            continue
        directory = _directory(kinds[entry["name"]], pod, volumes, config_maps)
        sub_path = entry.get("subPath")
        directory = directory / sub_path if sub_path else directory
        directory.mkdir(parents=True, exist_ok=True)
        directories[path] = str(directory)
        for key, text in config_maps.get(_config_map(kinds[entry["name"]]), {}).items():
            (directory / key).write_text(text, encoding="utf-8")
    return Mounts(directories, scratch)


def _config_map(volume: Mapping[str, Any]) -> str:
    return str((volume.get("configMap") or {}).get("name", ""))


def _directory(volume: Mapping[str, Any], pod: Object, volumes: Path, config_maps: ConfigMaps) -> Path:
    name = str(volume["name"])
    if "emptyDir" in volume or _config_map(volume) in config_maps:
        return pod_directory(pod, volumes) / name
    if "persistentVolumeClaim" in volume:
        return volumes / "claims" / str(volume["persistentVolumeClaim"]["claimName"])
    if "hostPath" in volume:
        return Path(str(volume["hostPath"]["path"]))
    kind = next((key for key in volume if key != "name"), "unknown")
    raise PreflightFailed(
        f"Volume '{name}' is a {kind}, which this machine has not.", hint="Leave it out for a local run."
    )


def check(template: Object, config_maps: ConfigMaps) -> None:
    """Raises PreflightFailed for a volume that :func:`mount` would refuse, before there is a pod."""
    nowhere = {"metadata": {"uid": ""}}
    mounted = {entry["name"] for entry in template["spec"]["containers"][0].get("volumeMounts") or ()}
    for volume in template["spec"].get("volumes") or ():
        if volume["name"] in mounted:
            _directory(volume, nowhere, Path(), config_maps)


def config_maps_of(objects: Iterable[Object]) -> dict[str, dict[str, str]]:
    """The ConfigMaps among the objects of a job."""
    return {
        item["metadata"]["name"]: dict(item.get("data") or {}) for item in objects if item.get("kind") == "ConfigMap"
    }


def pod_directory(pod: Object, volumes: Path) -> Path:
    """Where the emptyDirs of a pod are; another life of the pod has others."""
    return volumes / "pods" / str(pod["metadata"]["uid"])


def unmount(pod: Object, mounts: Mounts, volumes: Path) -> None:
    """Remove what belonged to the pod alone."""
    shutil.rmtree(pod_directory(pod, volumes), ignore_errors=True)
    drop_scratch(mounts)


def drop_scratch(mounts: Mounts) -> None:
    """Remove the pod's /tmp; its processes are gone."""
    if mounts.scratch is not None:
        shutil.rmtree(mounts.scratch, ignore_errors=True)
