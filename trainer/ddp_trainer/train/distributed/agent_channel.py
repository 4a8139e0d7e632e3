"""Worker side of the channel between a worker and its agent, which lets a worker move from group to group.

:class:`Control` receives messages in a thread, because the main thread can be in a collective with lost or stuck peers.
On an urgent request the thread cuts the connections of the group, and the collective fails. On a graceful request,
when all ranks are alive, it sets a flag. The next vote of the ranks carries the flag, as for a SIGTERM. Only
``ddp-launch`` opens this channel. Under other launchers a process belongs to one group.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, MutableMapping
from typing import Final

from ddp_trainer.common.constants import Env, Exit
from ddp_trainer.common.parallel_dims import LayoutRange
from ddp_trainer.process.worker_protocol import Begin, LayoutReport, LeaveGroup, Left, Lines, Message, Reusable, encode
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.utils.errors import GroupEnded, PeerLost

_NONE: Final = 0
"""Generation of a process without a group."""

_OPEN: Final[dict[int, Control]] = {}
"""The channel by process ID, so that a forked process does not use the channel of its parent."""


class Control:
    """Channel of a worker to its agent. Only the main thread may call methods other than :meth:`end`."""

    def __init__(self, connection: socket.socket, environ: MutableMapping[str, str], *, generation: int) -> None:
        self.asked = False
        """True if the agent requested this process to leave the group after the current step."""
        self.stands_by = generation == _NONE
        """True if this process was started before its group was formed."""
        self._connection = connection
        self._environ = environ
        self._generation = generation
        self._latest = generation
        """Latest generation of which this process knows."""
        self._cut: Callable[[], None] | None = None
        self._is_training = False
        self._is_ending = False
        self._begin: Begin | None = None
        self._changed = threading.Condition()
        threading.Thread(target=self._listen, name="ddp-control", daemon=True).start()

    @classmethod
    def from_env(cls, environ: MutableMapping[str, str]) -> Control | None:
        """Return the channel that the launcher opened for this process, or None."""
        number = environ.pop(Env.CHANNEL, "")
        if number.isdecimal():
            with contextlib.suppress(OSError):
                connection = socket.socket(fileno=int(number))
                os.set_inheritable(connection.fileno(), False)
                _OPEN[os.getpid()] = cls(connection, environ, generation=int(environ.get(Env.GENERATION) or _NONE))
        return _OPEN.get(os.getpid())

    def set_reusable(self, *, able: bool = True) -> None:
        """Report to the agent whether this process can leave its group without exiting."""
        self._send_message(Reusable(able=able))

    def report_layouts(self, parallel: LayoutRange) -> None:
        """Report the layouts of this run to the agent, which adds the coordinates of a failed rank to its messages."""
        self._send_message(LayoutReport(parallel=str(parallel)))

    def mark_joining(self, cut: Callable[[], None]) -> None:
        """Mark that this process is joining the group of its generation.

        Args:
            cut: Makes every wait for a peer fail. Other threads may call it.

        Raises:
            GroupEnded: The group is over already.
        """
        with self._changed:
            if self.is_called_off:
                raise GroupEnded("The launcher forms a new group.")
            self._cut = cut

    @property
    def is_called_off(self) -> bool:
        """True if this process must not join or wait for its group any longer."""
        return self.asked or self._is_ending

    def begin_training(self) -> None:
        """Defer graceful requests to the end of the current step from now on."""
        with self._changed:
            self._is_training = True

    def report_group_exit(self, err: PeerLost, *, stays: bool = True, publishes: bool = False) -> None:
        """Report to the agent that this process has left its group.

        Args:
            err: Why it left.
            stays: True if the process waits for the next group, False if it exits after saving.
            publishes: True if the next group needs what this process saves. Otherwise the group can start before.
        """
        code, why = int(err.exit_code), str(err)
        with self._changed:
            left = Left(generation=self._generation, exit_code=code, why=why, stays=stays, publishes=publishes)
            self._generation, self._cut, self._is_training, self.asked = _NONE, None, False, False
            self._begin = None
        self._send_message(left)

    def report_standby(self) -> None:
        """Report to the agent that this process is ready and has not been in any group."""
        self._send_message(Left(generation=_NONE, exit_code=int(Exit.SUCCESS), why=""))

    def next_place(self, is_over: Callable[[], bool]) -> Environment | None:
        """Wait for the next group and return the environment in it.

        Args:
            is_over: Stops the wait when it returns True. It is called again after :meth:`end`.

        Returns:
            The place of this process in the next group, or None if ``is_over`` returned True.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._begin is not None or is_over())
            begin, self._begin = self._begin, None
        if is_over() or begin is None:
            return None
        self.stands_by = False
        self._environ.update(begin.environment)
        return Environment.from_env(self._environ)

    def end(self) -> None:
        """Stop waiting for groups and joining them, because this process must exit. Any thread may call this."""
        with self._changed:
            self._is_ending = True
            if self._cut and not self._is_training:
                self._cut()
            self._changed.notify_all()

    def _send_message(self, message: Message) -> None:
        with contextlib.suppress(OSError):  # if the agent is gone, this process ends too
            self._connection.sendall(encode(message))

    def _listen(self) -> None:
        lines = Lines()
        with self._connection, contextlib.suppress(OSError, ValueError):
            while data := self._connection.recv(1 << 16):
                for message in lines.take(data):
                    self._dispatch_message(message)

    def _dispatch_message(self, message: Message) -> None:
        with self._changed:
            match message:
                case Begin():
                    self._begin = message
                    self._generation = self._latest = int(message.environment.get(Env.GENERATION) or _NONE)
                    self._changed.notify_all()
                case LeaveGroup() if message.generation == self._generation:
                    self.asked = True
                    if self._cut and not (message.graceful and self._is_training):
                        self._cut()
                case LeaveGroup() if message.generation > self._latest:  # it was called off before the agent sent Begin
                    self._latest, ended = message.generation, GroupEnded("The launcher forms a new group.")
                    code, why = int(ended.exit_code), str(ended)
                    self._send_message(Left(generation=message.generation, exit_code=code, why=why))
