"""The worker's side of its flight recorder: torch's own server, at a socket of the file system and never at a port.

Loaded by path into the processes of other people's scripts, as ``heartbeat.py`` is: standard library only, and what
torch has once the script has imported it. Threads of C++ answer, so it is there also while something holds the GIL.
Whatever fails here, training goes on, and the launcher knows less.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself would cost every worker a millisecond
    from typing import Any

ANSWER_SECONDS = 1.0
OWN_LINES = (b"WorkerServer.cpp",)


def start(path: str) -> bool:
    """Listen at ``path``, in place of whatever a dead worker has left there; whether somebody does now."""
    c10d = sys.modules.get("torch._C._distributed_c10d")
    make = getattr(c10d, "_WorkerServer", None)
    if make is None:
        return False
    try:
        start_at(path, make)
    except Exception:  # noqa: BLE001 - a torch that was built without, no room for a socket: the pulse tells the rest
        return False
    return True


def start_at(path: str, make: Any) -> None:
    """The same. Raises whatever torch does, OSError."""
    import ctypes  # noqa: PLC0415 - a script without a group needs none of this

    name = os.path.basename(path)  # noqa: PTH119
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_CLOEXEC)  # noqa: PTH120
    try:
        if os.path.lexists(path):
            os.unlink(path)  # noqa: PTH108
        # The address of a socket has 107 bytes, and a path may have more.
        address = f"/proc/self/fd/{folder}/{name}"
        server = few_threads(lambda: without_its_lines(lambda: make(address)), path, folder)
        os.chmod(address, 0o600)  # noqa: PTH101 - torch makes it with the process's umask
    finally:
        os.close(folder)
    # For ever: torch would say at the end that it was not shut down, and wait for its threads.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))


def few_threads(begin: Any, path: str, folder: int) -> Any:
    """What ``begin`` makes, with as many threads as a machine of one processor would have it have.

    torch's server takes a thread per processor, which is a thousand of them on a large machine with eight ranks, and
    the number of threads of a pod may have a limit.
    """
    before, all_of_us = tasks(), os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(all_of_us)})
    try:
        server = begin()
        first_answer(f"/proc/self/fd/{folder}/{os.path.basename(path)}")  # noqa: PTH119 - by then it has its threads
    finally:
        for task in {*(tasks() - before), 0}:
            try:
                os.sched_setaffinity(task, all_of_us)
            except OSError:  # it has ended meanwhile
                continue
    return server


def tasks() -> set[int]:
    """The threads of this process."""
    return {int(name) for name in os.listdir("/proc/self/task")}  # noqa: PTH208


def first_answer(address: str) -> None:
    """Wait until the server speaks. Raises OSError where it does not."""
    import socket  # noqa: PLC0415

    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_SECONDS)
        connection.connect(address)
        connection.sendall(b"POST /handler/ping HTTP/1.0\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
        connection.recv(64)


def without_its_lines(begin: Any) -> Any:
    """What ``begin`` makes, while torch's lines about it, a warning per rank, are kept from stderr, and no others."""
    try:
        stderr = os.dup(2)
    except OSError:  # it is closed, so nobody reads them
        return begin()
    reader, writer = os.pipe()
    try:
        os.dup2(writer, 2)
        try:
            return begin()
        finally:
            os.dup2(stderr, 2)
            os.close(writer)
            pass_on(reader, stderr)
    finally:
        os.close(reader)
        os.close(stderr)


def pass_on(reader: int, stderr: int) -> None:
    """Print what others have written meanwhile."""
    os.set_blocking(reader, False)  # a process that was forked meanwhile may hold the other end
    said = b""
    try:
        while part := os.read(reader, 1 << 16):
            said += part
    except BlockingIOError:
        pass
    rest = b"".join(line for line in said.splitlines(keepends=True) if not any(own in line for own in OWN_LINES))
    if rest:
        os.write(stderr, rest)
