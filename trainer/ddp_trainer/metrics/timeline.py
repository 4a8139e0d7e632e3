"""The steps of a loop that tells nothing, from what can be seen of it: batches, backward passes, optimizers' steps.

A step ends where the optimizer's step does, and everything since the end of the one before belongs to it. Of several
optimizers the first that stepped counts; should it stop while another goes on, that one counts from then on.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any, Final

from ddp_trainer.metrics.intake import Intake

RIVAL_STEPS: Final = 16
"""So often another optimizer may step while the one that counts does not."""

START: Final = "start"
IDLE: Final = "idle"
FETCHED: Final = "fetched"
COMPUTED: Final = "computed"
"""What was seen last: nothing yet, the end of a step, a batch, a backward pass."""

Step = Callable[[Any, int, float, float, float, float, float], None]
"""Hears the optimizer, samples, and the seconds of data wait, forward, backward, optimizer, and the rest."""


class Timeline:
    """Told of each thing when it begins and when it is over; hands every step on."""

    def __init__(self, step: Step, clock: Callable[[], float] = time.perf_counter) -> None:
        self._step = step
        self._clock = clock
        self._mark = 0.0
        self._seen = START
        self._waited = self._forward = self._backward = self._moved = self._rest = 0.0
        self._intakes: list[Intake] = []
        self._leader: Callable[[], Any] = lambda: None
        self._rival: Callable[[], Any] = lambda: None
        self._rival_steps = 0
        self._is_moving = False

    def _begin(self, now: float) -> None:
        """The first step begins here: what was before is no part of any."""
        self._mark = now
        self._seen = IDLE

    def fetch(self) -> None:
        """The script asks for a batch."""
        now = self._clock()
        if self._seen is START:
            self._begin(now)
        self._rest += now - self._mark
        self._mark = now

    def fetched(self, intake: Intake, *, is_training: bool) -> None:
        """It has the batch; what it fetches with gradients off is none to train with."""
        now = self._clock()
        if is_training:
            self._waited += now - self._mark
            self._seen = FETCHED
            if intake not in self._intakes:
                self._intakes.append(intake)
        else:
            self._rest += now - self._mark
            intake.samples = 0
        self._mark = now

    def backward(self) -> None:
        """A backward pass begins."""
        now = self._clock()
        if self._seen is START:
            self._begin(now)
        self._forward += now - self._mark
        self._mark = now

    def backward_done(self) -> None:
        """It is over."""
        now = self._clock()
        self._backward += now - self._mark
        self._mark = now
        self._seen = COMPUTED

    def move(self, optimizer: object) -> None:
        """An optimizer's step begins; its closure, if it has one, may compute the gradients first."""
        now = self._clock()
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
        now = self._clock()
        self._moved += now - self._mark
        self._mark = now
        if self._is_moving and self._leader() is optimizer:
            self._is_moving = False
            self._rival_steps = 0
            self._end(optimizer)

    def _note_rival(self, optimizer: object) -> None:
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
        self._intakes.clear()
        spent = (self._waited, self._forward, self._backward, self._moved, self._rest)
        self._waited = self._forward = self._backward = self._moved = self._rest = 0.0
        self._seen = IDLE
        self._step(optimizer, samples, *spent)
