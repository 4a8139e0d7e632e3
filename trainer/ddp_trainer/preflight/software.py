"""Software of this node: versions, installed packages, the script, the environment. The module imports none of it."""

from __future__ import annotations

import hashlib
import importlib.machinery
import platform
import re
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

from ddp_trainer.preflight.schema import Software

_PREFIXES: Final = (
    "NCCL_",
    "GLOO_",
    "TP_SOCKET_",
    "TORCH_",
    "PYTORCH_",
    "CUDA_",
    "CUBLAS_",
    "UCX_",
    "FI_",
    "OMP_",
    "MKL_",
    "PYTHONHASHSEED",
)
"""Prefixes of the variables that change how ranks compute or communicate."""

_NODE_OWN: Final = {"CUDA_VISIBLE_DEVICES", "TORCHELASTIC_RESTART_COUNT"}
"""Variables that may differ between nodes."""

_LONGEST_VALUE: Final = 256
_NCCL_PACKAGES: Final = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
_DIGITS: Final = 16
_ASSIGNMENT: Final = re.compile(r"""^(\w+)(?:: [^=]+)? = ['"](.*)['"]$""", re.MULTILINE)
"""Name and text of an assignment, with or without an annotation."""


def collect_software(script: str, driver: str, driver_cuda: str, environ: Mapping[str, str]) -> Software:
    """Return the software of this Python.

    Args:
        script: Path of the script; empty for none.
        driver: Version of the GPU driver.
        driver_cuda: CUDA version that the driver supports.
        environ: Environment of the process.

    Raises:
        OSError: The script cannot be read.
    """
    versions = {
        "python": platform.python_version(),
        **torch_versions(),
        "driver": driver,
        "driver_cuda": driver_cuda,
    }
    return Software(
        versions={name: version for name, version in versions.items() if version},
        packages=package_digest(),
        script=hashlib.sha256(Path(script).read_bytes()).hexdigest()[:_DIGITS] if script else "",
        environment={
            name: value[:_LONGEST_VALUE]
            for name, value in sorted(environ.items())
            if name.startswith(_PREFIXES) and name not in _NODE_OWN
        },
    )


def torch_versions() -> dict[str, str]:
    """Return the versions of torch, CUDA, HIP and NCCL from the file that torch's build wrote; empty without torch."""
    spec = importlib.machinery.PathFinder.find_spec("torch", sys.path)
    if spec is None or not spec.origin:
        return {}
    try:
        values = dict(_ASSIGNMENT.findall(Path(spec.origin).with_name("version.py").read_text()))
    except OSError:
        return {}
    return {
        "torch": values.get("__version__", ""),
        "cuda": values.get("cuda", ""),
        "hip": values.get("hip", ""),
        "nccl": _nccl_version(),
    }


def _nccl_version() -> str:
    for name in _NCCL_PACKAGES:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""


def package_digest() -> str:
    """Return a digest of the names of the metadata folders, which contain name and version. No file is read."""
    names = {
        entry.name
        for folder in map(Path, dict.fromkeys(sys.path))
        if folder.is_dir()
        for entry in folder.iterdir()
        if entry.suffix in {".dist-info", ".egg-info"}
    }
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:_DIGITS]
