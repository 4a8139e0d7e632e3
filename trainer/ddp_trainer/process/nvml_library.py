"""NVIDIA's management library (NVML) by the package nvidia-ml-py, as preflight and metrics use it.

Each failed call raises ``NVMLError`` of the module that :func:`load_nvml` returns, including a function that an older
driver lacks or that the GPU does not support.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, Final

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
