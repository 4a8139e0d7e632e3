"""Connection between a resident parent and the fork server of its launcher, which outlives a crash of the launcher.

1. A fork server that is ready sends its process id to the parent.
2. The launcher crashes. The parent keeps the fork server, and sends it a request (:meth:`ParentSocket.start_launcher`).
3. The fork server forks a process, which forks the next fork server and then executes the launcher. So the fork server
   of each launcher is its child, and the next launcher need not import torch.

The fork server has its part in :mod:`ddp_trainer.launch.in_worker.fork_server_process`.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import sys
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from ddp_trainer.common.constants import Env
from ddp_trainer.process.process_tree import children_of

_NUMBER: Final = struct.Struct("!Q")
_REPLY_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class ParentLink:
    """Launcher's end of the connection."""

    descriptor: int
    """Socket to the parent, for fork servers."""
    fork_server: tuple[int, int] | None = None
    """Process id of the fork server that has outlived the last launcher, and the socket to it; None for none."""

    @classmethod
    def from_environ(cls, environ: MutableMapping[str, str]) -> Self | None:
        """Return what a fork server has left to this process, and remove it from the environment; None for none."""
        if not (text := environ.pop(Env.PARENT_LINK, "")):
            return None
        descriptor, pid, control = map(int, text.split(","))
        for each in (descriptor, control):
            os.set_inheritable(each, False)
        return cls(descriptor, (pid, control))


class ParentSocket:
    """Parent's end of the connection, for one launcher and those that fork servers start after it."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()

    def close(self) -> None:
        """Close both ends, before the next launcher gets another connection."""
        self._ours.close()
        self._theirs.close()

    def become_link(self) -> ParentLink:
        """Return the launcher's end, in the process of the launcher."""
        self._ours.close()
        return ParentLink(self._theirs.detach())

    def fork_server(self) -> int:
        """Return the process id of the child that is a ready fork server; 0 for none."""
        pid = 0
        self._ours.setblocking(False)
        with contextlib.suppress(OSError):
            while told := self._ours.recv(_NUMBER.size):
                (pid,) = _NUMBER.unpack(told)
        return pid if pid in children_of(os.getpid()) else 0

    def start_launcher(self) -> int:
        """Have the fork server start this process's command as the next launcher.

        Returns:
            Process id of the launcher, a child of this process; 0 if the fork server does not answer.
        """
        try:
            request = {
                "parent": os.getpid(),
                "command": [sys.executable, *sys.orig_argv[1:]],
                "environment": dict(os.environ),
                "cwd": str(Path.cwd()),
            }
            body = json.dumps(request).encode()
            self._ours.settimeout(_REPLY_SECONDS)
            socket.send_fds(self._ours, [_NUMBER.pack(len(body))], [0, 1, 2])
            self._ours.sendall(body)
            (pid,) = _NUMBER.unpack(self._ours.recv(_NUMBER.size, socket.MSG_WAITALL))
        except (OSError, struct.error):
            return 0
        return int(pid)
