"""GPUs of this machine without CUDA: which ones a process uses, and NVIDIA's management library (NVML).

:func:`visible_gpus` reads the environment, device files and ``nvidia-smi -L``. :func:`load_nvml` loads the package
nvidia-ml-py, as preflight and metrics use it.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
DEVICES: Final = Path("/dev")
MIG_PREFIX: Final = "MIG-"
LIST_SECONDS: Final = 20.0
"""Time limit of ``nvidia-smi`` in seconds: with a broken driver it may never return."""

_CAPABILITIES: Final = Path("/proc/driver/nvidia/capabilities")
_CONFIGURATION_CAPABILITIES: Final = 2
"""Highest capability that exists without a MIG slice: ``nvidia-cap1`` and ``nvidia-cap2`` permit to configure and to
monitor MIG."""
_UUID: Final = re.compile(r"^(?P<indent>\s*)(?:GPU|MIG)\b.*\(UUID: (?P<uuid>[^)]+)\)")


def visible_gpus(
    environ: Mapping[str, str], devices: Path = DEVICES, capabilities: Path = _CAPABILITIES
) -> tuple[str, ...]:
    """Return a value for ``CUDA_VISIBLE_DEVICES`` for each GPU or MIG slice that a process should use.

    Args:
        environ: Environment of the process. ``CUDA_VISIBLE_DEVICES`` counts up to its first entry that is empty or -1.
        devices: Folder of the device files.
        capabilities: Folder of the driver's capabilities, which has an entry for each MIG slice.

    Returns:
        Indices or UUIDs; empty on a machine without NVIDIA GPUs.
    """
    named = environ.get(VISIBLE)
    if named is not None:
        entries = [entry.strip() for entry in named.split(",")]
        end = next((place for place, entry in enumerate(entries) if entry in {"", "-1"}), len(entries))
        return tuple(entries[:end])
    if has_mig_slices(devices, capabilities) and (uuids := list_gpu_uuids(environ)):
        return uuids
    # CUDA counts the GPUs of a container from 0, independent of the numbers of their device files.
    return tuple(str(place) for place in range(count_device_files(devices)))


def count_device_files(devices: Path = DEVICES) -> int:
    """Return the number of GPUs that have a device file."""
    return sum(bool(re.fullmatch(r"nvidia\d+", path.name)) for path in devices.glob("nvidia*"))


def has_mig_slices(devices: Path = DEVICES, capabilities: Path = _CAPABILITIES) -> bool:
    """Return whether a GPU is split into MIG slices."""
    if any(capabilities.glob("gpu*/mig/gi*/ci*")):
        return True
    numbers = (path.name.removeprefix("nvidia-cap") for path in devices.glob("nvidia-caps/nvidia-cap*"))
    return any(number.isdecimal() and int(number) > _CONFIGURATION_CAPABILITIES for number in numbers)


def list_gpu_uuids(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the UUIDs that ``nvidia-smi -L`` lists; empty where it fails.

    A GPU that is split into MIG slices is replaced by its slices.
    """
    program = shutil.which("nvidia-smi", path=environ.get("PATH", os.defpath))
    if program is None:
        return ()
    try:
        done = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=LIST_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return parse_gpu_uuids(done.stdout.splitlines())


def parse_gpu_uuids(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the UUIDs in the output of ``nvidia-smi -L``: those of GPUs, or of their slices where a GPU is split.

    >>> lines = ["GPU 0: A100 (UUID: GPU-1)", "  MIG 1g.5gb Device 0: (UUID: MIG-2)", "GPU 1: A100 (UUID: GPU-3)"]
    >>> parse_gpu_uuids(lines)
    ('MIG-2', 'GPU-3')
    """
    found: list[tuple[bool, str]] = []
    for match in filter(None, map(_UUID.match, lines)):
        is_slice = bool(match["indent"])
        if is_slice and found and not found[-1][0]:
            found.pop()
        found.append((is_slice, match["uuid"]))
    return tuple(uuid for _, uuid in found)


LIBRARY: Final = "libnvidia-ml.so.1"
"""Library of the driver. The container runtime mounts it where ``NVIDIA_DRIVER_CAPABILITIES`` has ``utility``."""

POWER_CAP: Final = "power_cap"
CLOCK_EVENTS: Final[Mapping[int, str]] = {
    0x04: POWER_CAP,
    0x08: "hardware_slowdown",
    0x20: "software_thermal_slowdown",
    0x40: "hardware_thermal_slowdown",
    0x80: "power_brake",
}
"""Bits of ``nvmlClocksEventReasons`` for reasons, other than the user's settings, that lower the clock of a busy
GPU."""


def load_nvml(library: str) -> Any:
    """Return the module ``pynvml`` for a library that is not initialized yet.

    Raises:
        OSError: The library does not exist.
        ImportError: nvidia-ml-py is not installed.
    """
    loaded = ctypes.CDLL(library)
    import pynvml  # noqa: PLC0415 - 40 ms, which a machine without a driver must not pay

    pynvml.nvmlLib = loaded
    return pynvml


def clock_events(nvml: Any, device: Any) -> tuple[str, ...]:
    """Return the reasons why the clock of a GPU is lowered, as values of :data:`CLOCK_EVENTS`."""
    try:
        bits = nvml.nvmlDeviceGetCurrentClocksEventReasons(device)
    except nvml.NVMLError:  # its old name, before driver 535
        bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device)
    return tuple(name for bit, name in CLOCK_EVENTS.items() if bits & bit)
