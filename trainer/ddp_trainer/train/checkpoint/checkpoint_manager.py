"""Schedule and report the checkpoints of one rank.

:class:`CheckpointManager` decides when to save, starts the write and reports its result. Training continues if a save
fails. It writes to a :class:`~ddp_trainer.train.checkpoint.checkpoint_files.CheckpointDirectory` or, with other ranks,
through :class:`~ddp_trainer.train.checkpoint.sharded_writer.ShardedWriter`.

The interval between checkpoints minimizes the time lost to saves and failures. With failures ``M`` seconds apart on
average and ``C`` seconds of training lost to each save, the interval is about ``sqrt(2 C M)``: J. W. Young, "A first
order approximation to the optimum checkpoint interval", CACM 1974; J. T. Daly, "A higher order estimate of the optimum
checkpoint interval for restart dumps", FGCS 2006, from which the term ``- C`` is taken too.
"""

from __future__ import annotations

import errno
import math
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, Self

import torch

from ddp_trainer.common.metric_names import Metric, cell
from ddp_trainer.process.recorder import RankRecorder
from ddp_trainer.train.checkpoint.checkpoint_files import Checkpoint, CheckpointDirectory
from ddp_trainer.train.checkpoint.checkpoint_verify import verify_latest_checkpoint
from ddp_trainer.train.checkpoint.manifest import Manifest
from ddp_trainer.train.checkpoint.sharded_writer import ShardedWriter, Write
from ddp_trainer.train.checkpoint.snapshot import Snapshot, Writing
from ddp_trainer.train.checkpoint.torch_zip_writer import Archive, pack
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.option_values import CheckpointMode
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.utils.errors import BadConfig, CheckpointNotWritten, StaleGeneration, TrainError

_HOUR: Final = 3600.0
_TABLE: Final = {"an hour": _HOUR, "in 6 hours": 6 * _HOUR, "a day": 24 * _HOUR, "a week": 168 * _HOUR}


def best_interval(cost_seconds: float, mtbf_seconds: float) -> float:
    """Return the interval between saves that loses least time, in seconds.

    Args:
        cost_seconds: Training time that one save costs, in seconds.
        mtbf_seconds: Mean time between failures, in seconds.

    >>> round(best_interval(0.05, 3600))
    19
    """
    if cost_seconds >= mtbf_seconds / 2:
        return mtbf_seconds
    return math.sqrt(2 * cost_seconds * mtbf_seconds) - cost_seconds


def suggest_interval(cost_seconds: float, mtbf_seconds: float | None) -> str:
    """Return a sentence with a value for ``--checkpoint-seconds``, or several if the failure rate is unknown."""
    costs = f"A save costs {cost_seconds * 1000:.3g} ms of training. Least is lost"
    if mtbf_seconds is not None:
        return f"{costs} with --checkpoint-seconds {best_interval(cost_seconds, mtbf_seconds):.3g} (Young, Daly)."
    table = ", ".join(f"{best_interval(cost_seconds, mtbf):.3g} for one {name}" for name, mtbf in _TABLE.items())
    return f"{costs} with --checkpoint-seconds, by how often something fails: {table} (Young, Daly)."


_LAST_WORDS_SECONDS: Final = 1.0
"""Time that a failing run waits for a save in progress. It is less than repeating the lost steps would take."""
_AT_ONCE_SECONDS: Final = 1.0
"""Time that a rank waits for a save before the next collective, where the other ranks wait for it."""
_SAVES_MEASURED: Final = 3
"""Number of saves whose median cost the advice uses; the first save may find cold caches."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class InPieces(NamedTuple):
    """Parts of a sharded save, in which each rank writes the pieces it holds."""

    together: ShardedWriter
    part: Callable[[], dict[str, Any]]
    """Returns this rank's part of the state."""


class CheckpointManager:
    """Saves and loads checkpoints for one rank.

    A rank without a directory writes no checkpoint, but takes part in the collectives.
    """

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
        """Create the manager; :meth:`open` claims the directory.

        Args:
            config: Options of the run.
            directory: Directory to write to; None if this rank does not write.
            keeps_time: True on rank 0, which votes on timed saves.
            recorder: Receives the metrics of saves.
            alarm: Receives a sentence for each failed save and each skipped checkpoint.
            note: Receives the advice on the checkpoint interval.
            device: Device of the state; ``Snapshot`` allocates host memory for it.
            clock: Monotonic clock, in seconds.
        """
        self._snapshot = Snapshot(device) if config.checkpoint_mode is CheckpointMode.ASYNC else None
        self.writing: Writing | None = None
        """Save in progress whose result :meth:`poll` has not reported; None without one."""
        self._former: CheckpointManager | None = None
        self._mtbf = config.mtbf
        self._costs: list[float] = []
        self._note = note
        self._enabled = config.checkpoint_dir is not None
        self.every_steps = config.checkpoint_steps if self._enabled else None
        """All ranks save when the step is a multiple of this; None without such saves."""
        self.every_seconds = config.checkpoint_seconds if self._enabled else None
        """Rank 0 votes to save once this time has elapsed; None without such saves."""
        self._directory = directory
        self._keeps_time = keeps_time
        self._recorder = recorder
        self._alarm = alarm
        self._clock = clock
        self._last = clock()
        self._skipped_at = self._last
        self._saved_at: float | None = None
        if self.every_seconds is not None:
            recorder.put(Metric.CHECKPOINT_INTERVAL, self.every_seconds)
        self.saved_step: int | None = None
        """Step of the last attempted save; the same on all ranks."""
        self.durable_step: int | None = None
        """Step of the last save on this rank's disk."""
        self._failed_in_a_row = 0
        self.failure: Exception | None = None
        """Error of the last save; None if it succeeded."""
        self.is_open = False
        """True after :meth:`open`: the directory is claimed, if this rank writes to one."""

    def chain_after(self, former: CheckpointManager) -> None:
        """Replace the manager of an earlier group, in which this rank had another part.

        Its last save may still be in progress.
        """
        self._former = former

    def open(self, group: Group | None = None) -> None:
        """Claim the directory unless it is claimed already; this invalidates a save of the previous writer.

        Args:
            group: Ranks that resume from this directory. All must call this method, which first waits for their saves.

        Raises:
            BadConfig: The directory cannot be used.
            PeerLost: A rank of the group is lost.
            StaleGeneration: A newer worker group has claimed the directory.
        """
        if group is not None:
            self._wait_all_ranks(group)
        self._former = None
        if self._directory is not None and not self.is_open:
            self._claim(self._directory, self._directory.open)
        self.is_open = True

    def renew(self, *, generation: int, fence: int, keeps_time: bool) -> None:
        """Claim the directory for a later worker group in which this rank still writes.

        A save in progress continues.

        Raises:
            BadConfig: The directory cannot be used.
            StaleGeneration: A newer worker group has claimed the directory.
        """
        self._keeps_time = keeps_time
        if self._directory is not None:
            self._claim(self._directory, partial(self._directory.renew, generation=generation, fence=fence))

    @property
    def pending_save(self) -> Writing | None:
        """Save that this rank may be writing, for this group or an earlier one; None without one."""
        return self.writing if self._former is None else self._former.pending_save

    @property
    def writes(self) -> bool:
        """True if this rank writes checkpoints."""
        return self._directory is not None

    def _claim(self, directory: CheckpointDirectory, claim: Callable[[], None]) -> None:
        try:
            claim()
        except OSError as err:
            if err.errno in _FULL:
                self._failed(err)
                return
            raise BadConfig(
                f"The checkpoint directory {directory.place} cannot be used: {err.strerror}.",
                hint="Give a --checkpoint-dir that this user may write to.",
            ) from None

    def latest_checkpoint(self, group: Group | None = None, *, verified: bool = True) -> Checkpoint | None:
        """Return the newest valid checkpoint that this rank can read, or None.

        Args:
            group: Ranks that verify the checkpoint together; all must call this method.
            verified: Compute digests; see :func:`.checkpoint_files.read`.

        Raises:
            StaleGeneration: A newer worker group has claimed the directory.
        """
        self.wait_for_save()  # the save in progress may be the newest, and its pruning removes older ones
        if group is not None:
            return verify_latest_checkpoint(self._directory, group, self._alarm)
        return None if self._directory is None else self._directory.latest_checkpoint(self._alarm, verified=verified)

    def reserve(self, size_bytes: int, *, of_part: bool = False) -> None:
        """Allocate memory for snapshots now, so that the first save does not have to.

        Args:
            size_bytes: Size of the state, in bytes.
            of_part: True if this rank writes that much of a state that another rank publishes.
        """
        if self._snapshot is not None and self._enabled and (self._directory is not None or of_part):
            self._snapshot.reserve(size_bytes)

    def should_save(self) -> bool:
        """Return rank 0's vote to save after the current step.

        The vote is true if the interval has elapsed and the previous save has ended. False on all other ranks.
        """
        if not self._keeps_time or self.every_seconds is None:
            return False
        now = self._clock()
        if self.writing is None:
            return now - self._last >= self.every_seconds
        if now - max(self._last, self._skipped_at) >= self.every_seconds:
            self._skipped_at = now
            self._recorder.add(cell(Metric.CHECKPOINT_SAVES, "skipped"))
        return False

    def save(
        self,
        step: int,
        state: Callable[[], dict[str, Any]],
        draft: Callable[[], Manifest],
        *,
        together: bool = False,
        in_pieces: InPieces | None = None,
    ) -> None:
        """Start a save and return as soon as the state may change; :meth:`poll` reports its result.

        Waits for the previous save, because there is memory for one snapshot.

        Args:
            step: Number of committed steps.
            state: Returns the state to save.
            draft: Returns the manifest without digest and size.
            together: True if building the state is collective, so ranks that do not write must call ``state`` too.
            in_pieces: Sharded save: each rank writes its part, if all ranks see one directory.

        Raises:
            StaleGeneration: A newer worker group has claimed the directory.
        """
        began = self._last = self._clock()
        self.saved_step = step
        if not self._enabled:
            return
        self.wait_for_save()
        write: Write | None = None if self._directory is None else self._directory.write
        if in_pieces is not None and (begun := in_pieces.together.begin(step, self._directory)) is not None:
            try:
                write, state = begun(), in_pieces.part
            except OSError as err:
                self._failed(err)
                return
        elif write is None and together:
            state()
        if write is None:
            return
        if self._directory is not None:
            self._measure_interval(began)
        try:
            archive = pack(state())
        except MemoryError as err:
            if together or in_pieces is not None:
                raise  # the other ranks wait for this one's part
            self._failed(err)
            return
        self._start(write, archive, draft, began)

    def _start(self, write: Write, archive: Archive, draft: Callable[[], Manifest], began: float) -> None:
        copy = self._copy(archive)
        self.writing = Writing(write, draft(), copy or archive, began)
        if copy is None:
            self.writing.run()
        else:
            self.writing.start()
        self._last = self._clock()
        self.writing.blocking_seconds = self._last - began
        self.poll()

    def _copy(self, archive: Archive) -> Archive | None:
        """Return a copy of the state to write from while training continues; None to write the state itself."""
        if self._snapshot is None:
            return None
        try:
            return self._snapshot.take(archive)
        except Exception as err:  # noqa: BLE001 - torch, mmap and CUDA each raise their own
            self._alarm(f"The state cannot be copied for a save: {_reason(err)}. Training waits until it is written.")
            return None

    def poll(self) -> None:
        """Report the save in progress if it has ended; called before every step.

        Raises:
            StaleGeneration: A newer worker group has claimed the directory.
        """
        writing = self.writing
        if writing is None or not writing.is_over:
            return
        self.writing = None
        if isinstance(writing.error, TrainError) or not isinstance(writing.error, Exception | None):
            raise writing.error
        if self._directory is None:
            return  # only a part: the rank that publishes the checkpoint receives and reports the failure
        if writing.error is not None:
            self._failed(writing.error)
        else:
            self.failure = None
            self._count_failures(0)
            self.durable_step = writing.step
            self._recorder.checkpoint_saved(writing.step, writing.seconds, writing.blocking_seconds, writing.size_bytes)
            self._costs.append(writing.blocking_seconds)
            if len(self._costs) == _SAVES_MEASURED and self._keeps_time:
                self._note(suggest_interval(statistics.median(self._costs), self._mtbf))

    def wait_for_save(self) -> None:
        """Wait for the save in progress, then report it.

        Raises:
            StaleGeneration: A newer worker group has claimed the directory.
        """
        if self._former is not None:
            with suppress(StaleGeneration):  # this rank does not write in the new group
                self._former.wait_for_save()
            self._former = None
        if self.writing is not None:
            began = self._clock()
            self.writing.wait()
            self.writing.blocking_seconds += self._clock() - began
            self.poll()

    def _wait_all_ranks(self, group: Group) -> None:
        """Wait until all ranks have ended their saves; each round ends with a collective after at most a second."""
        writing = self.pending_save
        while sum(group.gather(int(writing is not None and not writing.is_over))):
            if writing is not None:
                writing.wait(_AT_ONCE_SECONDS)
        self.wait_for_save()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Wait up to a second for a save in progress; its result is not reported."""
        if (writing := self.pending_save) is not None:
            writing.wait(_LAST_WORDS_SECONDS)

    def holds(self, step: int) -> bool:
        """Return True if this rank's directory has the state of this step."""
        return self.durable_step == step

    def _measure_interval(self, began: float) -> None:
        """Record the measured interval between saves if none is configured in seconds."""
        if self.every_seconds is None and self._saved_at is not None:
            self._recorder.put(Metric.CHECKPOINT_INTERVAL, began - self._saved_at)
        self._saved_at = began

    def not_written(self, step: int) -> CheckpointNotWritten | None:
        """Return the error to raise if the last state is not on this rank's disk.

        None if it is, or if this rank does not write.
        """
        if self.failure is None or self._directory is None:
            return None
        return CheckpointNotWritten(
            f"The final state, of step {step}, could not be saved in {self._directory.place}: {_reason(self.failure)}.",
            hint="Free space and run again: the run continues from the last saved checkpoint.",
        )

    def _count_failures(self, in_a_row: int) -> None:
        self._failed_in_a_row = in_a_row
        self._recorder.put(Metric.CHECKPOINT_FAILURES, in_a_row)

    def _failed(self, err: Exception) -> None:
        self.failure = err
        self._recorder.add(cell(Metric.CHECKPOINT_SAVES, "failure"))
        self._count_failures(self._failed_in_a_row + 1)
        place = "" if self._directory is None else self._directory.place
        self._alarm(
            f"No checkpoint could be saved in {place}: {_reason(err)}. Training continues; older checkpoints are kept."
        )


def _reason(err: Exception) -> str:
    """Describe why a save failed: in the words of the system, or as Python does."""
    return (err.strerror if isinstance(err, OSError) else "") or f"{type(err).__name__}: {err}".removesuffix(": ")
