"""What the launcher and the trainer report while they work, as two small protocols and their silent versions.

The rooms of this package do not import one another: ``launch`` and ``train`` are handed a recorder, ``metrics``
makes one that writes to shared memory, and ``ddp_trainer.__main__`` introduces them. A recorder never raises:
training does not fail because of its metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from ddp_trainer.common.constants import FailureReason, GroupState, RestartCause, Section, Wait
from ddp_trainer.common.goodput import JobAccount
from ddp_trainer.common.parallel_dims import LayoutRange


class Marks(Protocol):
    """Where the training thread marks what it is about: [0] the number of the section, [1] since when.

    The number is that of :data:`SECTION_NUMBERS`, 0 for none; the time is ``time.monotonic()``'s. Two stores and no
    call, since it is marked several times a step.
    """

    def __setitem__(self, index: int, value: float, /) -> None:
        """Set one of the two."""


SECTION_NUMBERS: Final = {section: float(number) for number, section in enumerate(Section, start=1)}


class RankRecorder(Protocol):
    """One rank's reports. Called on the training thread, so every method costs about a microsecond."""

    @property
    def marks(self) -> Marks:
        """Where the section is marked, for the launcher's hang watch."""

    def identity(
        self,
        *,
        rank: int,
        local_rank: int,
        world_size: int,
        backend: str,
        device: str,
        parallel: LayoutRange | None = None,
    ) -> None:
        """Name this process; called once per process, before the first step.

        ``parallel`` are the layouts that its group may take; those of the job, if any, when None.
        """

    def planned(self, steps: int) -> None:
        """The run will have this many global steps."""

    def step(
        self,
        step: int,
        epoch: int,
        samples: int,
        data_wait: float,
        h2d: float,
        forward: float,
        backward: float,
        comm_exposed: float,
        optimizer: float,
        checkpoint: float,
        other: float,
    ) -> None:
        """A global step was committed: ``samples`` is this rank's share, the rest are seconds per phase."""

    def progress(self, loss: float | None = None, learning_rate: float | None = None) -> None:
        """Mean loss of the last step over all ranks, and the learning rate it used; None where that is not known."""

    def job(self, *, precision: str, parallelism: str) -> None:
        """Say how the job computes, as ``bf16`` and ``ddp``; called once per process."""

    def gradients(self, norm: float | None, loss_scale: float | None) -> None:
        """Norm of the last step's whole gradient before it was clipped, and what the loss was multiplied with; None
        where that is not known.
        """

    def work(self, tokens: float, flops: float) -> None:
        """This rank computed so many more tokens, and did so many more floating-point operations of the model."""

    def recomputed(self, ratio: float) -> None:
        """Of the operations that the model needs, this share is done a second time in the backward pass."""

    def waited(self, seconds: Mapping[Wait, float]) -> None:
        """In the step that was told last, or before the first one, this rank waited for others for so long. Told as 0
        before the first step, since what is never told does not exist.
        """

    def sampled(self, busy_seconds: float, comm_exposed_seconds: float) -> None:
        """Of one step it was measured how long this rank waited for the others' gradients; the rest it was busy."""

    def evaluated(self, loss: float, accuracy: float) -> None:
        """An evaluation over all ranks ended."""

    def checkpoint_saved(self, step: int, seconds: float, blocking_seconds: float, size_bytes: int) -> None:
        """A checkpoint became durable."""

    def checkpoint_failed(self) -> None:
        """A checkpoint could not be written; training goes on."""

    def checkpoint_skipped(self) -> None:
        """A checkpoint was due while the one before was still being written."""

    def checkpoint_loaded(self, seconds: float) -> None:
        """State was restored."""

    def checkpoint_interval(self, seconds: float) -> None:
        """So much time is between checkpoints."""

    def skipped_step(self) -> None:
        """A step used up its samples and moved no weight."""

    def account(self, account: JobAccount) -> None:
        """What the whole job's time went into, and what of it was lost."""


class AgentRecorder(Protocol):
    """The launcher's reports for its pod."""

    def state(self, state: GroupState) -> None:
        """The worker group entered a state."""

    def restarted(self, cause: RestartCause) -> None:
        """The worker group is formed anew."""

    def failed(self, reason: FailureReason) -> None:
        """A worker process of this pod ended that should not have."""

    def collective_failed(self, local_rank: int, reason: FailureReason) -> None:
        """A rank of this pod ended, or left its group, for this reason; counted where that is a collective's."""

    def rendezvous_failed(self) -> None:
        """A try to reach the store failed."""

    def rendezvous_refused(self, count: int) -> None:
        """The store has refused so many connections since it started, for want of the run's secret."""

    def rendezvous(self, seconds: float, generation: int) -> None:
        """A rendezvous completed."""

    def world(self, *, size: int, nodes: int, nodes_desired: int, first_rank: int = 0) -> None:
        """The group that was formed: processes, nodes, the most nodes it could have, and the first rank of this pod."""

    def restarts_remaining(self, count: int) -> None:
        """What is left of the restart budget of the run."""

    def stalled(self, seconds: float, rank: int) -> None:
        """Ranks of this pod wait for ``rank`` of the group, -1 for none that is known, and none has moved for
        ``seconds``; 0 once they move.
        """

    def job_account(self) -> JobAccount | None:
        """What the workers of this pod have told of the job's time, also those that are gone; None of nothing."""

    def highest_step(self) -> int | None:
        """The last step that a worker of this pod has told, also one that is gone; 0 of none, None where metrics are
        off.
        """

    def steps_planned(self) -> int:
        """Return the steps that the workers of this pod were going to take; 0 where none has reported them."""


class SilentRankRecorder:
    """Reports to nobody; used where no launcher gave a metrics directory."""

    def __init__(self, marks: Marks | None = None) -> None:
        """``marks`` are watched also where metrics are off; by nobody when None."""
        self.marks: Marks = [0.0, 0.0] if marks is None else marks

    def identity(
        self,
        *,
        rank: int,
        local_rank: int,
        world_size: int,
        backend: str,
        device: str,
        parallel: LayoutRange | None = None,
    ) -> None: ...
    def planned(self, steps: int) -> None: ...
    def step(
        self,
        step: int,
        epoch: int,
        samples: int,
        data_wait: float,
        h2d: float,
        forward: float,
        backward: float,
        comm_exposed: float,
        optimizer: float,
        checkpoint: float,
        other: float,
    ) -> None: ...
    def progress(self, loss: float | None = None, learning_rate: float | None = None) -> None: ...
    def job(self, *, precision: str, parallelism: str) -> None: ...
    def gradients(self, norm: float | None, loss_scale: float | None) -> None: ...
    def work(self, tokens: float, flops: float) -> None: ...
    def recomputed(self, ratio: float) -> None: ...
    def waited(self, seconds: Mapping[Wait, float]) -> None: ...
    def sampled(self, busy_seconds: float, comm_exposed_seconds: float) -> None: ...
    def evaluated(self, loss: float, accuracy: float) -> None: ...
    def checkpoint_saved(self, step: int, seconds: float, blocking_seconds: float, size_bytes: int) -> None: ...
    def checkpoint_failed(self) -> None: ...
    def checkpoint_skipped(self) -> None: ...
    def checkpoint_loaded(self, seconds: float) -> None: ...
    def checkpoint_interval(self, seconds: float) -> None: ...
    def skipped_step(self) -> None: ...
    def account(self, account: JobAccount) -> None: ...


class SilentAgentRecorder:
    """Reports to nobody."""

    def state(self, state: GroupState) -> None: ...
    def restarted(self, cause: RestartCause) -> None: ...
    def failed(self, reason: FailureReason) -> None: ...
    def collective_failed(self, local_rank: int, reason: FailureReason) -> None: ...
    def rendezvous_failed(self) -> None: ...
    def rendezvous_refused(self, count: int) -> None: ...
    def rendezvous(self, seconds: float, generation: int) -> None: ...
    def world(self, *, size: int, nodes: int, nodes_desired: int, first_rank: int = 0) -> None: ...
    def restarts_remaining(self, count: int) -> None: ...
    def stalled(self, seconds: float, rank: int) -> None: ...
    def job_account(self) -> JobAccount | None:
        """Nobody knows."""

    def highest_step(self) -> int | None:
        """Nobody knows."""

    def steps_planned(self) -> int:
        """Return 0: metrics are off."""
        return 0
