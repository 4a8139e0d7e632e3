"""State of this node's GPUs from NVML: ``python -m ddp_preflight.nvml [LIBRARY]`` prints it as JSON.

It runs in a separate process, because a call into a faulty driver may never return and cannot be interrupted. A field
that cannot be read is None and its error is kept; the other fields are not affected.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from ddp_preflight.schema import Gpu
from ddp_trainer.process.gpu_devices import LIBRARY, POWER_CAP, clock_events, load_nvml

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
_MOST_XIDS: Final = 1000

Reader = Callable[[Any, Any], Any]
"""Called with the module ``pynvml`` and the handle of a GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlReport:
    """All GPUs of a node."""

    driver: str = ""
    cuda: str = ""
    """Newest CUDA version that the driver supports, as ``13.0``."""
    gpus: tuple[Gpu, ...] = ()
    error: str = ""
    """Error, if NVML lists no GPUs."""
    has_driver: bool = True


def read(library: str = LIBRARY) -> NvmlReport:
    """Read the state of all GPUs."""
    try:
        nvml = load_nvml(library)
    except OSError:
        return NvmlReport(error=f"there is no {library} here, so GPUs were not looked at", has_driver=False)
    except ImportError:
        return NvmlReport(error="nvidia-ml-py is not installed, so GPUs were not looked at", has_driver=False)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return NvmlReport(error=f"NVML cannot be initialized: {error}")
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        return NvmlReport(error=f"NVML does not list the GPUs: {error}")
    driver, cuda = _versions(nvml)
    return NvmlReport(driver=driver, cuda=cuda, gpus=tuple(_gpu(nvml, index) for index in range(count)))


def _gpu(nvml: Any, index: int) -> Gpu:
    try:
        device = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        return Gpu(index=index, name=UNKNOWN, is_lost=True, unread={"device": str(error)})
    return gpu_of(nvml, index, device)


def gpu_of(nvml: Any, index: int, device: Any) -> Gpu:
    """Return the state of one GPU. Fields that cannot be read keep their default."""
    values: dict[str, Any] = {"name": UNKNOWN}
    unread: dict[str, str] = {}
    is_lost = False
    xids: set[int] = set()
    events = None
    with suppress(nvml.NVMLError):  # this GPU or driver may not support events
        events = nvml.nvmlEventSetCreate()
        nvml.nvmlDeviceRegisterEvents(device, nvml.nvmlEventTypeXidCriticalError, events)
    for name, reader in READERS.items():
        try:
            values[name] = reader(nvml, device)
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
            continue
        except nvml.NVMLError as error:
            is_lost |= isinstance(error, nvml.NVMLError_GpuIsLost)
            unread[name] = str(error)
    with suppress(nvml.NVMLError):  # until there are no more
        while events and len(xids) < _MOST_XIDS:
            xids.add(int(nvml.nvmlEventSetWait_v2(events, 0).eventData))
    return Gpu(index=index, **values, xids=tuple(sorted(xids)), unread=unread, is_lost=is_lost)


def _versions(nvml: Any) -> tuple[str, str]:
    """Return the version of the driver and the newest CUDA version that it supports; empty if unknown."""
    driver = cuda = ""
    with suppress(nvml.NVMLError):
        driver = nvml.nvmlSystemGetDriverVersion()
    with suppress(nvml.NVMLError):
        version = nvml.nvmlSystemGetCudaDriverVersion_v2()
        cuda = f"{version // 1000}.{version % 1000 // 10}"
    return driver, cuda


def _needs_reset(nvml: Any, device: Any) -> bool:
    """Return True if bad memory awaits replacement: rows since Ampere, pages on older GPUs."""
    try:
        return bool(nvml.nvmlDeviceGetRemappedRows(device)[2])
    except nvml.NVMLError:
        return bool(nvml.nvmlDeviceGetRetiredPagesPendingStatus(device))


def _recovery_action(nvml: Any, device: Any) -> str:
    [field] = nvml.nvmlDeviceGetFieldValues(device, [_RECOVERY_ACTION])
    if field.nvmlReturn:
        raise nvml.NVMLError(field.nvmlReturn)
    action = field.value.uiVal
    return _RECOVERY_ACTIONS[action] if action < len(_RECOVERY_ACTIONS) else f"action {action}"


def _fabric(nvml: Any, device: Any) -> Any:
    """Return the state of the GPU in the fabric of its NVSwitches."""
    info = nvml.c_nvmlGpuFabricInfo_v2_t()
    nvml.nvmlDeviceGetGpuFabricInfoV(device, ctypes.byref(info))
    return info


def _fabric_state(nvml: Any, device: Any) -> str:
    fabric = _fabric(nvml, device)
    state = _FABRIC_STATES[fabric.state] if fabric.state < len(_FABRIC_STATES) else f"state {fabric.state}"
    return f"failed with error {fabric.status}" if state == "completed" and fabric.status else state


def _fabric_faults(nvml: Any, device: Any) -> tuple[str, ...]:
    health = _fabric(nvml, device).healthMask
    found = [name for place, name in _FABRIC_FAULTS if health >> place & 3 == 1]
    return (*found, *(["a wrong configuration"] if health >> _CONFIGURATION & 15 > 1 else []))


def _links(nvml: Any, device: Any) -> list[tuple[int, bool]]:
    """Return number and state of each NVLink of the GPU. Raises NVMLError if it has none."""
    found: list[tuple[int, bool]] = []
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            found.append((link, bool(nvml.nvmlDeviceGetNvLinkState(device, link))))
        except nvml.NVMLError:
            if not found:
                raise
            break
    return found


def _link_errors(nvml: Any, device: Any) -> int:
    """Return the sum of replays and recoveries of all links."""
    return sum(
        min(nvml.nvmlDeviceGetNvLinkErrorCounter(device, link, counter), MOST_COUNT)
        for link, _ in _links(nvml, device)
        for counter in (nvml.NVML_NVLINK_ERROR_DL_REPLAY, nvml.NVML_NVLINK_ERROR_DL_RECOVERY)
    )


def _ecc_errors(nvml: Any, device: Any) -> int:
    kind, since = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    return min(int(nvml.nvmlDeviceGetTotalEccErrors(device, kind, since)), MOST_COUNT)


def _throttle_reasons(nvml: Any, device: Any) -> tuple[str, ...]:
    """Return the reasons for lowered clocks, without the power cap, which is normal at full load."""
    return tuple(name.replace("_", " ") for name in clock_events(nvml, device) if name != POWER_CAP)


READERS: Final[Mapping[str, Reader]] = {
    "name": lambda nvml, device: nvml.nvmlDeviceGetName(device),
    "uuid": lambda nvml, device: nvml.nvmlDeviceGetUUID(device),
    "bus_id": lambda nvml, device: nvml.nvmlDeviceGetPciInfo_v3(device).busId,
    "compute_capability": lambda nvml, device: nvml.nvmlDeviceGetCudaComputeCapability(device),
    "memory_mib": lambda nvml, device: nvml.nvmlDeviceGetMemoryInfo(device).total >> 20,
    "memory_used_mib": lambda nvml, device: nvml.nvmlDeviceGetMemoryInfo(device).used >> 20,
    "uncorrected_errors": _ecc_errors,
    "needs_reset": _needs_reset,
    "remap_failed": lambda nvml, device: bool(nvml.nvmlDeviceGetRemappedRows(device)[3]),
    "recovery_action": _recovery_action,
    "fabric_state": _fabric_state,
    "fabric_faults": _fabric_faults,
    "nvlinks": lambda nvml, device: len(_links(nvml, device)),
    "nvlinks_up": lambda nvml, device: sum(is_up for _, is_up in _links(nvml, device)),
    "nvlink_errors": _link_errors,
    "pcie_generation": lambda nvml, device: nvml.nvmlDeviceGetCurrPcieLinkGeneration(device),
    "pcie_generation_max": lambda nvml, device: nvml.nvmlDeviceGetMaxPcieLinkGeneration(device),
    "pcie_width": lambda nvml, device: nvml.nvmlDeviceGetCurrPcieLinkWidth(device),
    "pcie_width_max": lambda nvml, device: nvml.nvmlDeviceGetMaxPcieLinkWidth(device),
    "pcie_replays": lambda nvml, device: nvml.nvmlDeviceGetPcieReplayCounter(device),
    "performance_state": lambda nvml, device: nvml.nvmlDeviceGetPerformanceState(device),
    "slowdowns": _throttle_reasons,
    "processes": lambda nvml, device: tuple(
        process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses_v3(device)
    ),
}
"""Field of :class:`Gpu` → its reader, which raises NVMLError."""


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "ddp_trainer" / "vendor"))  # of the runtime image
    print(json.dumps(asdict(read(*sys.argv[1:2]))))
