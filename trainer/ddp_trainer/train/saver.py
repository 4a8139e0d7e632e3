"""When to save, and what a failure to save means: training goes on, and someone is told."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from ddp_trainer.recorder import RankRecorder
from ddp_trainer.train.checkpoint import Checkpoint, CheckpointDirectory, pack
from ddp_trainer.train.config import Config
from ddp_trainer.train.errors import BadConfig, CheckpointNotWritten
from ddp_trainer.train.manifest import Manifest

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Saver:
    """This rank's part in checkpoints; on a rank that does not write, only the agreement when to."""

    def __init__(
        self,
        config: Config,
        directory: CheckpointDirectory | None,
        *,
        keeps_time: bool,
        recorder: RankRecorder,
        alarm: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        """``directory`` is None where this rank does not write; ``keeps_time`` is true of rank 0 alone."""
        self._every_steps = config.checkpoint_steps
        self._every_seconds = config.checkpoint_seconds
        self._enabled = config.checkpoint_dir is not None
        self._directory = directory
        self._keeps_time = keeps_time
        self._recorder = recorder
        self._alarm = alarm
        self._clock = clock
        self._last = clock()
        self.saved_step: int | None = None
        """Step of the last save that was tried; all ranks agree on it."""
        self.failure: OSError | None = None
        """Why the last save failed, if it did."""

    def open(self) -> None:
        """Claim the directory.

        Raises:
            BadConfig: it cannot be used.
            StaleGeneration: a newer worker group has it.
        """
        if self._directory is None:
            return
        try:
            self._directory.open()
        except OSError as err:
            if err.errno in _FULL:
                self._failed(err)
                return
            raise BadConfig(
                f"The checkpoint directory {self._directory.path} cannot be used: {err.strerror}.",
                hint="Give a --checkpoint-dir that this user may write to.",
            ) from None

    def newest(self) -> Checkpoint | None:
        """The newest whole checkpoint that this rank sees."""
        return None if self._directory is None else self._directory.newest(self._alarm)

    def wants_save(self) -> bool:
        """Rank 0's vote to save after the step under way."""
        if not (self._enabled and self._keeps_time) or self._every_seconds is None:
            return False
        return self._clock() - self._last >= self._every_seconds

    def is_due(self, step: int, *, asked: bool) -> bool:
        """Whether to save after ``step`` committed steps; all ranks come to the same answer."""
        if not self._enabled:
            return False
        return asked or (self._every_steps is not None and step % self._every_steps == 0)

    def save(self, step: int, state: Callable[[], dict[str, Any]], manifest: Callable[[bytes], Manifest]) -> None:
        """Save, or say why it could not be done.

        Raises:
            StaleGeneration: a newer worker group has the directory.
        """
        began = self._last = self._clock()
        self.saved_step = step
        if self._directory is None:
            return
        payload = pack(state())
        try:
            self._directory.write(manifest(payload), payload)
        except OSError as err:
            self._failed(err)
            return
        self.failure = None
        self._last = self._clock()
        seconds = self._last - began
        self._recorder.checkpoint_saved(step, seconds, seconds, len(payload))

    def holds(self, step: int) -> bool:
        """Whether this rank's directory has the state of this step."""
        return self._directory is not None and self.failure is None and self.saved_step == step

    def not_written(self, step: int) -> CheckpointNotWritten | None:
        """Why the last state is not on this rank's disk; None where this rank writes none."""
        if self.failure is None or self._directory is None:
            return None
        return CheckpointNotWritten(
            f"The final state, of step {step}, could not be saved in {self._directory.path}: {self.failure.strerror}.",
            hint="Free space and run again: it goes on from the last checkpoint that was saved.",
        )

    def _failed(self, err: OSError) -> None:
        self.failure = err
        self._recorder.checkpoint_failed()
        path = "" if self._directory is None else self._directory.path
        self._alarm(f"No checkpoint could be saved in {path}: {err.strerror}. Training goes on; older ones are kept.")
