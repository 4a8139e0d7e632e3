"""Directory of torch.compile's caches for the workers of this pod, within the cache that the job keeps.

Inductor and Triton key their entries by torch, source and GPU, but C++ is keyed by the compiler command, which has
``-march=native``. So each kind of machine gets a directory of its own, and a cache never mixes them. Writers need no
coordination: both libraries write a temporary file and rename it, so a reader finds a whole entry or none, and the
last of several equal ones wins (``torch/_inductor/codecache.py``, ``write_atomic``; ``triton/runtime/cache.py``).
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

from ddp_trainer.common.constants import Env

INDUCTOR: Final = "TORCHINDUCTOR_CACHE_DIR"
TRITON: Final = "TRITON_CACHE_DIR"

_CPU_FLAGS: Final = ("flags", "Features", "isa")
"""Names of the line with the instruction sets in ``/proc/cpuinfo``, on x86, Arm and RISC-V."""
_GPU_MODEL: Final = "Model:"


def compile_cache_variables(environ: Mapping[str, str], warn: Callable[[str], None]) -> dict[str, str]:
    """Return the variables of Inductor and Triton that make them use the cache of the job; empty without one.

    Args:
        environ: Environment of the launcher.
        warn: Receives a sentence if the directory cannot be used. Workers then compile as without a cache.
    """
    root = environ.get(Env.COMPILE_CACHE)
    if not root:
        return {}
    directory = Path(root, machine_key())
    places = {INDUCTOR: directory / "inductor", TRITON: directory / "triton"}
    try:
        for place in places.values():
            place.mkdir(parents=True, exist_ok=True)
            if not os.access(place, os.W_OK | os.X_OK):
                raise PermissionError(0, "it is read-only or owned by another user")
    except OSError as err:
        warn(
            f"warning: {Env.COMPILE_CACHE}={root} cannot be written ({err.strerror}); make it writable for user "
            f"{os.getuid()}. This run compiles its model again."
        )
        return {}
    return {name: str(place) for name, place in places.items()}


def machine_key(proc: Path = Path("/proc")) -> str:
    """Return a name for what compiled code depends on: torch, Python, instruction sets and GPU models.

    Args:
        proc: The proc file system.
    """
    digest = hashlib.sha256("\n".join([_cpu_flags(proc), *_gpu_models(proc)]).encode()).hexdigest()[:12]
    python = f"py{sys.version_info.major}.{sys.version_info.minor}"
    return f"torch-{_torch_version()}-{python}-{platform.machine()}-{digest}"


def _torch_version() -> str:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "none"


def _cpu_flags(proc: Path) -> str:
    for line in _lines(proc / "cpuinfo"):
        name, _, value = line.partition(":")
        if name.strip() in _CPU_FLAGS:
            return " ".join(sorted(value.split()))
    return platform.processor()


def _gpu_models(proc: Path) -> list[str]:
    files = (proc / "driver/nvidia/gpus").glob("*/information")
    return sorted({line.removeprefix(_GPU_MODEL).strip() for file in files for line in _lines(file) if _is_model(line)})


def _is_model(line: str) -> bool:
    return line.startswith(_GPU_MODEL)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(errors="replace").splitlines()
    except OSError:
        return []
