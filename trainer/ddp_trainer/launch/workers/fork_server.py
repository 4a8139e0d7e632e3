"""Agent's side of the fork server (zygote): :class:`ForkServer` starts its process and has it fork workers.

It starts some seconds after the first workers, and only if these have loaded torch. So the first start of workers does
not wait for it, and a script without torch does not pay for it. It imports those of the workers' imports that are the
same for all ranks. If anything fails, workers start the usual way: the fork server only saves seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from ddp_trainer.launch.host.parent_link import ParentLink
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
        self._pid = 0
        self._gate = -1
        self._is_ready = False
        self._starts = 0
        self._has_given_way = False
        self._learns = True
        """True to import what workers have imported; False once such an import has made forks unsafe."""
        self._parent = () if parent is None else (parent.descriptor,)
        if parent and parent.fork_server:
            self._pid, descriptor = parent.fork_server
            control = socket.socket(fileno=descriptor)
            self._use(control)
            children.add_child_handler(self._pid, partial(self._ended, control, has_learnt=False))

    def start(self, imports: Path | None = None) -> None:
        """Start the process in the background, if there is none.

        Args:
            imports: File with the names of the modules that a worker has imported, or the script of the workers.
        """
        if self._control or self._starts >= _MOST_STARTS:
            return
        self._starts += 1
        try:
            ours, theirs = socket.socketpair()
        except OSError:
            return
        with theirs:
            passed = (theirs.fileno(), *self._parent)
            numbers = ",".join(map(str, passed))
            learnt = [str(imports)] if imports and self._learns else []
            command = [self._python, "-u", str(PROCESS), str(os.getpid()), numbers, ",".join(self._modules), *learnt]
            try:
                self._pid = self._children.start(
                    command,
                    self._environment,
                    partial(self._ended, ours, has_learnt=bool(learnt)),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,  # the workers have already printed the warnings of imports
                    pass_fds=passed,
                )
            except OSError:
                ours.close()
                return
        self._use(ours)

    def _use(self, control: socket.socket) -> None:
        control.settimeout(_REPLY_SECONDS)
        self._control = control

    def stop_if_importing(self, *, has_time: bool) -> None:
        """Stop a process that is still importing, since workers start now and it would slow them down.

        It continues if it ``has_time``, and from the second time on: workers that start so often need it most.
        """
        if self._control and not self._poll_ready() and not has_time and not self._has_given_way:
            self._has_given_way = True
            self.stop()
            self._starts -= 1

    def fork(self, request: Mapping[str, object], stdout: int, stderr: int, channel: int) -> int | None:
        """Return the process id of a new child that waits for :meth:`release`; None without a usable fork server.

        Args:
            request: Program, arguments, environment and working directory of the worker.
            stdout: Descriptor of its stdout.
            stderr: Descriptor of its stderr.
            channel: Descriptor of its channel to the agent.
        """
        if self._control is None or not self._is_ready:
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
                self._is_ready = self._control.recv(_LENGTH.size) == _LENGTH.pack(0)
            except OSError:
                return False
            finally:
                self._control.settimeout(_REPLY_SECONDS)
        return self._is_ready

    def _ended(self, control: socket.socket, returncode: int, *, has_learnt: bool) -> None:
        """Start a process without the workers' imports if this one exited by itself: an import may have started
        threads.
        """
        gave_up = control is self._control and not self._poll_ready() and returncode >= 0
        self._close_control(control)
        if gave_up and has_learnt:
            self._learns = False
            self.start()

    def _close_control(self, control: socket.socket) -> None:
        control.close()
        if control is self._control:
            self._control, self._is_ready = None, False


def has_torch(pid: int) -> bool:
    """Return whether a process has loaded torch."""
    try:
        return "libtorch" in Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return False
