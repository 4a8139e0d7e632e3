"""Worker's side of the flight recorder: torch's own server at a Unix socket, never at a port. :func:`start` is the main
entry point.

Loaded by path into the processes of user scripts by ``heartbeat.py``: standard library only, and torch only if the
script has imported it. C++ threads answer, so the server also answers while something holds the GIL. A failure here
never stops training. The launcher then gets less information.
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
    """Start the server at ``path``, in place of a dead worker's socket, and return whether it listens."""
    c10d = sys.modules.get("torch._C._distributed_c10d")
    make = getattr(c10d, "_WorkerServer", None)
    if make is None:
        return False
    try:
        start_at(path, make)
    except Exception:  # noqa: BLE001 - a torch without it, or no socket possible: the heartbeat page is enough
        return False
    return True


def start_at(path: str, make: Any) -> None:
    """Start the server at ``path``.

    Args:
        path: Path of the socket.
        make: torch's constructor of the server; takes an address.

    Raises:
        OSError: The socket cannot be made, or the server does not answer.
        Exception: Any error of torch.
    """
    import ctypes  # noqa: PLC0415 - a script without a group needs none of this

    name = os.path.basename(path)  # noqa: PTH119
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_CLOEXEC)  # noqa: PTH120
    try:
        if os.path.lexists(path):
            os.unlink(path)  # noqa: PTH108
        # A socket address is limited to 107 bytes, which a path may exceed.
        address = f"/proc/self/fd/{folder}/{name}"
        server = limit_server_threads(lambda: suppress_server_warnings(lambda: make(address)), path, folder)
        os.chmod(address, 0o600)  # noqa: PTH101 - torch makes it with the process's umask
    finally:
        os.close(folder)
    # Keep it until the process ends: its destructor would print a warning and wait for its threads.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))


def limit_server_threads(begin: Any, path: str, folder: int) -> Any:
    """Return the result of ``begin``, run with one processor so that the server starts few threads.

    torch's server starts one thread per processor. On a large machine with eight ranks this makes about a thousand, and
    a pod may have a limit on its number of threads.
    """
    before, all_of_us = tasks(), os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(all_of_us)})
    try:
        server = begin()
        wait_until_ready(f"/proc/self/fd/{folder}/{os.path.basename(path)}")  # noqa: PTH119 - by then it has its threads
    finally:
        for task in {*(tasks() - before), 0}:
            try:
                os.sched_setaffinity(task, all_of_us)
            except OSError:  # it has ended meanwhile
                continue
    return server


def tasks() -> set[int]:
    """Return the thread ids of this process."""
    return {int(name) for name in os.listdir("/proc/self/task")}  # noqa: PTH208


def wait_until_ready(address: str) -> None:
    """Wait until the server answers.

    Raises:
        OSError: It does not answer in time.
    """
    import socket  # noqa: PLC0415

    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_SECONDS)
        connection.connect(address)
        connection.sendall(b"POST /handler/ping HTTP/1.0\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
        connection.recv(64)


def suppress_server_warnings(begin: Any) -> Any:
    """Return the result of ``begin``, without the warnings that torch prints about this server in each rank.

    Other lines still reach stderr.
    """
    try:
        stderr = os.dup(2)
    except OSError:  # it is closed, so there is nothing to filter
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
    """Print the lines that do not come from torch's server."""
    os.set_blocking(reader, False)  # a process that was forked meanwhile may hold the other end
    output = b""
    try:
        while part := os.read(reader, 1 << 16):
            output += part
    except BlockingIOError:
        pass
    rest = b"".join(line for line in output.splitlines(keepends=True) if not any(own in line for own in OWN_LINES))
    if rest:
        os.write(stderr, rest)
