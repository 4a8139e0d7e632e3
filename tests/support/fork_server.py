"""Processes forked from one that has imported the trainer with torch, or the command line, already.

The imports cost more processor time than most runs of a test. The launcher starts its workers in the same way.
Run as a program, this module is that process: its arguments are the descriptor of a socket with orders, and modules.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import random
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, cast

from kubectl_ddp.backends.local.process import set_parent_death_signal

TRAINER: Final = (
    "ddp_trainer.metrics.attach",
    "ddp_trainer.train.cli",
    "ddp_trainer.train.trainer",
    "ddp_trainer.train.evaluation.evaluate",
    "ddp_trainer.train.parallel.fsdp",
    "ddp_trainer.train.parallel.tensor_parallel",
    "ddp_trainer.train.parallel.pp.pp_state",
    "ddp_trainer.train.parallel.pipeline",
)
COMMAND_LINE: Final = ("kubectl_ddp.*", "ddp_report.*")
"""All modules of both packages."""
ORDER_BYTES: Final = 1 << 17

_starting = threading.Lock()


class ForkedProcess:
    """A process of the fork server, with the part of :class:`subprocess.Popen` that tests use."""

    def __init__(self, control: socket.socket, stdout: IO[str]) -> None:
        self._control = control
        self.stdout = stdout
        self.pid = int(control.recv(32))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while the process runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(timeout=0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process ends, and return its exit code. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._control], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a forked process", timeout or 0)
            report = self._control.recv(32)
            if not report:
                raise RuntimeError("The fork server has ended before its process did.")
            self._control.close()
            self.returncode = int(report)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """Read stdout to its end, then wait. Raises subprocess.TimeoutExpired."""
        messages: list[str] = []
        reader = threading.Thread(target=lambda: messages.append(self.stdout.read()), daemon=True)
        reader.start()
        reader.join(timeout)
        if reader.is_alive():
            raise subprocess.TimeoutExpired("a forked process", timeout or 0)
        self.wait(timeout)
        return "".join(messages), None

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended, and its exit code is on its way
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL, unless the process has ended."""
        self.send_signal(signal.SIGKILL)


def run(
    program: Sequence[str], *, env: Mapping[str, str], timeout: float, imported: Sequence[str], cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run what :func:`start` starts to its end. Raises subprocess.TimeoutExpired."""
    with tempfile.TemporaryFile("w+") as stderr:
        process = start(program, env=env, stderr=stderr, imported=imported, cwd=cwd)
        with process.stdout:
            try:
                out, _ = process.communicate(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise
        stderr.seek(0)
        return subprocess.CompletedProcess(list(program), process.wait(), out, stderr.read())


def start(
    program: Sequence[str],
    *,
    env: Mapping[str, str],
    stderr: IO[Any],
    imported: Sequence[str] = TRAINER,
    cwd: Path | None = None,
) -> ForkedProcess:
    """Start what ``python PROGRAM…`` would, for a program ``-m MODULE …`` or ``-c CODE …``; its stdout is a pipe.

    ``imported`` is :data:`TRAINER` or :data:`COMMAND_LINE`.
    """
    order = json.dumps({"argv": list(program), "env": dict(env), "cwd": str(cwd or Path.cwd())}).encode()
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reader, writer = os.pipe()
    try:
        descriptors = array.array("i", [writer, stderr.fileno(), other.fileno()])
        with _starting:
            server = _server(env.get("PYTHONPATH"), tuple(imported))
        server.sendmsg([order], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
    finally:
        os.close(writer)
        other.close()
    return ForkedProcess(own, os.fdopen(reader))


@functools.cache
def _server(python_path: str | None, imported: tuple[str, ...]) -> socket.socket:
    """The socket of the fork server that imports these modules from this ``PYTHONPATH`` and ends with this process."""
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with other:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("DDP_", "OMP_"))}
        environment |= {} if python_path is None else {"PYTHONPATH": python_path}
        command = [sys.executable, "-m", __name__, str(other.fileno()), *imported]
        nothing = subprocess.DEVNULL
        process = subprocess.Popen(command, env=environment, pass_fds=[other.fileno()], stdin=nothing, stdout=nothing)
    atexit.register(_end, process, own)
    return own


def _end(process: subprocess.Popen[bytes], orders: socket.socket) -> None:
    """End the fork server, and with it all that it has forked."""
    orders.close()
    process.wait()


def serve(orders: socket.socket) -> Callable[[], None] | None:
    """Fork a process for each order. Returns what it has to run in each of them, and None in the server at the end."""
    watched = selectors.DefaultSelector()
    watched.register(orders, selectors.EVENT_READ)
    while True:
        for key, _ in watched.select():
            if key.data is not None:
                pid, control = key.data
                watched.unregister(key.fd)
                os.close(key.fd)
                with control, contextlib.suppress(OSError):
                    control.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
                continue
            order, descriptors, *_ = socket.recv_fds(orders, ORDER_BYTES, 3)
            if not order:
                return None
            server = os.getpid()
            pid = os.fork()
            if not pid:
                _close_all(watched)
                return functools.partial(_become, json.loads(order), descriptors, server)
            stdout, stderr, control_descriptor = descriptors
            os.close(stdout)
            os.close(stderr)
            control = socket.socket(fileno=control_descriptor)
            control.send(str(pid).encode())
            watched.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, control))


def _close_all(watched: selectors.BaseSelector) -> None:
    """Close, in a forked process, what the server watches."""
    for key in watched.get_map().values():
        if key.data is None:
            cast("socket.socket", key.fileobj).close()
        else:
            os.close(key.fd)
            key.data[1].close()
    watched.close()


def _become(order: Mapping[str, Any], descriptors: Sequence[int], server: int) -> None:
    """Run the program of an order in this process."""
    set_parent_death_signal(server)
    for source, target in zip(descriptors, (1, 2), strict=False):
        os.dup2(source, target)
    for descriptor in descriptors:
        os.close(descriptor)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    random.seed()
    option, program, *arguments = order["argv"]
    sys.argv = [program if option == "-m" else option, *arguments]
    if option == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(program, main.__dict__)


def _exit(code: int) -> None:
    """End as multiprocessing ends its forks: to take the modules apart would copy what is shared with the server."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _import(name: str) -> None:
    package = importlib.import_module(name.removesuffix(".*"))
    if name.endswith(".*"):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith(".__main__"):
                importlib.import_module(module.name)


if __name__ == "__main__":
    for name in sys.argv[2:]:
        _import(name)
    gc.freeze()
    become = serve(socket.socket(fileno=int(sys.argv[1])))
    if become is not None:
        try:
            become()
        except SystemExit as end:
            if not isinstance(end.code, int | None):
                raise  # the interpreter prints it
            _exit(end.code or 0)
