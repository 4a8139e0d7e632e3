"""The steps of a loop that tells nothing, from what can be seen of it: batches, backward passes, optimizers' steps.

A step ends where the optimizer's step does, and everything since the end of the one before belongs to it. Of several
optimizers the first that stepped counts; should it stop while another goes on, that one counts from then on. Where
steps are short and plain, most are counted only; see :mod:`ddp_trainer.metrics.record.batched_steps`.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from ddp_trainer.metrics.record.batched_steps import SHORT_SECONDS, TIMED_STEPS, StepBatch, StepBatchResult, StepBudget
from ddp_trainer.metrics.record.sample_counter import Intake

RIVAL_STEPS: Final = 16
"""So often another optimizer may step while the one that counts does not."""

START: Final = "start"
IDLE: Final = "idle"
FETCHED: Final = "fetched"
COMPUTED: Final = "computed"
"""What was seen last: nothing yet, the end of a step, a batch, a backward pass."""


class Listener(Protocol):
    """Hears of every step once."""

    def step(
        self, optimizer: Any, samples: int, waited: float, forward: float, backward: float, moved: float, rest: float
    ) -> None:
        """A step of ``optimizer`` has ended: seconds of data wait, forward, backward, optimizer, and the rest."""

    def strode(self, optimizer: Any, stride: StepBatchResult) -> None:
        """A stride has ended; ``optimizer`` is None where it is gone."""

    def outlook(self) -> StepBudget:
        """How far a stride may go that begins now."""


def _nothing() -> None:
    """Do it."""


class Timeline:
    """Told of each thing when it begins and when it is over, but in a stride; hands every step on."""

    def __init__(self, listener: Listener, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.stride = StepBatch(clock)
        """While it is on, it alone is told of the batches of its loader and of the steps of its leader."""
        self.looks_away: Callable[[], None] = _nothing
        """Called as a stride begins: nobody need be told of backward passes …"""
        self.looks_again: Callable[[], None] = _nothing
        """… until now."""
        self._listener = listener
        self._mark = 0.0
        self._seen = START
        self._waited = self._forward = self._backward = self._moved = self._rest = 0.0
        self._intakes: list[Intake] = []
        self._leader: Callable[[], Any] = lambda: None
        self._rival: Callable[[], Any] = lambda: None
        self._rival_steps = 0
        self._is_moving = False
        self._is_plain = False
        self._plain: deque[tuple[float, float, float]] = deque(maxlen=TIMED_STEPS)

    def _begin(self, now: float) -> None:
        """The first step begins here: what was before is no part of any."""
        self._mark = now
        self._seen = IDLE

    def fetched(self, begun: float, intake: Intake, *, is_training: bool) -> None:
        """The script has a batch, for which it asked at ``begun``; with gradients off it is none to train with."""
        if self.stride.is_on:
            if is_training and self.stride.takes(intake):
                self.stride.fetched(begun, self.clock())
                return
            self.pause()
        now = self.clock()
        if self._seen is START:
            self._begin(begun)
        begun = max(begun, self._mark)  # something was heard meanwhile: of a loader within, or of another thread
        self._rest += begun - self._mark
        self._mark = now
        if is_training:
            self._waited += now - begun
            self._seen = FETCHED
            if intake not in self._intakes:
                self._intakes.append(intake)
        else:
            self._rest += now - begun
            intake.samples = 0
            self._is_plain = False

    def backward(self) -> None:
        """A backward pass begins."""
        now = self.clock()
        if self._seen is START:
            self._begin(now)
        self._forward += now - self._mark
        self._mark = now

    def backward_done(self) -> None:
        """It is over."""
        now = self.clock()
        self._backward += now - self._mark
        self._mark = now
        self._seen = COMPUTED

    def move(self, optimizer: object) -> None:
        """An optimizer's step begins; its closure, if it has one, may compute the gradients first."""
        now = self.clock()
        if self._seen is START:
            self._begin(now)
        spent = now - self._mark
        if self._seen is COMPUTED:
            self._moved += spent  # gradients are clipped, unscaled
        elif self._seen is FETCHED:
            self._forward += spent
        else:
            self._rest += spent
        self._mark = now
        if self._is_moving or self._seen is not COMPUTED:
            self._is_plain = False
        leader = self._leader()
        if leader is None:
            self._leader = weakref.ref(optimizer)
            leader = optimizer
        if leader is optimizer:
            self._is_moving = True
        else:
            self._note_rival(optimizer)

    def moved(self, optimizer: object) -> None:
        """It is over. A step that calls that of its base class is one step."""
        if self.stride.is_on:
            self.pause()
            self.move(optimizer)  # another one than the stride's; nobody asked to hear its beginning
        now = self.clock()
        self._moved += now - self._mark
        self._mark = now
        if self._is_moving and self._leader() is optimizer:
            self._is_moving = False
            self._rival_steps = 0
            self._end(optimizer)

    def pause(self) -> None:
        """End the stride, if there is one; what comes next is taken apart."""
        stride = self.stride
        if stride.is_on:
            strode = stride.end()
            self.looks_again()
            self._mark = stride.mark
            if stride.is_fetched:
                self._seen = FETCHED
                self._intakes.append(stride.intake)
            self._is_plain = not stride.is_fetched
            if strode.steps:
                self._listener.strode(self._leader(), strode)
            else:
                self._waited += strode.waited
                self._forward += strode.forward
                self._backward += strode.backward
                self._moved += strode.moved
                self._rest += strode.rest

    def _note_rival(self, optimizer: object) -> None:
        self._is_plain = False
        if self._rival() is not optimizer:
            if self._rival_steps:
                return  # the first of several is enough
            self._rival = weakref.ref(optimizer)
        self._rival_steps += 1
        if self._rival_steps >= RIVAL_STEPS:
            self._leader, self._rival_steps, self._is_moving = self._rival, 0, True

    def _end(self, optimizer: object) -> None:
        samples = 0
        for intake in self._intakes:
            samples += intake.take()
        computed = (self._forward, self._backward, self._moved)
        seconds = self._waited + sum(computed) + self._rest
        self._listener.step(optimizer, samples, self._waited, *computed, self._rest)
        if self._is_plain and seconds <= SHORT_SECONDS and len(self._intakes) == 1 and self._intakes[0].is_plain:
            self._plain.append(computed)
            self._set_out(self._intakes[0])
        else:
            self._plain.clear()
        self._waited = self._forward = self._backward = self._moved = self._rest = 0.0
        self._intakes.clear()
        self._seen = IDLE
        self._is_plain = True

    def _set_out(self, intake: Intake) -> None:
        """Begin a stride, if what there is to know is known by now."""
        forward, backward, moved = (sum(seconds) for seconds in zip(*self._plain, strict=True))
        if len(self._plain) < TIMED_STEPS or forward + backward + moved <= 0:
            return
        outlook = self._listener.outlook()
        if outlook.unwatched >= TIMED_STEPS:
            self.stride.begin(self._leader, intake, (forward, backward, moved), self._mark, outlook)
            self.looks_away()
            self._plain.clear()
