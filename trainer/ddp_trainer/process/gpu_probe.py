"""Probe of one GPU in a child process: make a context, write memory, copy it and read it back.

A GPU that fell off the bus can block whoever touches it, and a failed context cannot be left again, so the probe is a
process of its own, run by path: ``python -I process/gpu_probe.py``, with the GPU in ``CUDA_VISIBLE_DEVICES``. It uses
the driver's library alone, so it takes about as long as CUDA needs to start. :func:`probe_gpus` runs one for each GPU
and waits; :func:`command`, :func:`environment_of` and :func:`trouble_of` are for callers that start processes in their
own way. Standard library only. Not proven on GPUs: tests use a library that stands in for the driver's.
"""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

LIBRARY = "libcuda.so.1"
PROBE_SECONDS = 30.0
"""A GPU that does not answer for so long does not work."""
NO_DRIVER = 3
"""Exit code: there is no library of the driver, and so nothing to probe."""
FAULTY = 4
"""Exit code: the GPU does not work; stdout has one line that says why."""
WORDS = 1 << 18
"""32-bit words that are written, copied on the GPU and read back: 1 MiB."""
PATTERN = 0x5AC3_0FF1
_OUT_OF_MEMORY = 2


class _Faulty(Exception):
    """The GPU does not work; the message says why."""


def command(library: str = LIBRARY) -> list[str]:
    """Return the command line of a probe; ``library`` is the driver's, by name or path."""
    return [sys.executable, "-I", str(Path(__file__)), library]


def environment_of(device: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the probe of one GPU, by index or UUID."""
    return {**environ, "CUDA_VISIBLE_DEVICES": device}


def trouble_of(returncode: int | None, output: str) -> str:
    """Return what a probe found wrong with its GPU; empty where the GPU works, or there is no driver.

    Args:
        returncode: Of the probe's process, negative for a signal; None where it did not end in time.
        output: Of its stdout.
    """
    if returncode in {0, NO_DRIVER}:
        return ""
    if returncode is None:
        return f"CUDA error: the GPU does not answer within {PROBE_SECONDS:g} s"
    said = output.strip().splitlines()[-1:] if returncode == FAULTY else []
    return "".join(said) or f"CUDA error: the probe ended with {returncode}"


def probe_gpus(
    devices: Sequence[str], environ: Mapping[str, str], *, seconds: float = PROBE_SECONDS, library: str = LIBRARY
) -> dict[str, str]:
    """Probe GPUs side by side, each in a child process.

    Args:
        devices: Indices or UUIDs, see :func:`ddp_trainer.process.gpu_devices.visible_gpus`.
        environ: Environment of the probes.
        seconds: Time limit of each.
        library: The driver's, by name or path.

    Returns:
        What is wrong, by GPU; GPUs that work are left out.
    """
    probes = {
        device: subprocess.Popen(
            command(library),
            env=environment_of(device, environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for device in devices
    }
    found = {}
    for device, process in probes.items():
        try:
            output, _ = process.communicate(timeout=seconds)
            found[device] = trouble_of(process.returncode, output)
        except subprocess.TimeoutExpired:
            _end(process)
            found[device] = trouble_of(None, "")
    return {device: trouble for device, trouble in found.items() if trouble}


def _end(process: subprocess.Popen[str]) -> None:
    """Kill a probe. One that the kernel holds does not end by it, and is not waited for."""
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=1)


def main(library: str) -> int:
    """Probe the one GPU that this process sees; the exit code."""
    try:
        cuda = ctypes.CDLL(library)
    except OSError:
        return NO_DRIVER
    try:
        _probe(cuda)
    except _Faulty as error:
        print(f"CUDA error: {error}")
        return FAULTY
    return 0


def _probe(cuda: ctypes.CDLL) -> None:
    count, device, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
    _call(cuda, "cuInit", ctypes.c_uint(0))
    _call(cuda, "cuDeviceGetCount", ctypes.byref(count))
    if not count.value:
        raise _Faulty("no CUDA-capable device is detected")
    _call(cuda, "cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
    _call(cuda, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    _call(cuda, "cuCtxSetCurrent", context)
    size = ctypes.c_size_t(4 * WORDS)
    source, target = ctypes.c_uint64(), ctypes.c_uint64()
    for memory in (source, target):
        status = cuda.cuMemAlloc_v2(ctypes.byref(memory), size)
        if status == _OUT_OF_MEMORY:
            return  # somebody else uses it; that it answers is what counts
        _check(cuda, status)
    _call(cuda, "cuMemsetD32_v2", source, ctypes.c_uint(PATTERN), ctypes.c_size_t(WORDS))
    _call(cuda, "cuMemcpyDtoD_v2", target, source, size)
    _call(cuda, "cuCtxSynchronize")
    read = (ctypes.c_uint32 * WORDS)()
    _call(cuda, "cuMemcpyDtoH_v2", read, target, size)
    if wrong := sum(word != PATTERN for word in read):
        raise _Faulty(
            f"{wrong} of {WORDS} words of memory were read as others than were written, like an uncorrectable ECC error"
        )


def _call(cuda: ctypes.CDLL, name: str, *arguments: object) -> None:
    _check(cuda, getattr(cuda, name)(*arguments))


def _check(cuda: ctypes.CDLL, status: int) -> None:
    if status:
        text = ctypes.c_char_p()
        cuda.cuGetErrorString(ctypes.c_int(status), ctypes.byref(text))
        raise _Faulty((text.value or f"status {status}".encode()).decode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
