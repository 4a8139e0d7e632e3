"""Base classes of the recorders through which the launcher and the trainer report metrics. Their methods do nothing.

The packages ``launch`` and ``train`` receive a recorder, ``metrics`` creates recorders that write to shared memory, and
``ddp_trainer.__main__`` connects them, since these packages do not import one another. A recorder never raises:
training does not fail because of its metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from ddp_trainer.common.constants import FailureReason, GroupState, OutsideReason, RestartCause
from ddp_trainer.common.goodput import JobAccount
from ddp_trainer.common.parallel_dims import LayoutRange
from ddp_trainer.common.time_classes import Section, Wait


class Marks(Protocol):
    """Cells in which the training thread marks its section: [0] the number of the section, [1] the time of its start.

    The number is that of :data:`SECTION_NUMBERS`, 0 for none. The time is that of ``time.monotonic()``, in seconds. A
    mark is two stores without a call, since there are several marks per step.
    """

    def __setitem__(self, index: int, value: float, /) -> None:
        """Set the section's number or start time."""


SECTION_NUMBERS: Final = {section: float(number) for number, section in enumerate(Section, start=1)}


class RankRecorder:
    """Reports of one rank. The training thread calls the methods, so each costs about a microsecond."""

    marks: Marks
    """Cells in which the section is marked, for the launcher's hang watch."""

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
        """Report the identity of this process; called once per process, before the first step.

        Args:
            rank: Global rank.
            local_rank: Rank on this node.
            world_size: Number of ranks.
            backend: Backend of the process group.
            device: Device of this rank.
            parallel: Layouts that the group may use; None for those of the job, if any.
        """

    def add(self, metric: str, amount: float = 1.0) -> None:
        """Add to a counter.

        Args:
            metric: Member of :class:`~ddp_trainer.common.metric_names.Metric`; of a labelled series, its key from
                :func:`~ddp_trainer.common.metric_names.cell`.
            amount: What it has grown by, in the unit of its name.
        """

    def put(self, metric: str, value: float | None) -> None:
        """Set a gauge; None keeps its value. For the arguments see :meth:`add`."""

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
        """Report a committed global step. Phases are in seconds.

        Args:
            step: Number of the global step.
            epoch: Number of the epoch.
            samples: Samples of this rank's share.
            data_wait: Wait for input data.
            h2d: Copy to the device.
            forward: Forward pass.
            backward: Backward pass.
            comm_exposed: Communication that no computation hides.
            optimizer: Update of the weights.
            checkpoint: Time that a checkpoint blocks training.
            other: Rest of the step.
        """

    def progress(self, loss: float | None = None, learning_rate: float | None = None) -> None:
        """Report the last step's mean loss over all ranks and its learning rate; None where a value is not known."""

    def job(self, *, precision: str, parallelism: str) -> None:
        """Report how the job computes, for example ``bf16`` and ``ddp``; called once per process."""

    def gradients(self, norm: float | None, loss_scale: float | None) -> None:
        """Report gradient figures of the last step; None where a value is not known.

        Args:
            norm: Norm of the whole gradient before clipping.
            loss_scale: Scale factor of the loss.
        """

    def work(self, tokens: float, flops: float) -> None:
        """Report work of this rank since the last report.

        Args:
            tokens: Tokens that it computed.
            flops: Floating-point operations of the model that it performed.
        """

    def record_wait(self, seconds: Mapping[Wait, float]) -> None:
        """Report the seconds that this rank waited for others in the last reported step, or before the first one.

        The trainer reports 0 before the first step, since a wait that was never reported has no metric.
        """

    def sampled(self, busy_seconds: float, comm_exposed_seconds: float) -> None:
        """Report a step in which the wait for other ranks' gradients was measured.

        Args:
            busy_seconds: Time that this rank did not wait.
            comm_exposed_seconds: Time that this rank waited for the gradients of other ranks.
        """

    def record_evaluation(self, loss: float, accuracy: float) -> None:
        """Report the result of an evaluation over all ranks."""

    def checkpoint_saved(self, step: int, seconds: float, blocking_seconds: float, size_bytes: int) -> None:
        """Report that a checkpoint became durable."""

    def account(self, account: JobAccount) -> None:
        """Report the time account of the whole job, with its lost progress."""

    def take_user_values(self) -> Mapping[str, float]:
        """Return the values that the script has reported by ``attach.log()`` since the last call, by name."""
        return {}


class RendezvousResult(NamedTuple):
    """Group that a rendezvous has formed, as one of its pods reports it."""

    seconds: float
    """Duration of the rendezvous."""
    generation: int
    """Number of the rendezvous."""
    size: int
    """Number of worker processes."""
    nodes: int
    nodes_desired: int
    """Largest number of nodes that the group could have."""
    first_rank: int = 0
    """First rank of this pod."""
    restarts_left: int = 0
    """Remaining restart budget of the run."""
    restarts: Mapping[RestartCause, int] = MappingProxyType({})
    """Number of restarts since the last group of this pod, by cause."""


class AgentRecorder:
    """Reports of the launcher about its pod."""

    def state(self, state: GroupState) -> None:
        """Report the state that the worker group has entered."""

    def count_restart(self, cause: RestartCause) -> None:
        """Report that the worker group re-forms."""

    def failed(self, reason: FailureReason, rank: int, timestamp: float) -> None:
        """Report an unexpected exit of a worker process of this pod: its rank, and the Unix time."""

    def collective_failed(self, local_rank: int, reason: FailureReason) -> None:
        """Report why a rank of this pod ended or left its group; only failures of collectives are counted."""

    def rendezvous_failed(self) -> None:
        """Report a failed attempt to reach the store."""

    def outside_group(self, reason: OutsideReason | None, since: float) -> None:
        """Report that the pod is in no group.

        Args:
            reason: Why it is in none; None if it is in one.
            since: Unix time at which it joined the rendezvous.
        """

    def rejected_connections(self, count: int) -> None:
        """Report how many connections the store has refused since it started, for lack of the run's secret."""

    def rendezvous_completed(self, group: RendezvousResult) -> None:
        """Report a completed rendezvous."""

    def stalled(self, seconds: float, rank: int) -> None:
        """Report that ranks of this pod wait for another rank without progress.

        Args:
            seconds: Time since the last progress; 0 once the ranks make progress.
            rank: Rank of the group for which they wait; -1 if it is not known.
        """

    def job_account(self) -> JobAccount | None:
        """Return the latest time account that a worker of this pod, even an ended one, has reported.

        Returns:
            None if there is none.
        """

    def highest_step(self) -> int | None:
        """Return the last step that a worker of this pod, running or ended, has reported.

        Returns:
            0 if none was reported; None where metrics are off.
        """

    def startup(self) -> Mapping[str, float]:
        """Return the start of this pod: ``began`` (Unix time) and the seconds of each phase; empty if unknown."""
        return {}

    def total_steps(self) -> int:
        """Return the planned number of steps that the workers of this pod reported; 0 if none was reported."""
        return 0


class NoopRankRecorder(RankRecorder):
    """Rank recorder that reports nothing; used where the launcher gave no metrics directory."""

    def __init__(self, marks: Marks | None = None, take_user_values: Callable[[], Mapping[str, float]] = dict) -> None:
        """Create the recorder.

        Args:
            marks: Cells that the launcher's hang watch reads, even with metrics off; None if it reads none.
            take_user_values: Implementation of :meth:`take_user_values`.
        """
        self.marks = [0.0, 0.0] if marks is None else marks
        self._take_user_values = take_user_values

    def take_user_values(self) -> Mapping[str, float]:
        """Return the values of the script, which curves have without a launcher, too."""
        return self._take_user_values()


class NoopAgentRecorder(AgentRecorder):
    """Agent recorder that reports nothing."""
