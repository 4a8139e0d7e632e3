"""The goodput ledger: what the wall clock of a job went into, over all its processes, pods and suspensions.

An account is the time up to a moment, split over :class:`~ddp_trainer.common.constants.JobTime`. Time is only ever
added by moving that moment forward, so the states add up to the time since the job first started, whatever happens. It
stands beside the checkpoints (:mod:`ddp_trainer.train.checkpoint.progress_file`) and in them; what nobody was there to
see is told afterwards from time stamps: the last one of the process before, and those that the launcher gives to its
workers.

Productive time that was lost with a crash stays productive, since a counter cannot be taken back, and is counted beside
it; what that comes to says :mod:`ddp_trainer.common.goodput`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self

from ddp_trainer.common.constants import JobTime, RestartCause

_INDEX: Final = {state: number for number, state in enumerate(JobTime)}
_CAUSES: Final = tuple(RestartCause)
_LAYOUT: Final = struct.Struct(f"<{3 + len(_CAUSES) + len(JobTime)}d")

SIZE: Final = _LAYOUT.size
"""Bytes of a packed account."""


@dataclass(frozen=True, slots=True)
class Moments:
    """When what happened on the way to a worker group, as its launcher saw it: Unix times; 0 is not known."""

    launched: float = 0.0
    """The launcher of this pod started."""
    joined: float = 0.0
    """It joined the rendezvous that formed this group."""
    formed: float = 0.0
    """The group was formed, and workers start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """How a process got to the first step that it takes in a group; Unix times."""

    moments: Moments
    restarts: Mapping[str, int]
    """Restarts of the run so far, by cause."""
    process: float
    """This process began."""
    restoring: float
    """It began to look for a state to go on from."""
    restored: float
    """It has one."""
    loaded: bool
    """That was stored, or another rank's."""


@dataclass(slots=True)
class Account:
    """The ledger. Seconds; Unix times."""

    until: float = 0.0
    """What was before this moment is accounted for; 0 of an account that has not begun."""
    lost: float = 0.0
    """Productive time whose steps did not survive."""
    has_left: bool = False
    """All processes were told to stop, and saved."""
    restarts: list[int] = field(default_factory=lambda: [0] * len(_CAUSES))
    """As known at the last arrival, in the order of :class:`~ddp_trainer.common.constants.RestartCause`."""
    seconds: list[float] = field(default_factory=lambda: [0.0] * len(JobTime))
    """In the order of :class:`~ddp_trainer.common.constants.JobTime`."""

    def __getitem__(self, state: JobTime) -> float:
        return self.seconds[_INDEX[state]]

    @property
    def elapsed(self) -> float:
        """Since the job first started, up to :attr:`until`."""
        return sum(self.seconds)

    @property
    def surviving(self) -> float:
        """Productive time of steps that the weights still hold."""
        return self[JobTime.PRODUCTIVE] - self.lost

    def begin(self, start: float) -> None:
        """The job first started at ``start``, as far as anyone knows by now: an earlier start is made up for."""
        if not self.until:
            self.until = start
        self.seconds[_INDEX[JobTime.STARTUP]] += max(0.0, self.until - start - self.elapsed)

    def spend(self, state: JobTime, until: float) -> None:
        """The time up to ``until`` went into ``state``; none did if that moment is accounted for already."""
        if until > self.until:
            self.seconds[_INDEX[state]] += until - self.until
            self.until = until

    def work(self, until: float, parts: Mapping[JobTime, float]) -> None:
        """The time up to ``until`` was spent in training: on each of ``parts`` so much, and productively the rest."""
        left = until - self.until
        if left <= 0:
            return
        for state, seconds in parts.items():
            share = min(seconds, left)
            self.seconds[_INDEX[state]] += share
            left -= share
        self.seconds[_INDEX[JobTime.PRODUCTIVE]] += left
        self.until = until

    def leave(self) -> None:
        """This process was told to stop, and has saved."""
        self.has_left = True

    def copy(self) -> Account:
        """One that can go on without this one."""
        return replace(self, restarts=[*self.restarts], seconds=[*self.seconds])

    def arrive(self, arrival: Arrival, now: float) -> None:
        """The first step begins ``now``: tell where the time since the last process's last step has gone."""
        moments = arrival.moments
        if moments.launched:
            is_new_pod = moments.launched >= self.until
            self.spend(JobTime.SUSPENDED if self.has_left else JobTime.SCHEDULING, moments.launched)
            self.spend(JobTime.STARTUP if is_new_pod else self._cause(arrival.restarts), moments.joined)
            self.spend(JobTime.RENDEZVOUS, moments.formed)
        else:
            self.spend(JobTime.SUSPENDED if self.has_left else JobTime.RESTART, arrival.process)
        self.spend(JobTime.STARTUP, arrival.restoring)
        self.spend(JobTime.CHECKPOINT_LOAD if arrival.loaded else JobTime.INIT, arrival.restored)
        self.spend(JobTime.INIT, now)
        self.has_left = False
        self.restarts = [arrival.restarts.get(cause, 0) for cause in _CAUSES]

    def survives(self, productive: float) -> None:
        """Of all productive time so much has survived: the rest is lost. What is lost once stays so."""
        self.lost = max(self.lost, self[JobTime.PRODUCTIVE] - productive)

    def _cause(self, restarts: Mapping[str, int]) -> JobTime:
        """Why the group before has ended: what has been counted since. A hang outweighs what followed from it."""
        risen = {cause for cause, known in zip(_CAUSES, self.restarts, strict=True) if restarts.get(cause, 0) > known}
        if RestartCause.HANG in risen:
            return JobTime.HANG
        if risen and risen <= {RestartCause.MEMBERSHIP}:
            return JobTime.ELASTIC_RESIZE
        return JobTime.RESTART

    def to_list(self) -> list[float]:
        """Plain numbers; the inverse is :meth:`from_list`."""
        return [self.until, self.lost, float(self.has_left), *map(float, self.restarts), *self.seconds]

    @classmethod
    def from_list(cls, numbers: Sequence[float]) -> Self:
        """The inverse of :meth:`to_list`; a blank one where these can be no account: too few, not finite, negative."""
        if len(numbers) != SIZE // 8 or not all(0.0 <= number < math.inf for number in numbers):
            return cls()
        until, lost, has_left, *rest = numbers
        return cls(until, lost, bool(has_left), [int(each) for each in rest[: len(_CAUSES)]], rest[len(_CAUSES) :])

    def pack(self) -> bytes:
        """:data:`SIZE` bytes."""
        return _LAYOUT.pack(*self.to_list())

    @classmethod
    def unpack(cls, packed: bytes) -> Self:
        """The inverse of :meth:`pack`; a blank one of fewer bytes."""
        return cls.from_list(_LAYOUT.unpack(packed) if len(packed) == SIZE else ())
