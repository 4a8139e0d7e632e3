"""Detection of steps in a loop that does not report them, from batches, backward passes and optimizer steps.

A step ends with the optimizer's step, and includes everything since the end of the previous one. With several
optimizers, the first that steps counts. If it stops while another continues, that one counts from then on. Most steps
of short and simple loops are only counted; see :mod:`ddp_trainer.metrics.record.batched_steps`.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from ddp_trainer.metrics.record.batched_steps import SHORT_SECONDS, TIMED_STEPS, StepBatch, StepBatchResult, StepBudget
from ddp_trainer.metrics.record.sample_counter import SampleCounter

RIVAL_STEPS: Final = 16
"""Steps of another optimizer, without one of the counted optimizer, after which the other one counts."""

START: Final = "start"
IDLE: Final = "idle"
FETCHED: Final = "fetched"
COMPUTED: Final = "computed"
"""Last event: none yet, the end of a step, a batch, a backward pass."""


class StepObserver(Protocol):
    """Receiver of every step."""

    def record_steps(self, optimizer: Any, stride: StepBatchResult) -> None:
        """Receive a step or a stride of ``optimizer``, which is None if it no longer exists."""

    def step_budget(self) -> StepBudget:
        """Return the limits of a stride that begins now."""


class Timeline:
    """Timeline of one process: takes the beginning and end of each event, and passes steps to the listener."""

    def __init__(self, listener: StepObserver, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.stride = StepBatch(clock)
        """Stride in progress. It receives the batches of its loader and the steps of its optimizer instead of the
        timeline.
        """
        self.looks_away: Callable[[], object] = lambda: None
        """Called at the start of a stride, to stop reports of backward passes."""
        self.looks_again: Callable[[], object] = lambda: None
        """Called at the end of a stride, to resume them."""
        self._listener = listener
        self._mark = 0.0
        self._seen = START
        self._waited = self._forward = self._backward = self._moved = self._rest = 0.0
        self._intakes: list[SampleCounter] = []
        self._leader: Callable[[], Any] = lambda: None
        self._rival: Callable[[], Any] = lambda: None
        self._rival_steps = 0
        self._is_moving = False
        self._is_plain = False
        self._plain: deque[tuple[float, float, float]] = deque(maxlen=TIMED_STEPS)

    def _begin(self, now: float) -> None:
        """Start the first step here. Earlier time belongs to no step."""
        self._mark = now
        self._seen = IDLE

    def record_fetch(self, begun: float, intake: SampleCounter, *, is_training: bool) -> None:
        """Record a batch that the script requested at ``begun``. With gradients off it is not for training."""
        if self.stride.is_on:
            if is_training and self.stride.takes(intake):
                self.stride.record_fetch(begun, self.clock())
                return
            self.pause()
        now = self.clock()
        if self._seen is START:
            self._begin(begun)
        begun = max(begun, self._mark)  # a nested loader or another thread was recorded meanwhile
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
        """Record the start of a backward pass."""
        now = self.clock()
        if self._seen is START:
            self._begin(now)
        self._forward += now - self._mark
        self._mark = now

    def backward_done(self) -> None:
        """Record the end of a backward pass."""
        now = self.clock()
        self._backward += now - self._mark
        self._mark = now
        self._seen = COMPUTED

    def move(self, optimizer: object) -> None:
        """Record the start of an optimizer step. Its closure, if any, may compute the gradients first."""
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
            self._track_other_optimizer(optimizer)

    def moved(self, optimizer: object) -> None:
        """Record the end of an optimizer step. A step that calls the step of its base class counts once."""
        if self.stride.is_on:
            self.pause()
            self.move(optimizer)  # not the stride's optimizer: its start was not recorded
        now = self.clock()
        self._moved += now - self._mark
        self._mark = now
        if self._is_moving and self._leader() is optimizer:
            self._is_moving = False
            self._rival_steps = 0
            self._end(optimizer)

    def pause(self) -> None:
        """End the stride, if one is running. The next steps are timed in full."""
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
                self._listener.record_steps(self._leader(), strode)
            else:
                self._waited += strode.waited
                self._forward += strode.forward
                self._backward += strode.backward
                self._moved += strode.moved
                self._rest += strode.rest

    def _track_other_optimizer(self, optimizer: object) -> None:
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
        self._listener.record_steps(
            optimizer, StepBatchResult(1, seconds, samples, self._waited, *computed, self._rest)
        )
        if self._is_plain and seconds <= SHORT_SECONDS and len(self._intakes) == 1 and self._intakes[0].is_plain:
            self._plain.append(computed)
            self._set_out(self._intakes[0])
        else:
            self._plain.clear()
        self._waited = self._forward = self._backward = self._moved = self._rest = 0.0
        self._intakes.clear()
        self._seen = IDLE
        self._is_plain = True

    def _set_out(self, intake: SampleCounter) -> None:
        """Start a stride if enough steps were timed."""
        forward, backward, moved = (sum(seconds) for seconds in zip(*self._plain, strict=True))
        if len(self._plain) < TIMED_STEPS or forward + backward + moved <= 0:
            return
        outlook = self._listener.step_budget()
        if outlook.unwatched >= TIMED_STEPS:
            self.stride.begin(self._leader, intake, (forward, backward, moved), self._mark, outlook)
            self.looks_away()
            self._plain.clear()
