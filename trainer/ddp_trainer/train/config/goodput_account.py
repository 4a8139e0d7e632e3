"""Goodput account: wall-clock time of a job by state, over all its processes, pods and suspensions.

An :class:`Account` splits the time up to a moment over the states of :class:`~ddp_trainer.common.time_classes.JobTime`.
Time is only added by moving that moment forward, so the states always add up to the time since the job first started.
The account is stored in the checkpoints and in a file beside them (:mod:`ddp_trainer.train.checkpoint.progress_file`).
Time that no trainer process recorded is assigned afterwards. The sources are the last time stamp of the previous
process and the time stamps that the launcher passes to its workers.

Productive time that is lost in a crash stays in the productive counter, because a counter must not decrease. It is also
counted as lost time; :mod:`ddp_trainer.common.goodput` computes the goodput from both.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self

from ddp_trainer.common.constants import RestartCause
from ddp_trainer.common.time_classes import JobTime

_INDEX: Final = {state: number for number, state in enumerate(JobTime)}
_CAUSES: Final = tuple(RestartCause)
_LAYOUT: Final = struct.Struct(f"<{3 + len(_CAUSES) + len(JobTime)}d")

SIZE: Final = _LAYOUT.size
"""Size of a packed account in bytes."""


@dataclass(frozen=True, slots=True)
class LauncherTimes:
    """Unix times of the launcher's steps to a worker group; 0 means unknown."""

    launched: float = 0.0
    """Start of this pod's launcher."""
    joined: float = 0.0
    """The launcher joined the rendezvous that formed this group."""
    formed: float = 0.0
    """The rendezvous formed the group. The workers start next."""


@dataclass(slots=True)
class Account:
    """Goodput account of a job. Durations are in seconds, moments are Unix times."""

    until: float = 0.0
    """End of the time that the account covers; 0 before :meth:`begin`."""
    lost: float = 0.0
    """Productive time of steps that were lost, in seconds."""
    has_left: bool = False
    """True if all processes received a stop request and saved their state."""
    restarts: list[int] = field(default_factory=lambda: [0] * len(_CAUSES))
    """Restarts at the last :meth:`arrive`, in the order of :class:`~ddp_trainer.common.constants.RestartCause`."""
    seconds: list[float] = field(default_factory=lambda: [0.0] * len(JobTime))
    """Seconds per state, in the order of :class:`~ddp_trainer.common.time_classes.JobTime`."""

    def __getitem__(self, state: JobTime) -> float:
        return self.seconds[_INDEX[state]]

    @property
    def elapsed(self) -> float:
        """Seconds from the first start of the job to :attr:`until`."""
        return sum(self.seconds)

    def begin(self, start: float) -> None:
        """Set the first start of the job. If it is earlier than the recorded one, startup time is added."""
        if not self.until:
            self.until = start
        self.seconds[_INDEX[JobTime.STARTUP]] += max(0.0, self.until - start - self.elapsed)

    def add_time(self, state: JobTime, until: float) -> None:
        """Add the time up to ``until`` to ``state``. Do nothing if the account already covers that moment."""
        if until > self.until:
            self.seconds[_INDEX[state]] += until - self.until
            self.until = until

    def work(self, until: float, parts: Mapping[JobTime, float]) -> None:
        """Add training time: the seconds in ``parts`` to their states, the rest up to ``until`` to productive time."""
        left = until - self.until
        if left <= 0:
            return
        for state, seconds in parts.items():
            share = min(seconds, left)
            self.seconds[_INDEX[state]] += share
            left -= share
        self.seconds[_INDEX[JobTime.PRODUCTIVE]] += left
        self.until = until

    def copy(self) -> Account:
        """Return an independent copy."""
        return replace(self, restarts=[*self.restarts], seconds=[*self.seconds])

    def arrive(
        self,
        moments: LauncherTimes,
        restarts: Mapping[str, int],
        *,
        process: float,
        restoring: float,
        restored: float,
        loaded: bool,
        now: float,
    ) -> None:
        """Assign the time from the last step of the previous process to the first step of this one, in Unix times.

        Args:
            moments: Events of the launcher before this process.
            restarts: Number of restarts of the run so far, by cause.
            process: Start of this process.
            restoring: Start of the search for a state to resume from.
            restored: End of that search: the process has a state.
            loaded: The state came from a checkpoint or another rank.
            now: Start of the first step.
        """
        if moments.launched:
            is_new_pod = moments.launched >= self.until
            self.add_time(JobTime.SUSPENDED if self.has_left else JobTime.SCHEDULING, moments.launched)
            self.add_time(JobTime.STARTUP if is_new_pod else self._cause(restarts), moments.joined)
            self.add_time(JobTime.RENDEZVOUS, moments.formed)
        else:
            self.add_time(JobTime.SUSPENDED if self.has_left else JobTime.RESTART, process)
        self.add_time(JobTime.STARTUP, restoring)
        self.add_time(JobTime.CHECKPOINT_LOAD if loaded else JobTime.INIT, restored)
        self.add_time(JobTime.INIT, now)
        self.has_left = False
        self.restarts = [restarts.get(cause, 0) for cause in _CAUSES]

    def record_lost_time(self, productive: float) -> None:
        """Count all productive time above ``productive`` seconds as lost. The lost time never decreases."""
        self.lost = max(self.lost, self[JobTime.PRODUCTIVE] - productive)

    def _cause(self, restarts: Mapping[str, int]) -> JobTime:
        """Return why the previous group ended, from the restarts counted since. A hang outranks its consequences."""
        risen = {cause for cause, known in zip(_CAUSES, self.restarts, strict=True) if restarts.get(cause, 0) > known}
        if RestartCause.HANG in risen:
            return JobTime.HANG
        if risen and risen <= {RestartCause.RESIZE}:
            return JobTime.ELASTIC_RESIZE
        return JobTime.RESTART

    def to_list(self) -> list[float]:
        """Return the account as a list of numbers; the inverse is :meth:`from_list`."""
        return [self.until, self.lost, float(self.has_left), *map(float, self.restarts), *self.seconds]

    @classmethod
    def from_list(cls, numbers: Sequence[float]) -> Self:
        """Return the account of :meth:`to_list`.

        Invalid input gives an empty account: a wrong length, or a number that is negative or not finite.
        """
        if len(numbers) != SIZE // 8 or not all(0.0 <= number < math.inf for number in numbers):
            return cls()
        until, lost, has_left, *rest = numbers
        return cls(until, lost, bool(has_left), [int(count) for count in rest[: len(_CAUSES)]], rest[len(_CAUSES) :])

    def pack(self) -> bytes:
        """Return the account as :data:`SIZE` bytes."""
        return _LAYOUT.pack(*self.to_list())

    @classmethod
    def unpack(cls, packed: bytes) -> Self:
        """Return the account of :meth:`pack`, or an empty account if the length is not :data:`SIZE`."""
        return cls.from_list(_LAYOUT.unpack(packed) if len(packed) == SIZE else ())
