"""The agent's side of the zygote: start it when nothing is lost by it, and have it fork workers.

It is started some seconds after the first workers, and only when these have torch in their memory, so a first start
never waits for it and a script without torch never pays for it. It imports what they have imported, as far as that is
the same for all ranks. Whatever goes wrong, workers are started the usual way: the zygote saves seconds and nothing
depends on it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from ddp_trainer.launch.workers.children import Children, kill

PROCESS: Final = Path(__file__).parents[1] / "in_worker" / "fork_server_process.py"

MODULES: Final = (
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.optim",
    "torch.utils.data",
    "torch.distributed.optim",
)
"""What nearly every distributed script imports first; the flags name more."""

_LENGTH: Final = struct.Struct("!Q")
_GO: Final = b"g"
_REPLY_SECONDS: Final = 2.0
_MOST_STARTS: Final = 3
"""A zygote that keeps dying is not started again."""


NVML_CHECK: Final = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""With it ``torch.cuda.is_available()`` asks NVML, after which forks can still use CUDA. Workers do not inherit it."""


class ForkServer:
    """At most one zygote process. :meth:`fork` is None whenever there is none to fork from."""

    def __init__(self, children: Children, python: str, modules: Sequence[str], environment: Mapping[str, str]) -> None:
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
        """What workers have imported is imported too: unless something of it is nothing to fork with."""

    def start(self, imports: Path | None = None) -> None:
        """Start it in the background, unless there is one; ``imports`` is what a worker left of what it imported."""
        if self._control or self._starts >= _MOST_STARTS:
            return
        self._starts += 1
        ours, theirs = socket.socketpair()
        ours.settimeout(_REPLY_SECONDS)
        with theirs:
            number = str(theirs.fileno())
            learnt = [str(imports)] if imports and self._learns else []
            command = [self._python, "-u", str(PROCESS), str(os.getpid()), number, ",".join(self._modules), *learnt]
            try:
                self._pid = self._children.start(
                    command,
                    self._environment,
                    lambda returncode: self._ended(ours, returncode, has_learnt=bool(learnt)),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,  # a warning of an import is the workers' to print, and they have
                    pass_fds=(theirs.fileno(),),
                )
            except OSError:
                ours.close()
                return
        self._control = ours

    def hurry(self, *, has_time: bool) -> None:
        """Workers are to start now: one that is still importing would only be in their way, unless it ``has_time``.

        The second time it goes on: workers that start so often need it most.
        """
        if self._control and not self._is_usable() and not has_time and not self._has_given_way:
            self._has_given_way = True
            self.stop()
            self._starts -= 1

    def fork(self, request: Mapping[str, object], stdout: int, stderr: int, channel: int) -> int | None:
        """Process id of a new child that waits for :meth:`release` at a gate, or None."""
        if self._control is None or not self._is_ready:
            return None
        gate, self._gate = os.pipe()
        try:
            body = json.dumps(request).encode()
            socket.send_fds(self._control, [_LENGTH.pack(len(body))], [stdout, stderr, gate, channel])
            self._control.sendall(body)
            (pid,) = _LENGTH.unpack(self._receive(self._control))
        except (OSError, struct.error):
            os.close(self._gate)
            self.stop()
            return None
        finally:
            os.close(gate)
        return int(pid)

    def release(self) -> None:
        """Let the last fork run."""
        os.write(self._gate, _GO)
        os.close(self._gate)

    def stop(self) -> None:
        """End it; its forks live on."""
        if self._control:
            kill(self._pid, signal.SIGKILL)
            self._forget(self._control)

    def _is_usable(self) -> bool:
        """Whether it has imported everything; asked without waiting."""
        if self._control and not self._is_ready:
            self._control.setblocking(False)
            try:
                self._is_ready = self._control.recv(_LENGTH.size) == _LENGTH.pack(0)
            except OSError:
                return False
            finally:
                self._control.settimeout(_REPLY_SECONDS)
        return self._is_ready

    def _receive(self, control: socket.socket) -> bytes:
        data = b""
        while len(data) < _LENGTH.size:
            part = control.recv(_LENGTH.size - len(data))
            if not part:
                raise ConnectionError
            data += part
        return data

    def _ended(self, control: socket.socket, returncode: int, *, has_learnt: bool) -> None:
        """One that gave up by itself may have learnt something that starts threads: another does without."""
        gave_up = control is self._control and not self._is_usable() and returncode >= 0
        self._forget(control)
        if gave_up and has_learnt:
            self._learns = False
            self.start()

    def _forget(self, control: socket.socket) -> None:
        control.close()
        if control is self._control:
            self._control, self._is_ready = None, False


def has_torch(pid: int) -> bool:
    """Whether a process has torch in its memory."""
    try:
        return "libtorch" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False
