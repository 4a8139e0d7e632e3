"""State of this node's GPUs from NVML: ``python -m ddp_trainer.preflight.nvml [LIBRARY]`` prints it as JSON.

It runs in a separate process, because a call into a faulty driver may never return and cannot be interrupted. A field
that cannot be read is None and its error is kept; the other fields are not affected.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from ddp_trainer.preflight.schema import Gpu
from ddp_trainer.process.nvml_library import GPU_IS_LOST, LIBRARY, MOST_LINKS, POWER_CAP, Device, Nvml, NvmlError

UNKNOWN: Final = "unknown"
"""Name of a GPU that does not report one."""
MOST_COUNT: Final = 1 << 40
"""Upper bound of a count. A counter that is not kept reads as 2^64 - 1; no real counter gets this far."""
_RECOVERY_ACTION: Final = 230
_RECOVERY_ACTIONS: Final = (
    *("none", "reset the GPU", "reboot the node", "drain peer traffic", "drain and reset the GPU"),
    *("recover the IMEX domain", "reset the PCI bus", "reboot the system"),
)
"""Indexed by ``nvmlDeviceGpuRecoveryAction_t``, the value of field 230."""
_FABRIC_STATES: Final = ("not supported", "not started", "in progress", "completed")
_FABRIC_FAULTS: Final[Sequence[tuple[int, str]]] = (
    *((0, "degraded bandwidth"), (2, "recovering routes"), (4, "an unhealthy route"), (6, "recovering from timeouts")),
)
"""Bit positions of two-bit values in the health mask, of which 1 means true
(``NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_*``).
"""
_CONFIGURATION: Final = 8
"""Bit position of a four-bit value, of which more than 1 is a kind of wrong configuration."""
_REPLAY, _RECOVERY = 0, 1
_UNCORRECTED, _VOLATILE = 1, 0

Reader = Callable[[Nvml, Device], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInventory:
    """All GPUs of a node."""

    driver: str = ""
    cuda: str = ""
    """Newest CUDA version that the driver supports, as ``13.0``."""
    gpus: tuple[Gpu, ...] = ()
    error: str = ""
    """Error, if NVML lists no GPUs."""
    has_driver: bool = True


def read(library: str = LIBRARY) -> GpuInventory:
    """Read the state of all GPUs."""
    try:
        nvml = Nvml(library)
    except OSError:
        return GpuInventory(error=f"there is no {library} here, so GPUs were not looked at", has_driver=False)
    except NvmlError as error:
        return GpuInventory(error=f"NVML cannot be initialized: {error}")
    try:
        count = nvml.number("nvmlDeviceGetCount_v2")
        driver, cuda = _versions(nvml)
        return GpuInventory(driver=driver, cuda=cuda, gpus=_gpus(nvml, count))
    except NvmlError as error:
        return GpuInventory(error=f"NVML does not list the GPUs: {error}")
    finally:
        nvml.close()


def _gpus(nvml: Nvml, count: int) -> tuple[Gpu, ...]:
    devices: dict[int, Device] = {}
    found: list[Gpu] = []
    for index in range(count):
        try:
            devices[index] = nvml.device(index)
        except NvmlError as error:
            found.append(Gpu(index=index, name=UNKNOWN, is_lost=True, unread={"device": str(error)}))
    with nvml.collect_xids(list(devices.values())) as heard:
        found += [gpu_of(nvml, index, device) for index, device in devices.items()]
    by_handle = {device.value: index for index, device in devices.items()}
    xids = {index: sorted({xid for handle, xid in heard if by_handle.get(handle) == index}) for index in devices}
    told = [replace(gpu, xids=tuple(xids.get(gpu.index, ()))) for gpu in found]
    return tuple(sorted(told, key=lambda gpu: gpu.index))


def gpu_of(nvml: Nvml, index: int, device: Device) -> Gpu:
    """Return the state of one GPU. Fields that cannot be read keep their default."""
    values: dict[str, Any] = {"name": UNKNOWN}
    unread: dict[str, str] = {}
    is_lost = False
    for name, reader in READERS.items():
        try:
            values[name] = reader(nvml, device)
        except NvmlError as error:
            is_lost |= error.code == GPU_IS_LOST
            if not error.is_unsupported:
                unread[name] = str(error)
    return Gpu(index=index, **values, unread=unread, is_lost=is_lost)


def _versions(nvml: Nvml) -> tuple[str, str]:
    """Return the version of the driver and the newest CUDA version that it supports; empty if unknown."""
    driver = cuda = ""
    with suppress(NvmlError):
        driver = nvml.text("nvmlSystemGetDriverVersion")
    with suppress(NvmlError):
        version = nvml.number("nvmlSystemGetCudaDriverVersion_v2", kind=ctypes.c_int)
        cuda = f"{version // 1000}.{version % 1000 // 10}"
    return driver, cuda


def _count(nvml: Nvml, function: str, *before: Any, kind: Any = ctypes.c_ulonglong) -> int:
    return min(nvml.number(function, *before, kind=kind), MOST_COUNT)


def _needs_reset(nvml: Nvml, device: Device) -> bool:
    """Return True if bad memory awaits replacement: rows since Ampere, pages on older GPUs."""
    try:
        return bool(_remapped(nvml, device)[2])
    except NvmlError:
        return bool(nvml.number("nvmlDeviceGetRetiredPagesPendingStatus", device))


def _remapped(nvml: Nvml, device: Device) -> list[int]:
    """Return rows remapped for correctable and for uncorrectable errors, whether more are pending, whether one
    failed.
    """
    return nvml.numbers("nvmlDeviceGetRemappedRows", device, 4)


def _recovery_action(nvml: Nvml, device: Device) -> str:
    action = nvml.field(device, _RECOVERY_ACTION)
    return _RECOVERY_ACTIONS[action] if action < len(_RECOVERY_ACTIONS) else f"action {action}"


def _fabric_state(nvml: Nvml, device: Device) -> str:
    fabric = nvml.fabric(device)
    state = _FABRIC_STATES[fabric.state] if fabric.state < len(_FABRIC_STATES) else f"state {fabric.state}"
    return f"failed with error {fabric.status}" if state == "completed" and fabric.status else state


def _fabric_faults(nvml: Nvml, device: Device) -> tuple[str, ...]:
    health = nvml.fabric(device).health
    found = [name for place, name in _FABRIC_FAULTS if health >> place & 3 == 1]
    return (*found, *(["a wrong configuration"] if health >> _CONFIGURATION & 15 > 1 else []))


def _links(nvml: Nvml, device: Device) -> list[tuple[int, bool]]:
    """Return number and state of each NVLink of the GPU. Raises NvmlError if it has none."""
    found: list[tuple[int, bool]] = []
    for link in range(MOST_LINKS):
        try:
            found.append((link, bool(nvml.number("nvmlDeviceGetNvLinkState", device, link))))
        except NvmlError:
            if not found:
                raise
            break
    return found


def _link_errors(nvml: Nvml, device: Device) -> int:
    """Return the sum of replays and recoveries of all links."""
    return sum(
        _count(nvml, "nvmlDeviceGetNvLinkErrorCounter", device, link, counter)
        for link, _ in _links(nvml, device)
        for counter in (_REPLAY, _RECOVERY)
    )


def _throttle_reasons(nvml: Nvml, device: Device) -> tuple[str, ...]:
    """Return the reasons for lowered clocks, without the power cap, which is normal at full load."""
    return tuple(name.replace("_", " ") for name in nvml.clock_events(device) if name != POWER_CAP)


READERS: Final[Mapping[str, Reader]] = {
    "name": lambda nvml, device: nvml.text("nvmlDeviceGetName", device),
    "uuid": lambda nvml, device: nvml.text("nvmlDeviceGetUUID", device),
    "bus_id": lambda nvml, device: nvml.bus_id(device),
    "compute_capability": lambda nvml, device: tuple(nvml.numbers("nvmlDeviceGetCudaComputeCapability", device, 2)),
    "memory_mib": lambda nvml, device: nvml.memory(device)[0] >> 20,
    "memory_used_mib": lambda nvml, device: nvml.memory(device)[1] >> 20,
    "uncorrected_errors": lambda nvml, device: _count(
        nvml, "nvmlDeviceGetTotalEccErrors", device, _UNCORRECTED, _VOLATILE
    ),
    "needs_reset": _needs_reset,
    "remap_failed": lambda nvml, device: bool(_remapped(nvml, device)[3]),
    "recovery_action": _recovery_action,
    "fabric_state": _fabric_state,
    "fabric_faults": _fabric_faults,
    "nvlinks": lambda nvml, device: len(_links(nvml, device)),
    "nvlinks_up": lambda nvml, device: sum(is_up for _, is_up in _links(nvml, device)),
    "nvlink_errors": _link_errors,
    "pcie_generation": lambda nvml, device: nvml.number("nvmlDeviceGetCurrPcieLinkGeneration", device),
    "pcie_generation_max": lambda nvml, device: nvml.number("nvmlDeviceGetMaxPcieLinkGeneration", device),
    "pcie_width": lambda nvml, device: nvml.number("nvmlDeviceGetCurrPcieLinkWidth", device),
    "pcie_width_max": lambda nvml, device: nvml.number("nvmlDeviceGetMaxPcieLinkWidth", device),
    "pcie_replays": lambda nvml, device: _count(nvml, "nvmlDeviceGetPcieReplayCounter", device, kind=ctypes.c_uint),
    "performance_state": lambda nvml, device: nvml.number("nvmlDeviceGetPerformanceState", device),
    "slowdowns": _throttle_reasons,
    "processes": lambda nvml, device: tuple(nvml.processes(device)),
}
"""Field of :class:`Gpu` → its reader, which raises NvmlError."""


if __name__ == "__main__":
    print(json.dumps(asdict(read(*sys.argv[1:2]))))
