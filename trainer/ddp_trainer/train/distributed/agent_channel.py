"""This process's end of the channel to its agent: by it a worker outlives its group.

A thread listens, because the main thread may be inside a collective whose peers are gone or stuck. Where it is told
to leave at once, it cuts the group's connections, and the collective fails; where everybody is alive, it raises a flag
that rides in the next vote, as a SIGTERM does. Without a launcher of ours there is no channel, and a process belongs
to one group.
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
from ddp_trainer.process.worker_protocol import Able, Begin, Laid, Left, Lines, Message, Regroup, encode
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.utils.errors import GroupEnds, PeerLost

_NONE: Final = 0
"""No generation has this number."""

_OPEN: Final[dict[int, Control]] = {}
"""That of this process, by its id: a fork has none."""


class Control:
    """The channel; every method is the main thread's."""

    def __init__(self, connection: socket.socket, environ: MutableMapping[str, str], *, generation: int) -> None:
        self.asked = False
        """To leave the group after the step under way."""
        self.stands_by = generation == _NONE
        """This process was started before there was a group for it."""
        self._connection = connection
        self._environ = environ
        self._generation = generation
        self._cut: Callable[[], None] | None = None
        self._is_training = False
        self._is_ending = False
        self._begin: Begin | None = None
        self._changed = threading.Condition()
        threading.Thread(target=self._listen, name="ddp-control", daemon=True).start()

    @classmethod
    def from_environ(cls, environ: MutableMapping[str, str]) -> Control | None:
        """The channel that the launcher has left open, for this process alone; None where there is none."""
        number = environ.pop(Env.CHANNEL, "")
        if number.isdecimal():
            with contextlib.suppress(OSError):
                connection = socket.socket(fileno=int(number))
                os.set_inheritable(connection.fileno(), False)
                _OPEN[os.getpid()] = cls(connection, environ, generation=int(environ.get(Env.GENERATION) or _NONE))
        return _OPEN.get(os.getpid())

    def able(self, *, able: bool = True) -> None:
        """Let the agent know whether this process can leave its group without ending."""
        self._say(Able(able=able))

    def laid(self, parallel: LayoutRange) -> None:
        """Let the agent know by which layouts this process trains, so that it tells where a rank that fails stands."""
        self._say(Laid(parallel=str(parallel)))

    def entering(self, cut: Callable[[], None]) -> None:
        """The group of this generation is being met; ``cut`` makes everything that waits for a peer fail.

        Raises:
            GroupEnds: it is over already.
        """
        with self._changed:
            self._cut = cut
            if self.is_called_off:
                raise _ended()

    @property
    def is_called_off(self) -> bool:
        """The group that is being met is of no use any more."""
        return self.asked or self._is_ending

    def training_begins(self) -> None:
        """From here on a request that is not urgent waits for the end of the step."""
        with self._changed:
            self._is_training = True

    def leave(self, err: PeerLost, *, stays: bool = True, publishes: bool = False) -> None:
        """This process has left its group, and why; it ``stays`` for the next one, or ends once it has saved.

        The others may begin before it has, unless it ``publishes`` what they need.
        """
        code, why = int(err.exit_code), str(err)
        with self._changed:
            left = Left(generation=self._generation, exit_code=code, why=why, stays=stays, publishes=publishes)
            self._generation, self._cut, self._is_training, self.asked = _NONE, None, False, False
            self._begin = None
        self._say(left)

    def stand_by(self) -> None:
        """This process is ready, and has not been in any group."""
        self._say(Left(generation=_NONE, exit_code=int(Exit.SUCCESS), why=""))

    def next_place(self, is_over: Callable[[], bool]) -> Environment | None:
        """Wait for the next group; None as soon as ``is_over``. :meth:`end` makes it ask again."""
        with self._changed:
            self._changed.wait_for(lambda: self._begin is not None or is_over())
            begin, self._begin = self._begin, None
        if is_over() or begin is None:
            return None
        self.stands_by = False
        self._environ.update(begin.environment)
        return Environment.from_environ(self._environ)

    def end(self) -> None:
        """This process was told to end: it neither waits for a group nor meets one any more; any thread's."""
        with self._changed:
            self._is_ending = True
            if self._cut and not self._is_training:
                self._cut()
            self._changed.notify_all()

    def _say(self, message: Message) -> None:
        with contextlib.suppress(OSError):  # an agent that is gone takes this process with it
            self._connection.sendall(encode(message))

    def _listen(self) -> None:
        lines = Lines()
        with self._connection, contextlib.suppress(OSError, ValueError):
            while data := self._connection.recv(1 << 16):
                for message in lines.take(data):
                    self._hear(message)

    def _hear(self, message: Message) -> None:
        with self._changed:
            match message:
                case Begin():
                    self._begin = message
                    self._generation = int(message.environment.get(Env.GENERATION) or _NONE)
                    self._changed.notify_all()
                case Regroup() if message.generation == self._generation:
                    self.asked = True
                    if self._cut and not (message.graceful and self._is_training):
                        self._cut()
                case _:
                    pass


def _ended() -> GroupEnds:
    return GroupEnds("The launcher forms a new group.")
