"""Connection between a resident parent and the fork server of its launcher, which outlives a crash of the launcher.

1. A fork server that is ready sends its process id to the parent.
2. The launcher crashes. The parent keeps the fork server, and sends it a request (:meth:`ParentSocket.start_launcher`).
3. The fork server forks a process, which forks the next fork server and then executes the launcher. So the fork server
   of each launcher is its child, and the next launcher need not import torch.

The fork server has its part in :mod:`ddp_trainer.launch.in_worker.fork_server_process`.

The record of the launcher, :class:`LauncherRecord`, also outlives the launcher and its container: its
place in the run, and its crashes.

The launcher writes it when it has joined a group, and removes it when it ends on purpose. So a launcher that finds a
record follows one that has crashed. Standard library only, and little of it, since the resident parent imports it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, Self

from ddp_trainer.common.constants import Env, File
from ddp_trainer.process.atomic_files import draft_of
from ddp_trainer.process.process_tree import children_of


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherRecord:
    """Launcher of one pod."""

    run_id: str
    has_joined: bool = False
    """The launcher has been in a group, so its crash counts as a failure. That of a spare ends no group."""
    generation: int = 0
    """Number of its last generation; 0 before the first."""
    first_rank: int = 0
    """Global rank of its local rank 0 in that generation."""
    crashes: int = 0
    """Launchers of this pod that have crashed after they had joined."""
    exit_code: int = 0
    """Exit code of the last crash, as a shell shows it, until a store has counted it; else 0."""
    crashed_at: float = 0.0
    """Unix time of that crash, in seconds."""


class LauncherRecordFile:
    """File of the record in the run directory of the pod. A record of another run does not count.

    A record needs a run id. Without one, the next run in the same directory would take over the record.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        folder, self._run_id = environ.get(Env.RUN_DIR, ""), environ.get(Env.RUN_ID, "")
        self._file = Path(folder) / File.LAUNCHER if folder and self._run_id else None

    def lock(self) -> bool:
        """Lock the directory of the record until this process ends. Return False if another resident parent has it."""
        if self._file:
            with contextlib.suppress(OSError):  # a file system without locks
                self._file.parent.mkdir(parents=True, exist_ok=True)
                folder = os.open(self._file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(folder)
                    return False
        return True

    def read(self) -> LauncherRecord:
        """Return the record; an empty one if there is none of this run."""
        empty = LauncherRecord(run_id=self._run_id)
        try:
            record = LauncherRecord(**json.loads(self._file.read_text())) if self._file else empty
        except (OSError, ValueError, TypeError):
            return empty
        return record if record.run_id == self._run_id else empty

    def write(self, record: LauncherRecord) -> None:
        """Replace the record. On a full disk the old one remains."""
        if self._file:
            with contextlib.suppress(OSError):
                self._file.parent.mkdir(parents=True, exist_ok=True)
                with draft_of(self._file) as draft:
                    draft.write_text(json.dumps(asdict(record)))

    def record_crash(self, exit_code: int, now: float) -> bool:
        """Record the crash of the launcher if it had joined a group, and return whether it had.

        Args:
            exit_code: Exit code of the launcher, as a shell shows it.
            now: Unix time in seconds.
        """
        record = self.read()
        if record.has_joined:
            crashes = record.crashes + 1
            self.write(replace(record, has_joined=False, crashes=crashes, exit_code=exit_code, crashed_at=now))
        return record.has_joined

    def remove(self) -> None:
        """Remove the record: the launcher ends on purpose."""
        if self._file:
            with contextlib.suppress(OSError):
                self._file.unlink(missing_ok=True)


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
    def from_env(cls, environ: MutableMapping[str, str]) -> Self | None:
        """Return what a fork server has left to this process, and remove it from the environment; None for none."""
        if not (text := environ.pop(Env.PARENT_LINK, "")):
            return None
        descriptor, pid, control = map(int, text.split(","))
        for number in (descriptor, control):
            os.set_inheritable(number, False)
        return cls(descriptor, (pid, control))


class ParentSocket:
    """Parent's end of the connection, for one launcher and those that fork servers start after it."""

    def __init__(self) -> None:
        self._parent_end, self._launcher_end = socket.socketpair()

    def close(self) -> None:
        """Close both ends, before the next launcher gets another connection."""
        self._parent_end.close()
        self._launcher_end.close()

    def detach_link(self) -> ParentLink:
        """Return the launcher's end, in the process of the launcher."""
        self._parent_end.close()
        return ParentLink(self._launcher_end.detach())

    def fork_server(self) -> int:
        """Return the process id of the child that is a ready fork server; 0 for none."""
        pid = 0
        self._parent_end.setblocking(False)
        with contextlib.suppress(OSError):
            while packed := self._parent_end.recv(_NUMBER.size):
                (pid,) = _NUMBER.unpack(packed)
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
            self._parent_end.settimeout(_REPLY_SECONDS)
            socket.send_fds(self._parent_end, [_NUMBER.pack(len(body))], [0, 1, 2])
            self._parent_end.sendall(body)
            (pid,) = _NUMBER.unpack(self._parent_end.recv(_NUMBER.size, socket.MSG_WAITALL))
        except (OSError, struct.error):
            return 0
        return int(pid)
