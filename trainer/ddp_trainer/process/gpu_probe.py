"""Probe of one GPU in a child process: create a context, write memory, copy it and read it back.

:func:`command` and :func:`environment_of` define the process to start, and :func:`probe_error` reads its result. A GPU
that fell off the bus can block a process that accesses it, and a process cannot leave a failed context. The probe is
therefore a separate process, run by path:
``python -I process/gpu_probe.py``, with the GPU in ``CUDA_VISIBLE_DEVICES``. It uses only the driver's library, so it
takes about as long as CUDA needs to start. Standard library only. Not proven on GPUs: tests use a substitute for the
driver's library.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from pathlib import Path

LIBRARY = "libcuda.so.1"
PROBE_SECONDS = 30.0
"""Time limit of a probe in seconds. A GPU that does not respond within it is faulty."""
NO_DRIVER = 3
"""Exit code: the driver's library does not exist, so the probe does nothing."""
FAULTY = 4
"""Exit code: the GPU is faulty; one line on stdout gives the reason."""
WORDS = 1 << 18
"""Number of 32-bit words that are written, copied on the GPU and read back: 1 MiB."""
PATTERN = 0x5AC3_0FF1
_OUT_OF_MEMORY = 2


class _Faulty(Exception):
    """Error of a faulty GPU; the message gives the reason."""


def command(library: str = LIBRARY) -> list[str]:
    """Return the command line of a probe; ``library`` is the driver's, by name or path."""
    return [sys.executable, "-I", str(Path(__file__)), library]


def environment_of(device: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the probe of one GPU, by index or UUID."""
    return {**environ, "CUDA_VISIBLE_DEVICES": device}


def probe_error(returncode: int | None, output: str) -> str:
    """Return the fault that a probe found; empty where the GPU works or no driver is installed.

    Args:
        returncode: Exit code of the probe's process, negative for a signal; None where it did not end in time.
        output: Its stdout.
    """
    if returncode in {0, NO_DRIVER}:
        return ""
    if returncode is None:
        return f"CUDA error: the GPU does not answer within {PROBE_SECONDS:g} s"
    fault = output.strip().splitlines()[-1:] if returncode == FAULTY else []
    return "".join(fault) or f"CUDA error: the probe ended with {returncode}"


def main(library: str) -> int:
    """Probe the GPU that this process sees, and return the exit code."""
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
            return  # another process uses the memory; the GPU responds, which is enough
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
