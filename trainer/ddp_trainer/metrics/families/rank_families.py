"""Metric families of ranks: values that ranks report and values that the launcher, the aggregator and ``/proc``
provide.
"""

from __future__ import annotations

from typing import Final

from ddp_trainer.common.constants import PLACE_LABELS, JobTime, Metric, MetricLabel, Phase, Wait
from ddp_trainer.metrics.families.family import Family, Kind, Scope, Source
from ddp_trainer.process.nvml_library import CLOCK_EVENTS

STEP_SECONDS: Final = (
    *(0.01, 0.016, 0.025, 0.04, 0.063, 0.1, 0.16, 0.25, 0.4, 0.63),
    *(1.0, 1.6, 2.5, 4.0, 6.3, 10.0, 16.0, 25.0, 40.0, 63.0),
)
"""Bucket bounds of step durations in seconds, five per power of ten: from a small model on one GPU to a large one on
hundreds.
"""


def _on_rank(name: str, kind: Kind, help_text: str, *, unit: str = "", scope: Scope = Scope.RANK) -> Family:
    return Family(name=name, kind=kind, scope=scope, source=Source.RANK_BOARD, unit=unit, help=help_text)


def _of_process(name: str, kind: Kind, help_text: str, *, unit: str = "") -> Family:
    return Family(name=name, kind=kind, scope=Scope.RANK, source=Source.PROCESS, unit=unit, help=help_text)


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
    Family(
        name=Metric.STEP_DURATION,
        kind=Kind.HISTOGRAM,
        scope=Scope.POD,
        source=Source.RANK_BOARD,
        unit="seconds",
        buckets=STEP_SECONDS,
        help="Wall time of a step; of local rank 0 alone, since the ranks of a job step together.",
    ),
)
"""Families written together at every step; they come first on the board."""

PROGRESS: Final = (
    _on_rank(Metric.EPOCH, Kind.GAUGE, "Epoch of the last committed step, from 0.", scope=Scope.JOB),
    _on_rank(Metric.STEPS_PLANNED, Kind.GAUGE, "Global steps the whole run will have.", scope=Scope.JOB),
    _on_rank(Metric.LOSS, Kind.GAUGE, "Mean training loss of the last step over all ranks.", scope=Scope.JOB),
    _on_rank(Metric.LEARNING_RATE, Kind.GAUGE, "Learning rate of the last step.", scope=Scope.JOB),
    _on_rank(
        Metric.GRADIENT_NORM, Kind.GAUGE, "Norm of the whole gradient of the last step, not clipped.", scope=Scope.JOB
    ),
    _on_rank(
        Metric.LOSS_SCALE,
        Kind.GAUGE,
        "What the loss is multiplied with, so that half precision holds its gradients.",
        scope=Scope.JOB,
    ),
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
        "Steps that used up samples without moving the weights of any rank, since loss or gradient was not finite.",
        scope=Scope.JOB,
    ),
)

WORK: Final = (
    _on_rank(Metric.TOKENS, Kind.COUNTER, "Tokens this rank computed, where somebody tells; the sum is the job's."),
    _on_rank(
        Metric.MODEL_FLOPS,
        Kind.COUNTER,
        "Floating-point operations of the model that this rank did, forward and backward, without what is recomputed.",
    ),
    _on_rank(
        Metric.PEAK_FLOPS,
        Kind.GAUGE,
        "Most operations that the device can do in a second in half precision, dense; absent where that is not known.",
    ),
    _on_rank(
        Metric.RECOMPUTED,
        Kind.GAUGE,
        "Operations done a second time in the backward pass, over those of the model; HFU is MFU times 1 plus this.",
        unit="ratio",
        scope=Scope.JOB,
    ),
    Family(
        name=Metric.WAIT_SECONDS,
        kind=Kind.COUNTER,
        scope=Scope.RANK,
        source=Source.RANK_BOARD,
        unit="seconds",
        labels=(MetricLabel.OPERATION,),
        values=tuple(Wait),
        of_layout=True,
        help="Time of steps that went into waiting for weights, sums of gradients or other stages; only of ranks that"
        " share a model so, and on a GPU of stages alone.",
    ),
    _on_rank(Metric.SAMPLED_STEPS, Kind.COUNTER, "Steps of which it was measured how long the rank was busy itself."),
    _on_rank(
        Metric.SAMPLED_BUSY,
        Kind.COUNTER,
        "Time of the sampled steps without that in which the rank waited for others: a straggler has more.",
        unit="seconds",
    ),
    _on_rank(
        Metric.SAMPLED_COMM_EXPOSED,
        Kind.COUNTER,
        "Time of the sampled steps in which the rank waited for gradients and did nothing else.",
        unit="seconds",
    ),
)
"""Work of a rank, and the time that it takes."""

HOST: Final = (
    _on_rank(
        "ddp_gc_pause_seconds_total",
        Kind.COUNTER,
        "Time in Python's garbage collector, of all threads.",
        unit="seconds",
    ),
)

GPU: Final = (
    _on_rank(
        "ddp_gpu_memory_allocated_bytes", Kind.GAUGE, "Memory of the GPU that tensors of this rank have.", unit="bytes"
    ),
    _on_rank(
        "ddp_gpu_memory_reserved_bytes", Kind.GAUGE, "What torch's allocator holds of the GPU's memory.", unit="bytes"
    ),
    _on_rank(
        "ddp_gpu_memory_peak_allocated_bytes",
        Kind.GAUGE,
        "Most memory that tensors had since the process began, or since the script reset torch's peak.",
        unit="bytes",
    ),
    _on_rank("ddp_gpu_memory_limit_bytes", Kind.GAUGE, "Memory that the GPU has.", unit="bytes"),
    _on_rank(
        "ddp_gpu_alloc_retries_total",
        Kind.COUNTER,
        "Times the allocator had to give back what it held to get what was asked: it is about to run out.",
    ),
    _on_rank("ddp_gpu_oom_total", Kind.COUNTER, "Times that the GPU had no memory left for what was asked."),
)
"""Absent without a GPU, except for the counters."""

THROTTLED: Final = "ddp_gpu_throttled"


def _of_driver(name: str, unit: str, help_text: str) -> Family:
    return Family(name=name, kind=Kind.GAUGE, scope=Scope.RANK, source=Source.NVML, unit=unit, help=help_text)


DRIVER: Final = (
    _of_driver(
        "ddp_gpu_memory_used_bytes",
        "bytes",
        "Memory of the GPU in use, as the driver counts it: with CUDA contexts, buffers of NCCL and other processes.",
    ),
    _of_driver(
        "ddp_gpu_utilization_ratio",
        "ratio",
        "Share of the driver's last sampling period in which a kernel ran, 0 to 1.",
    ),
    _of_driver("ddp_gpu_sm_clock_hertz", "hertz", "Clock of the GPU's multiprocessors."),
    _of_driver("ddp_gpu_sm_clock_max_hertz", "hertz", "Highest clock that the GPU's multiprocessors can have."),
    Family(
        name=THROTTLED,
        kind=Kind.GAUGE,
        scope=Scope.RANK,
        source=Source.NVML,
        labels=(MetricLabel.REASON,),
        values=tuple(CLOCK_EVENTS.values()),
        help="1 while the GPU lowers its clock for this reason, else 0; `power_cap` is normal at full load.",
    ),
)
"""The driver's figures for the whole GPU of a rank. A figure that the GPU does not have is absent."""

PROCESS_GROUPS: Final = ("default", "1", "2", "3")
"""Exported process groups, in the order of their creation. Later groups are not exported, because each adds a series
per rank.
"""

COLLECTIVES: Final = tuple(
    Family(
        name=name,
        kind=Kind.GAUGE,
        scope=Scope.RANK,
        source=Source.FLIGHT_RECORDER,
        labels=(MetricLabel.PROCESS_GROUP,),
        values=PROCESS_GROUPS,
        help=help_text,
    )
    for name, help_text in (
        (
            Metric.ENQUEUED,
            "Number of the last collective that this rank began in a process group; who is behind is waited for.",
        ),
        (Metric.COMPLETED, "Number of the last collective that this rank saw completed in a process group."),
    )
)
COLLECTIVE_FAILURES: Final = (
    _on_rank(
        "ddp_collective_timeouts_total",
        Kind.COUNTER,
        "Times this rank ended, or left its group, since a collective took too long: who has none is waited for.",
    ),
    _on_rank(
        "ddp_collective_errors_total",
        Kind.COUNTER,
        "Times this rank ended, or left its group, since a collective failed: a peer or the network went away.",
    ),
)
"""Counters on the rank's board that the launcher writes, because it detects how the rank ended."""

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
    _on_rank(
        Metric.JOB_START,
        Kind.GAUGE,
        "Unix time at which the job first started; the states of ddp_job_time_seconds_total add up to the time since.",
        unit="seconds",
        scope=Scope.JOB,
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
"""Contents of the job's own ledger beside its checkpoints; see :mod:`ddp_trainer.train.config.goodput_account`."""

CHECKPOINTS: Final = (
    Family(
        name="ddp_checkpoint_saves_total",
        kind=Kind.COUNTER,
        scope=Scope.POD,
        source=Source.RANK_BOARD,
        labels=(MetricLabel.RESULT,),
        values=("success", "failure", "skipped"),
        help="Checkpoints of this pod that were due, by how it went; skipped while the one before was being written.",
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
    _of_process(
        "ddp_rank_resident_memory_peak_bytes",
        Kind.GAUGE,
        "Most resident memory that the process had since it began; absent where the kernel does not tell.",
        unit="bytes",
    ),
    Family(
        name=Metric.RANK_INFO,
        kind=Kind.INFO,
        scope=Scope.RANK,
        source=Source.RANK_BOARD,
        labels=(
            *(MetricLabel.LOCAL_RANK, MetricLabel.NODE_RANK, MetricLabel.BACKEND),
            *(MetricLabel.DEVICE, MetricLabel.DEVICE_NAME, MetricLabel.GPU_UUID),
            *PLACE_LABELS,
        ),
        help="Where this rank runs, and its place in a layout; 1, to be joined with.",
    ),
    Family(
        name=Metric.JOB_INFO,
        kind=Kind.INFO,
        scope=Scope.JOB,
        source=Source.RANK_BOARD,
        labels=(
            *(MetricLabel.RUN_ID, MetricLabel.TORCH_VERSION, MetricLabel.NCCL_VERSION),
            *(MetricLabel.BACKEND, MetricLabel.PRECISION, MetricLabel.PARALLELISM),
        ),
        help="What the job is made of; 1, to be joined with.",
    ),
)
