"""When to save, and what a failure to save means: training goes on, and someone is told."""

from __future__ import annotations

import errno
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, Self

import torch

from ddp_trainer.process.recorder import RankRecorder
from ddp_trainer.train.checkpoint.async_save import Writing
from ddp_trainer.train.checkpoint.checkpoint_files import Checkpoint, CheckpointDirectory
from ddp_trainer.train.checkpoint.checkpoint_interval import suggestion
from ddp_trainer.train.checkpoint.checkpoint_verify import newest_together
from ddp_trainer.train.checkpoint.manifest import Manifest
from ddp_trainer.train.checkpoint.sharded_writer import ShardedWriter, Target
from ddp_trainer.train.checkpoint.snapshot import Snapshot
from ddp_trainer.train.checkpoint.torch_zip_writer import pack
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.output_options import CheckpointMode
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.utils.errors import BadConfig, CheckpointNotWritten, StaleGeneration

_LAST_WORDS_SECONDS: Final = 1.0
"""How long a run that fails waits for a save under way: less than it would take to do the lost steps again."""
_AT_ONCE_SECONDS: Final = 1.0
"""How long a rank waits for a save before it meets the others again, who wait for it there."""
_SAVES_MEASURED: Final = 3
"""After so many saves their cost is known well enough to give advice; the first one may find cold caches."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class InPieces(NamedTuple):
    """How a state is saved of which each rank writes what it has."""

    together: ShardedWriter
    part: Callable[[], dict[str, Any]]
    """This rank's part."""


class CheckpointManager:
    """This rank's part in checkpoints; on a rank that does not write, only the agreement when to."""

    def __init__(
        self,
        config: Config,
        directory: CheckpointDirectory | None,
        *,
        keeps_time: bool,
        recorder: RankRecorder,
        alarm: Callable[[str], None],
        note: Callable[[str], None],
        device: torch.device,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``directory`` is None where this rank does not write; ``keeps_time`` is true of rank 0 alone."""
        self._snapshot = Snapshot(device) if config.checkpoint_mode is CheckpointMode.ASYNC else None
        self._writing: Writing | None = None
        self._former: CheckpointManager | None = None
        self._mtbf = config.mtbf
        self._costs: list[float] = []
        self._note = note
        self._every_steps = config.checkpoint_steps
        self._every_seconds = config.checkpoint_seconds
        self._enabled = config.checkpoint_dir is not None
        self._directory = directory
        self._keeps_time = keeps_time
        self._recorder = recorder
        self._alarm = alarm
        self._clock = clock
        self._last = clock()
        self._skipped_at = self._last
        self._saved_at: float | None = None
        if self._enabled and self._every_seconds is not None:
            recorder.checkpoint_interval(self._every_seconds)
        self.saved_step: int | None = None
        """Step of the last save that was tried; all ranks agree on it."""
        self.durable_step: int | None = None
        """Step of the last save that is on this rank's disk."""
        self.failure: OSError | None = None
        """Why the last save failed, if it did."""
        self.is_open = False
        """The directory is claimed, where this rank writes."""

    def follow(self, former: CheckpointManager) -> None:
        """Come after the saver of a group in which this rank had another part; its last save may be under way."""
        self._former = former

    def open(self, group: Group | None = None) -> None:
        """Claim the directory, unless that is done; it ends what the writer before may be saving.

        ``group``: ranks that go on from what is there; all must call it. Those that were saving end that first.

        Raises:
            BadConfig: it cannot be used.
            PeerLost: a rank of the group is gone.
            StaleGeneration: a newer worker group has it.
        """
        if group is not None:
            self._settle_with(group)
        self._former = None
        if self._directory is not None and not self.is_open:
            self._claim(self._directory, self._directory.open)
        self.is_open = True

    def renew(self, *, generation: int, fence: int, keeps_time: bool) -> None:
        """Go on in a later worker group, in which this rank writes as it did; a save under way goes on too.

        Raises:
            BadConfig, StaleGeneration: as :meth:`open` does.
        """
        self._keeps_time = keeps_time
        if self._directory is not None:
            self._claim(self._directory, partial(self._directory.renew, generation=generation, fence=fence))

    @property
    def under_way(self) -> Writing | None:
        """What this rank may be writing, for this group or for one before."""
        return self._writing if self._former is None else self._former.under_way

    @property
    def writes(self) -> bool:
        """Whether this rank writes checkpoints."""
        return self._directory is not None

    def _claim(self, directory: CheckpointDirectory, claim: Callable[[], None]) -> None:
        try:
            claim()
        except OSError as err:
            if err.errno in _FULL:
                self._failed(err)
                return
            raise BadConfig(
                f"The checkpoint directory {directory.path} cannot be used: {err.strerror}.",
                hint="Give a --checkpoint-dir that this user may write to.",
            ) from None

    def newest(self, group: Group | None = None) -> Checkpoint | None:
        """The newest whole checkpoint that this rank sees; ranks of a group, which all must ask, prove it together.

        Raises:
            StaleGeneration: as :meth:`settle` does, which is done before.
        """
        self.settle()  # what is being written may be the newest, and takes away what others would read
        if group is not None:
            return newest_together(self._directory, group, self._alarm)
        return None if self._directory is None else self._directory.newest(self._alarm)

    def reserve(self, size_bytes: int, *, of_part: bool = False) -> None:
        """Take memory for snapshots of a state of this size now, so that the first save need not.

        ``of_part``: this rank writes that much of a state, though others publish it.
        """
        if self._snapshot is not None and self._enabled and (self._directory is not None or of_part):
            self._snapshot.reserve(size_bytes)

    def wants_save(self) -> bool:
        """Rank 0's vote to save after the step under way: it is time, and the last one is written."""
        if not (self._enabled and self._keeps_time) or self._every_seconds is None:
            return False
        now = self._clock()
        if self._writing is None:
            return now - self._last >= self._every_seconds
        if now - max(self._last, self._skipped_at) >= self._every_seconds:
            self._skipped_at = now
            self._recorder.checkpoint_skipped()
        return False

    def is_due(self, step: int, *, asked: bool) -> bool:
        """Whether to save after ``step`` committed steps; all ranks come to the same answer."""
        if not self._enabled:
            return False
        return asked or (self._every_steps is not None and step % self._every_steps == 0)

    def save(
        self,
        step: int,
        state: Callable[[], dict[str, Any]],
        draft: Callable[[], Manifest],
        *,
        together: bool = False,
        in_pieces: InPieces | None = None,
    ) -> None:
        """Begin to save, and return as soon as the state may change; :meth:`poll` hears how it ended.

        While the save before is still being written this waits for it: there is memory for one. ``together``: the
        state is to be had where all ranks ask for it, and so do those that do not write. ``in_pieces``: where ranks
        see one directory each writes its part, and nobody asks for the whole.

        Raises:
            StaleGeneration: a newer worker group has the directory.
        """
        began = self._last = self._clock()
        self.saved_step = step
        if not self._enabled:
            return
        self.settle()
        target: Target | None = self._directory
        if in_pieces is not None and (begun := in_pieces.together.begin(step, self._directory)) is not None:
            try:
                target, state = begun(), in_pieces.part
            except OSError as err:
                self._failed(err)
                return
        elif target is None and together:
            state()
        if target is not None:
            self._write(target, state, draft, began)

    def _write(
        self, target: Target, state: Callable[[], dict[str, Any]], draft: Callable[[], Manifest], began: float
    ) -> None:
        if self._directory is not None:
            self._measure_interval(began)
        archive = pack(state())
        if self._snapshot is None:
            self._writing = Writing(target, draft(), archive, began)
            self._writing.run()
        else:
            self._writing = Writing(target, draft(), self._snapshot.take(archive), began)
            self._writing.start()
        self._last = self._clock()
        self._writing.blocking_seconds = self._last - began
        self.poll()

    def poll(self) -> None:
        """Report the save under way if it is over; called after every step.

        Raises:
            StaleGeneration: a newer worker group has the directory.
        """
        writing = self._writing
        if writing is None or not writing.is_over:
            return
        self._writing = None
        if self._directory is None and isinstance(writing.error, OSError | None):
            return  # of a part; the rank that publishes the whole hears of it, and tells
        if isinstance(writing.error, OSError):
            self._failed(writing.error)
        elif writing.error is not None:
            raise writing.error
        else:
            self.failure = None
            self.durable_step = writing.step
            self._recorder.checkpoint_saved(writing.step, writing.seconds, writing.blocking_seconds, writing.size_bytes)
            self._advise(writing.blocking_seconds)

    def settle(self) -> None:
        """Wait for the save under way, and report it.

        Raises:
            StaleGeneration: a newer worker group has the directory.
        """
        if self._former is not None:
            with suppress(StaleGeneration):  # this rank writes no more
                self._former.settle()
            self._former = None
        if self._writing is not None:
            began = self._clock()
            self._writing.wait()
            self._writing.blocking_seconds += self._clock() - began
            self.poll()

    def _settle_with(self, group: Group) -> None:
        """As :meth:`settle`, with all ranks; none waits at a collective for longer than a moment."""
        writing = self.under_way
        while sum(group.gather(int(writing is not None and not writing.is_over))):
            if writing is not None:
                writing.wait(_AT_ONCE_SECONDS)
        self.settle()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Where the run fails, give a save under way a moment; it has nobody left to report to."""
        if (writing := self.under_way) is not None:
            writing.wait(_LAST_WORDS_SECONDS)

    def holds(self, step: int) -> bool:
        """Whether this rank's directory has the state of this step."""
        return self.durable_step == step

    def _measure_interval(self, began: float) -> None:
        """Where none is asked for in seconds, it is what it comes to."""
        if self._every_seconds is None and self._saved_at is not None:
            self._recorder.checkpoint_interval(began - self._saved_at)
        self._saved_at = began

    def _advise(self, cost_seconds: float) -> None:
        self._costs.append(cost_seconds)
        if len(self._costs) == _SAVES_MEASURED and self._keeps_time:
            self._note(suggestion(statistics.median(self._costs), self._mtbf))

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
