"""Every metric family, as data.

The boards' layout, the exposition, ``docs/metrics.md`` and the tests all follow from this table. Names end in their
base unit, counters in ``_total``; what one only wants to know now is a gauge, whatever a ratio could be wanted of is a
counter. Label sets are closed, and all of their series exist from the start, because Prometheus' ``increase`` does not
see the first sample of a series.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ddp_trainer.contract import FailureReason, GroupState, JobTime, Metric, MetricLabel, Phase, RestartCause


class Kind(StrEnum):
    """What a family's numbers mean."""

    COUNTER = "counter"
    GAUGE = "gauge"
    SUMMARY = "summary"
    """A ``_sum`` and a ``_count``."""
    INFO = "info"
    """Always 1; the labels are what it says."""


class Scope(StrEnum):
    """Whose number it is, and so how many series a job has of it."""

    RANK = "rank"
    """Every rank's own; carries the label ``rank``."""
    POD = "pod"
    """One per pod: the launcher's, the aggregator's, and the checkpoints that local rank 0 writes and loads."""
    JOB = "job"
    """One per job: the same on all ranks, so rank 0 alone tells it."""


class Source(StrEnum):
    """Where the numbers come from."""

    RANK_BOARD = "rank board"
    AGENT_BOARD = "launcher board"
    PROCESS = "/proc"
    AGGREGATOR = "aggregator"


@dataclass(frozen=True, slots=True)
class Series:
    """One number of a family; its ``key`` also names the cell of the board that holds it."""

    key: str
    sample: str
    """Name of the sample in the exposition."""
    labels: dict[str, str]
    """Beyond ``ddp_job`` and ``rank``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric family."""

    name: str
    kind: Kind
    scope: Scope
    source: Source
    unit: str = ""
    labels: tuple[MetricLabel, ...] = ()
    """Beyond ``ddp_job``, which every family has, and ``rank``, which scope rank has."""
    values: tuple[str, ...] = ()
    """All values of the one label, where that set is closed."""
    remembered: bool = False
    """The number is that of the whole job and outlives its pods: a board that has not been told it has none, since a
    jump from 0 to what the job has come to would read as an increase."""
    help: str

    def series(self) -> tuple[Series, ...]:
        """Every series of this family that can be named beforehand; none for an info family."""
        if self.kind is Kind.INFO:
            return ()
        if self.kind is Kind.SUMMARY:
            return tuple(Series(f"{self.name}{part}", f"{self.name}{part}", {}) for part in ("_sum", "_count"))
        if not self.values:
            return (Series(self.name, self.name, {}),)
        (label,) = self.labels
        return tuple(Series(cell(self.name, value), self.name, {label: value}) for value in self.values)

    @property
    def initial(self) -> float | None:
        """What a new board holds: a counter and a state start at 0; another gauge, and what is remembered, is absent
        until it is told.
        """
        return None if self.remembered or (self.kind is Kind.GAUGE and not self.values) else 0.0


def cell(name: str, value: str = "") -> str:
    """The key of a series.

    >>> cell("ddp_steps_total"), cell("ddp_worker_restarts_total", "failure")
    ('ddp_steps_total', 'ddp_worker_restarts_total{failure}')
    """
    return f"{name}{{{value}}}" if value else name


def families_of(*sources: Source) -> Iterable[Family]:
    """The families that come from these sources, in the order of the table."""
    return (family for family in FAMILIES if family.source in sources)


def _on_rank(name: str, kind: Kind, help_text: str, *, unit: str = "", scope: Scope = Scope.RANK) -> Family:
    return Family(name=name, kind=kind, scope=scope, source=Source.RANK_BOARD, unit=unit, help=help_text)


def _of_process(name: str, kind: Kind, help_text: str, *, unit: str = "") -> Family:
    return Family(name=name, kind=kind, scope=Scope.RANK, source=Source.PROCESS, unit=unit, help=help_text)


def _of_agent(name: str, kind: Kind, help_text: str, *, unit: str = "") -> Family:
    return Family(name=name, kind=kind, scope=Scope.POD, source=Source.AGENT_BOARD, unit=unit, help=help_text)


def _counted(name: str, label: MetricLabel, values: Iterable[str], help_text: str) -> Family:
    return Family(
        name=name,
        kind=Kind.COUNTER,
        scope=Scope.POD,
        source=Source.AGENT_BOARD,
        labels=(label,),
        values=tuple(values),
        help=help_text,
    )


def _of_aggregator(name: str, kind: Kind, help_text: str, *, unit: str = "") -> Family:
    return Family(name=name, kind=kind, scope=Scope.POD, source=Source.AGGREGATOR, unit=unit, help=help_text)


EVERY_STEP: Final = (
    _on_rank(Metric.STEPS, Kind.COUNTER, "Global steps this rank committed."),
    _on_rank(Metric.SAMPLES, Kind.COUNTER, "Samples this rank computed; the sum over ranks is the job's."),
    Family(
        name=Metric.PHASE_SECONDS,
        kind=Kind.COUNTER,
        scope=Scope.RANK,
        source=Source.RANK_BOARD,
        unit="seconds",
        labels=(MetricLabel.PHASE,),
        values=tuple(Phase),
        help="Wall time by part of the step; the sum over phases is the time of the steps.",
    ),
    _on_rank(Metric.STEP, Kind.GAUGE, "Global step this rank committed last."),
    _on_rank(Metric.LAST_STEP_TIMESTAMP, Kind.GAUGE, "Unix time of this rank's last committed step.", unit="seconds"),
)
"""Written together at every step, so they come first on the board."""

PROGRESS: Final = (
    _on_rank(Metric.EPOCH, Kind.GAUGE, "Epoch of the last committed step, from 0.", scope=Scope.JOB),
    _on_rank(Metric.STEPS_PLANNED, Kind.GAUGE, "Global steps the whole run will have.", scope=Scope.JOB),
    _on_rank(Metric.LOSS, Kind.GAUGE, "Mean training loss of the last step over all ranks.", scope=Scope.JOB),
    _on_rank(Metric.LEARNING_RATE, Kind.GAUGE, "Learning rate of the last step.", scope=Scope.JOB),
    _on_rank("ddp_eval_loss", Kind.GAUGE, "Mean loss of the last evaluation over all ranks.", scope=Scope.JOB),
    _on_rank(
        "ddp_eval_accuracy_ratio",
        Kind.GAUGE,
        "Share of samples the last evaluation found classified rightly, 0 to 1.",
        unit="ratio",
        scope=Scope.JOB,
    ),
    _on_rank(
        "ddp_skipped_steps_total",
        Kind.COUNTER,
        "Steps that used up their samples without moving the weights, since loss or gradient was not finite.",
    ),
)

ACCOUNT: Final = (
    Family(
        name=Metric.JOB_TIME,
        kind=Kind.COUNTER,
        scope=Scope.JOB,
        source=Source.RANK_BOARD,
        unit="seconds",
        labels=(MetricLabel.STATE,),
        values=tuple(JobTime),
        remembered=True,
        help="Wall time of the whole job by what it went into; the sum over states is the time since it first started.",
    ),
    Family(
        name=Metric.LOST_PROGRESS,
        kind=Kind.COUNTER,
        scope=Scope.JOB,
        source=Source.RANK_BOARD,
        unit="seconds",
        remembered=True,
        help="Productive time of steps that were lost with a restart or a rollback; it stays in the state productive.",
    ),
    Family(
        name=Metric.LOST_STEPS,
        kind=Kind.COUNTER,
        scope=Scope.JOB,
        source=Source.RANK_BOARD,
        remembered=True,
        help="Steps of the whole job that were done before a restart and not saved, so that they were done again.",
    ),
)
"""What the job's own ledger beside its checkpoints holds; see :mod:`ddp_trainer.train.account`."""

CHECKPOINTS: Final = (
    Family(
        name="ddp_checkpoint_saves_total",
        kind=Kind.COUNTER,
        scope=Scope.POD,
        source=Source.RANK_BOARD,
        labels=(MetricLabel.RESULT,),
        values=("success", "failure"),
        help="Checkpoints this pod tried to write, by how it went.",
    ),
    _on_rank(
        "ddp_checkpoint_save_seconds_total",
        Kind.COUNTER,
        "Time from the start of a checkpoint until it was durable.",
        unit="seconds",
        scope=Scope.POD,
    ),
    _on_rank(
        "ddp_checkpoint_blocking_seconds_total",
        Kind.COUNTER,
        "The part of saving during which training stood still.",
        unit="seconds",
        scope=Scope.POD,
    ),
    _on_rank(
        "ddp_checkpoint_load_seconds_total",
        Kind.COUNTER,
        "Time spent restoring checkpoints.",
        unit="seconds",
        scope=Scope.POD,
    ),
    _on_rank(
        "ddp_checkpoint_last_success_timestamp_seconds",
        Kind.GAUGE,
        "Unix time at which the last checkpoint became durable.",
        unit="seconds",
        scope=Scope.POD,
    ),
    _on_rank("ddp_checkpoint_last_step", Kind.GAUGE, "Global step of the last durable checkpoint.", scope=Scope.POD),
    _on_rank(
        "ddp_checkpoint_size_bytes", Kind.GAUGE, "Size of the last durable checkpoint.", unit="bytes", scope=Scope.POD
    ),
    _on_rank(
        "ddp_checkpoint_interval_seconds",
        Kind.GAUGE,
        "Time between checkpoints: as asked for in seconds, else as last measured.",
        unit="seconds",
        scope=Scope.POD,
    ),
)

PROCESS: Final = (
    _of_process(Metric.RANK_UP, Kind.GAUGE, "1 while the process of this rank exists, else 0."),
    _of_process(
        Metric.RANK_PID,
        Kind.GAUGE,
        "Process id of this rank inside its pod, a value and not a label, so that a restart makes no new series.",
    ),
    _of_process(
        "ddp_rank_stopped",
        Kind.GAUGE,
        "1 while the process is stopped or in uninterruptible sleep (states T, t, D), else 0.",
    ),
    _of_process(
        "ddp_rank_start_time_seconds", Kind.GAUGE, "Unix time at which this rank's process started.", unit="seconds"
    ),
    _of_process(
        "ddp_rank_cpu_seconds_total",
        Kind.COUNTER,
        "CPU time of the process; of a rank that does not step, it tells spinning from waiting.",
        unit="seconds",
    ),
    _of_process("ddp_rank_resident_memory_bytes", Kind.GAUGE, "Resident memory of the process.", unit="bytes"),
    Family(
        name=Metric.RANK_INFO,
        kind=Kind.INFO,
        scope=Scope.RANK,
        source=Source.RANK_BOARD,
        labels=(MetricLabel.LOCAL_RANK, MetricLabel.NODE_RANK, MetricLabel.BACKEND, MetricLabel.DEVICE),
        help="Where this rank runs; 1, to be joined with.",
    ),
)

AGENT: Final = (
    Family(
        name="ddp_agent_up",
        kind=Kind.GAUGE,
        scope=Scope.POD,
        source=Source.PROCESS,
        help="1 while the launcher of this pod exists, else 0.",
    ),
    Family(
        name=Metric.GROUP_STATE,
        kind=Kind.GAUGE,
        scope=Scope.POD,
        source=Source.AGENT_BOARD,
        labels=(MetricLabel.STATE,),
        values=tuple(GroupState),
        help="1 for the state this pod's worker group is in, 0 for the others.",
    ),
    _counted(Metric.RESTARTS, MetricLabel.CAUSE, RestartCause, "Times the worker group was formed anew, by cause."),
    _counted(Metric.FAILURES, MetricLabel.REASON, FailureReason, "Workers of this pod that ended and should not have."),
    _of_agent(
        "ddp_rendezvous_duration_seconds", Kind.SUMMARY, "Time from joining until a group was formed.", unit="seconds"
    ),
    _of_agent("ddp_rendezvous_last_duration_seconds", Kind.GAUGE, "What the last rendezvous took.", unit="seconds"),
    _of_agent(Metric.RENDEZVOUS_ROUND, Kind.GAUGE, "Generation of the group, the number of its rendezvous."),
    _of_agent(Metric.WORLD_SIZE, Kind.GAUGE, "Processes in the group."),
    _of_agent(Metric.FIRST_RANK, Kind.GAUGE, "First rank of the pod in the group; the others follow in order."),
    _of_agent(Metric.NODES, Kind.GAUGE, "Nodes in the group."),
    _of_agent("ddp_nodes_desired", Kind.GAUGE, "Nodes the group could have at most."),
    _of_agent("ddp_restarts_remaining", Kind.GAUGE, "What is left of the run's restart budget."),
)

AGGREGATOR: Final = (
    Family(
        name="ddp_build_info",
        kind=Kind.INFO,
        scope=Scope.POD,
        source=Source.AGGREGATOR,
        labels=(MetricLabel.VERSION,),
        help="Version of kubectl-ddp in this pod.",
    ),
    _of_aggregator("ddp_exporter_scrapes_total", Kind.COUNTER, "Times the boards were read for a scrape."),
    _of_aggregator(
        "ddp_exporter_scrape_seconds_total", Kind.COUNTER, "Time spent reading the boards for scrapes.", unit="seconds"
    ),
    _of_aggregator(
        "ddp_exporter_stale_boards", Kind.GAUGE, "Boards left out because they are damaged or of another version."
    ),
    _of_aggregator("ddp_shm_used_bytes", Kind.GAUGE, "What is used of the pod's /dev/shm.", unit="bytes"),
    _of_aggregator("ddp_shm_size_bytes", Kind.GAUGE, "Size of the pod's /dev/shm.", unit="bytes"),
    _of_aggregator(
        "ddp_container_memory_limit_bytes",
        Kind.GAUGE,
        "Memory that the container may use; absent where nothing limits it.",
        unit="bytes",
    ),
)

FAMILIES: Final = EVERY_STEP + PROGRESS + ACCOUNT + CHECKPOINTS + PROCESS + AGENT + AGGREGATOR
