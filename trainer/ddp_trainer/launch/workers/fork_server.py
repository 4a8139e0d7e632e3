"""Agent's side of the fork server: :class:`ForkServer` starts its process and has it fork workers.

For a program that begins with the import of torch (:func:`imports_torch_first`), and for several workers of the
reference trainer, it starts with the launcher, and the first workers are forked too: each module is imported once in a
pod, while the group still forms. For other programs, it starts some seconds after the first workers, if these have
loaded torch. It imports those of the workers' imports that are the same for all ranks. If anything fails, workers start
the usual way: the fork server only saves seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import struct
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from ddp_trainer.launch.host.parent_link import ParentLink
from ddp_trainer.launch.protocol.message_fields import LONGEST_MODULE, MOST_MODULE_BYTES, MOST_MODULES
from ddp_trainer.launch.workers.children import Children, kill

PROCESS: Final = Path(__file__).parents[1] / "in_worker" / "fork_server_process.py"

MODULES: Final = (
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.optim",
    "torch.utils.data",
)
"""Modules that nearly every distributed script imports first; ``--preload`` adds more."""

_LENGTH: Final = struct.Struct("!Q")
_GO: Final = b"g"
_REPLY_SECONDS: Final = 2.0
_MOST_STARTS: Final = 3
"""Number of starts after which a fork server that keeps dying is not started again."""


_TORCH_IMPORT: Final = re.compile(r"^(?:import|from) torch\b", re.MULTILINE)
_MODULE: Final = re.compile(rf"[0-9A-Za-z_.]{{1,{LONGEST_MODULE}}}")
_CHANGES_ENVIRONMENT: Final = re.compile(r"\b(?:environ|putenv)\b")


NVML_CHECK: Final = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""Variable that makes ``torch.cuda.is_available()`` use NVML, so that forks can still use CUDA. Workers do not inherit
it.
"""


class ForkServer:
    """Fork server of one agent, with at most one process. :meth:`fork` returns None while no process is ready."""

    def __init__(
        self,
        children: Children,
        python: str,
        modules: Sequence[str],
        environment: Mapping[str, str],
        parent: ParentLink | None = None,
    ) -> None:
        """Initialize the fork server, with the process that the last launcher has left, if any.

        Args:
            children: Child processes of this launcher.
            python: Interpreter of the workers.
            modules: Modules to import besides :data:`MODULES`.
            environment: Environment of the process.
            parent: Connection to the resident parent. With one, the process outlives a crash of this launcher.
        """
        self._children = children
        self._python = python
        self._modules = tuple(dict.fromkeys((*MODULES, *modules)))
        self._environment = {NVML_CHECK: "1", **environment}
        self._control: socket.socket | None = None
        self.is_running = False
        """True while there is a process, ready or not."""
        self._pid = 0
        self._gate = -1
        self._is_ready = self._has_preloaded = False
        self._later: Path | None = None
        """File of the modules to import next."""
        self._waiting: list[Callable[[], None]] = []
        self._starts = 0
        self._can_preload = True
        """True to import what workers have imported; False once such an import has made forks unsafe."""
        self._parent = () if parent is None else (parent.descriptor,)
        if parent and parent.fork_server:
            self._pid, descriptor = parent.fork_server
            control = socket.socket(fileno=descriptor)
            self._use(control)
            children.add_child_handler(self._pid, partial(self._ended, control))

    def start(self, imports: Path | None = None, *, has_workers: bool = True) -> None:
        """Start the process in the background, if there is none.

        Args:
            imports: File with the names of the modules that a worker has imported, or the script of the workers.
            has_workers: Workers have printed the warnings of these imports already.
        """
        if self._control or self._starts >= _MOST_STARTS:
            return
        self._starts += 1
        try:
            agent_end, server_end = socket.socketpair()
        except OSError:
            return
        with server_end:
            passed = (server_end.fileno(), *self._parent)
            numbers = ",".join(map(str, passed))
            self._has_preloaded = bool(imports and self._can_preload)
            preloaded = [str(imports)] if self._has_preloaded else []
            command = [self._python, "-u", str(PROCESS), str(os.getpid()), numbers, ",".join(self._modules), *preloaded]
            try:
                self._pid = self._children.start(
                    command,
                    self._environment,
                    partial(self._ended, agent_end),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL if has_workers else None,
                    pass_fds=passed,
                )
            except OSError:
                agent_end.close()
                return
        self._use(agent_end)

    def _use(self, control: socket.socket) -> None:
        control.settimeout(_REPLY_SECONDS)
        self._control, self.is_running, self._is_ready = control, True, False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(control, self._poll_ready)

    def preload(self, imports: Path) -> None:
        """Import the modules that a file lists as well, in the process that runs, or in a new one."""
        if self._control is None:
            self.start(imports)
        elif self._can_preload:
            self._later = imports
            if self._is_ready:
                self._request_imports()

    def _request_imports(self) -> None:
        body = json.dumps({"imports": str(self._later)}).encode()
        self._later, self._is_ready, self._has_preloaded = None, False, True
        if self._control:
            try:
                self._control.sendall(_LENGTH.pack(len(body)) + body)
            except OSError:
                self.stop()
            else:
                self._loop.add_reader(self._control, self._poll_ready)

    @property
    def is_importing(self) -> bool:
        """True while a process runs that is not ready to fork yet."""
        return self._control is not None and not self._poll_ready()

    def call_when_ready(self, then: Callable[[], None]) -> None:
        """Call ``then`` once the process that is importing is ready, or gone."""
        if then not in self._waiting:
            self._waiting.append(then)

    def fork(self, request: Mapping[str, object], stdout: int, stderr: int, channel: int) -> int | None:
        """Return the process id of a new child that waits for :meth:`release`; None without a usable fork server.

        Args:
            request: Program, arguments, environment and working directory of the worker.
            stdout: Descriptor of its stdout.
            stderr: Descriptor of its stderr.
            channel: Descriptor of its channel to the agent.
        """
        if self._control is None or not self._poll_ready():
            return None
        gate, self._gate = os.pipe()
        try:
            body = json.dumps(request).encode()
            socket.send_fds(self._control, [_LENGTH.pack(len(body))], [stdout, stderr, gate, channel])
            self._control.sendall(body)
            (pid,) = _LENGTH.unpack(self._control.recv(_LENGTH.size))  # written at once, so it comes at once
        except (OSError, struct.error):
            os.close(self._gate)
            self.stop()
            return None
        finally:
            os.close(gate)
        return int(pid)

    def release(self) -> None:
        """Let the last fork run. One that has died already is reported like any other child."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._gate, _GO)
        os.close(self._gate)

    def stop(self) -> None:
        """Kill the fork server. Its forks continue."""
        if self._control:
            kill(self._pid, signal.SIGKILL)
            self._close_control(self._control)

    def _poll_ready(self) -> bool:
        """Return, without waiting, whether the process has imported everything."""
        if self._control and not self._is_ready:
            self._control.setblocking(False)
            try:
                answer = self._control.recv(_LENGTH.size)
            except OSError:
                return False
            finally:
                self._control.settimeout(_REPLY_SECONDS)
            self._loop.remove_reader(self._control)  # its end is that of the process
            self._is_ready = answer == _LENGTH.pack(0)
            if self._is_ready and self._later:
                self._request_imports()
            elif self._is_ready:
                self._loop.call_soon(self._call_waiting)
        return self._is_ready

    def _call_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then()

    def _ended(self, control: socket.socket, returncode: int) -> None:
        """Start a process without the workers' imports if this one exited by itself: an import may have started
        threads.
        """
        gave_up = control is self._control and not self._poll_ready() and returncode >= 0
        self._close_control(control)
        if gave_up and self._has_preloaded:
            self._can_preload = False
            self.start()

    def _close_control(self, control: socket.socket) -> None:
        if control is self._control:
            self._loop.remove_reader(control)
            self._control, self.is_running = None, False
            self._is_ready, self._later = False, None
            self._loop.call_soon(self._call_waiting)
        control.close()


def read_modules(file: Path) -> tuple[str, ...]:
    """Return the names of modules that a worker has written; none if there are too many for a message."""
    try:
        names = tuple(name for name in file.read_text().split() if re.fullmatch(_MODULE, name))
    except (OSError, ValueError):
        return ()
    return names if len(names) <= MOST_MODULES and sum(map(len, names)) <= MOST_MODULE_BYTES else ()


def imports_torch_first(files: Sequence[Path]) -> bool:
    """Return whether Python files import torch before they can change what torch reads from the environment."""
    try:
        text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    except (OSError, ValueError):
        return False
    found = _TORCH_IMPORT.search(text)
    if not found or files[-1].suffix != ".py":
        return False
    return not _CHANGES_ENVIRONMENT.search(text, 0, found.start())


def has_torch(pid: int) -> bool:
    """Return whether a process has loaded torch."""
    try:
        return "libtorch" in Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return False
