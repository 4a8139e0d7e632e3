"""Bindings of NVIDIA's management library (NVML) through ctypes: the calls that preflight and metrics make.

:class:`Nvml` is the entry point. Each failed call raises its own :class:`NvmlError`, including a function that an older
driver lacks or that the GPU does not support. The structures and numbers in use are those of ``nvml.h``
(https://docs.nvidia.com/deploy/nvml-api). Standard library only.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

LIBRARY: Final = "libnvidia-ml.so.1"
"""Library of the driver. The container runtime mounts it where ``NVIDIA_DRIVER_CAPABILITIES`` has ``utility``."""

NOT_SUPPORTED: Final = 3
INSUFFICIENT_SIZE: Final = 7
FUNCTION_NOT_FOUND: Final = 13
GPU_IS_LOST: Final = 15
MOST_LINKS: Final = 36
"""Most links of a GPU: ``NVML_NVLINK_MAX_LINKS``."""
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

_FABRIC_VERSION: Final = 0x02000024
_SM_CLOCK: Final = 1
_XID: Final = 8
_TEXT_BYTES: Final = 96

Device = ctypes.c_void_p
T = TypeVar("T", bound="ctypes._CData")  # noqa: SLF001 - the name of typeshed for what has an address


class NvmlError(Exception):
    """Failure of a call to NVML, with NVML's error code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code

    @property
    def is_unsupported(self) -> bool:
        """True if this GPU or driver does not support the call, which is not a fault."""
        return self.code in {NOT_SUPPORTED, FUNCTION_NOT_FOUND}


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _Pci(ctypes.Structure):
    _fields_ = (
        ("legacy_bus_id", ctypes.c_char * 16),
        ("numbers", ctypes.c_uint * 5),  # domain, bus, device, ids of the device and of its subsystem
        ("bus_id", ctypes.c_char * 32),
    )


class _Field(ctypes.Structure):
    _fields_ = (
        ("field", ctypes.c_uint32),
        ("scope", ctypes.c_uint32),
        ("timestamp", ctypes.c_int64),
        ("latency", ctypes.c_int64),
        ("value_type", ctypes.c_uint),
        ("status", ctypes.c_uint),
        ("value", ctypes.c_ulonglong),  # a union; integers fill its first bytes
    )


class GpuFabricInfo(ctypes.Structure):
    """State of a GPU in the fabric of its NVSwitches (``nvmlGpuFabricInfo_v2_t``)."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("cluster", ctypes.c_ubyte * 16),
        ("status", ctypes.c_uint),
        ("clique", ctypes.c_uint32),
        ("state", ctypes.c_ubyte),
        ("health", ctypes.c_uint32),
    )


class _Event(ctypes.Structure):
    _fields_ = (
        ("device", Device),
        ("kind", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Nvml:
    """Initialized NVML library."""

    def __init__(self, library: str) -> None:
        """Load and initialize the library.

        Raises:
            OSError: If the library does not exist.
            NvmlError: If it cannot be initialized.
        """
        self._library = ctypes.CDLL(library)
        self._library.nvmlErrorString.restype = ctypes.c_char_p
        self._call("nvmlInit_v2")

    def close(self) -> None:
        """Shut the library down."""
        self._call("nvmlShutdown")

    def text(self, function: str, *before: Any) -> str:
        """Return the text that a function writes to the buffer that is its last argument but one."""
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        self._call(function, *before, buffer, _TEXT_BYTES)
        return buffer.value.decode(errors="replace")

    def number(self, function: str, *before: Any, kind: Any = ctypes.c_uint) -> int:
        """Return the number that a function writes to its last argument."""
        return int(self._query(kind(), function, *before).value)

    def numbers(self, function: str, device: Device, count: int) -> list[int]:
        """Return the numbers that a function writes to its last ``count`` arguments."""
        values = [ctypes.c_uint() for _ in range(count)]
        self._call(function, device, *map(ctypes.byref, values))
        return [value.value for value in values]

    def device(self, index: int) -> Device:
        """Return the handle of the GPU with this index."""
        return self._query(Device(), "nvmlDeviceGetHandleByIndex_v2", index)

    def device_of_uuid(self, uuid: str) -> Device:
        """Return the handle of the GPU with this UUID, as ``GPU-5d6e…``."""
        return self._query(Device(), "nvmlDeviceGetHandleByUUID", uuid.encode())

    def bus_id(self, device: Device) -> str:
        """Return the GPU's PCI bus id, such as ``00000000:3B:00.0``."""
        found = self._query(_Pci(), "nvmlDeviceGetPciInfo_v3", device)
        return bytes(found.bus_id).decode(errors="replace")

    def memory(self, device: Device) -> tuple[int, int]:
        """Return the memory of the GPU in bytes: in total, and in use by all processes and the driver."""
        found = self._query(_Memory(), "nvmlDeviceGetMemoryInfo", device)
        return found.total, found.used

    def utilization_percent(self, device: Device) -> int:
        """Return the percentage of the driver's last sampling period in which a kernel ran."""
        return int(self._query(_Utilization(), "nvmlDeviceGetUtilizationRates", device).gpu)

    def sm_clock_mhz(self, device: Device) -> int:
        """Return the current clock of the multiprocessors in MHz."""
        return self.number("nvmlDeviceGetClockInfo", device, _SM_CLOCK)

    def sm_clock_max_mhz(self, device: Device) -> int:
        """Return the highest possible clock of the multiprocessors in MHz."""
        return self.number("nvmlDeviceGetMaxClockInfo", device, _SM_CLOCK)

    def clock_events(self, device: Device) -> tuple[str, ...]:
        """Return the reasons why the clock is lowered, as values of :data:`CLOCK_EVENTS`."""
        try:
            bits = self.number("nvmlDeviceGetCurrentClocksEventReasons", device, kind=ctypes.c_ulonglong)
        except NvmlError:  # its old name, before driver 535
            bits = self.number("nvmlDeviceGetCurrentClocksThrottleReasons", device, kind=ctypes.c_ulonglong)
        return tuple(name for bit, name in CLOCK_EVENTS.items() if bits & bit)

    def processes(self, device: Device) -> list[int]:
        """Return the ids of the processes that compute on the GPU, as this container sees them."""
        count = ctypes.c_uint(0)
        with_room: Any = None
        for _ in range(4):  # more processes may start between two calls
            try:
                self._call("nvmlDeviceGetComputeRunningProcesses_v3", device, ctypes.byref(count), with_room)
            except NvmlError as error:
                if error.code != INSUFFICIENT_SIZE:
                    raise
                count.value = 2 * count.value + 8
                with_room = (_Process * count.value)()
            else:
                break
        return [with_room[place].pid for place in range(count.value)] if with_room else []

    def field(self, device: Device, field: int, scope: int = 0) -> int:
        """Return a value that NVML identifies by a field number instead of a function."""
        found = self._query(_Field(field=field, scope=scope), "nvmlDeviceGetFieldValues", device, 1)
        self._check(found.status)
        return int(found.value) & 0xFFFFFFFF

    def fabric(self, device: Device) -> GpuFabricInfo:
        """Return the state of the GPU in the fabric of its NVSwitches."""
        return self._query(GpuFabricInfo(version=_FABRIC_VERSION), "nvmlDeviceGetGpuFabricInfoV", device)

    @contextmanager
    def collect_xids(self, devices: Sequence[Device]) -> Iterator[list[tuple[int, int]]]:
        """Collect Xid errors of GPUs while the block runs.

        Yields:
            A list that, after the block, holds (device handle, Xid number) of each error. It stays empty where the
            driver does not support events.
        """
        found: list[tuple[int, int]] = []
        events = ctypes.c_void_p()
        try:
            self._call("nvmlEventSetCreate", ctypes.byref(events))
        except NvmlError:
            yield found
            return
        for device in devices:
            with suppress(NvmlError):  # other GPUs may support events
                self._call("nvmlDeviceRegisterEvents", device, ctypes.c_ulonglong(_XID), events)
        yield found
        event = _Event()
        for _ in range(1000):
            try:
                self._call("nvmlEventSetWait_v2", events, ctypes.byref(event), 0)
            except NvmlError:
                break  # no more
            found.append((event.device or 0, int(event.data)))
        self._call("nvmlEventSetFree", events)

    def _query(self, result: T, function: str, *before: Any) -> T:
        """Return ``result`` after a function has written to it through its last argument."""
        self._call(function, *before, ctypes.byref(result))
        return result

    def _call(self, function: str, *arguments: Any) -> None:
        try:
            called = getattr(self._library, function)
        except AttributeError:
            raise NvmlError(FUNCTION_NOT_FOUND, f"this driver has no {function}") from None
        self._check(called(*arguments))

    def _check(self, code: int) -> None:
        if code:
            text = self._library.nvmlErrorString(code)
            raise NvmlError(code, text.decode(errors="replace") if text else f"error {code}")
