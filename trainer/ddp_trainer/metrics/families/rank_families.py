"""Metric families of ranks: values that ranks report and values that the launcher, the aggregator and ``/proc``
provide.

How to add a metric:

1. Add a member of ``Metric`` in ``common/metric_names.py``, and a row here (of the launcher: ``pod_families.py``)
   with help text and labels. ``_job`` is equal on all ranks and exported by rank 0, ``_rank`` has a series per rank,
   ``_pod`` one per pod. The name ends in its unit, that of a counter in ``_total``. Labels and their values are
   closed sets.
2. Report it where the value is known: ``recorder.add(Metric.NAME)`` for a counter, ``recorder.put(Metric.NAME,
   value)`` for a gauge. ``CallbackList`` of ``train/loop/callbacks.py`` has the recorder and the state: every rank runs
   its ``step`` after each committed step, and ``record_evaluation`` after each evaluation. Of a ``_job`` metric only
   the value of rank 0 is exported; where reporting is costly, as for gradients, rank 0 alone reports. A value on a GPU
   is read at most every ``GRADIENT_SECONDS``. The launcher reports through a method of ``AgentRecorder`` in
   ``process/recorder.py``.
3. Add a panel in ``tools/dashboards`` if it helps on call. A metric that a short run lacks has a line in
   ``DID_NOT_HAPPEN`` or ``IS_NOT_COMPUTED`` of ``test_dashboards_of_a_run.py``.
4. Run ``make docs manifests``, and add a line to ``CHANGELOG.md``; no other page lists metrics. Tests: ``Journal`` in
   ``tests/unit/ddp_trainer/train/test_run.py`` holds what a run reports, ``test_metrics_layouts.py`` what only several
   ranks report, and ``pod`` in ``test_metrics_collector.py`` every gauge once; ``test_metrics_registry.py`` limits the
   series of a rank, a pod and a job. A counter that stays 0 in a healthy job has a line in ``NEVER`` of
   ``bench/drivers/simulated_ranks.py``.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from ddp_trainer.common.metric_names import Metric, MetricLabel
from ddp_trainer.common.parallel_dims import DIMENSION_NAMES
from ddp_trainer.common.time_classes import IN_POD, JobTime, Phase, Wait
from ddp_trainer.metrics.families.family import Family, Scope, Source
from ddp_trainer.process.gpu_devices import CLOCK_EVENTS

STEP_SECONDS: Final = (
    *(0.01, 0.016, 0.025, 0.04, 0.063, 0.1, 0.16, 0.25, 0.4, 0.63),
    *(1.0, 1.6, 2.5, 4.0, 6.3, 10.0, 16.0, 25.0, 40.0, 63.0),
)
"""Bucket bounds of step durations in seconds, five per power of ten: from a small model on one GPU to a large one on
hundreds.
"""


_rank: Final = partial(Family, scope=Scope.RANK, source=Source.RANK_FILE)
_pod: Final = partial(Family, scope=Scope.POD, source=Source.RANK_FILE)
_job: Final = partial(Family, scope=Scope.JOB, source=Source.RANK_FILE)
_process: Final = partial(Family, scope=Scope.RANK, source=Source.PROCESS)
_driver: Final = partial(Family, scope=Scope.RANK, source=Source.NVML)
_collective: Final = partial(Family, scope=Scope.RANK, source=Source.FLIGHT_RECORDER)

THROTTLED: Final = "ddp_gpu_throttled"
PROCESS_GROUPS: Final = ("default", "1", "2", "3")
"""Exported process groups, in the order of their creation. Later groups are not exported, because each adds a series
per rank.
"""

RANKS: Final = (
    # Written together at every step; they come first in the metrics file.
    _rank(Metric.STEPS, "Global steps this rank committed."),
    _rank(Metric.SAMPLES, "Samples this rank computed; the sum over ranks is the job's."),
    _rank(
        Metric.PHASE_SECONDS,
        "Wall time by part of the step; the sum over phases is the time of the steps.",
        labels=(MetricLabel.PHASE,),
        values=tuple(Phase),
    ),
    _rank(Metric.STEP, "Global step this rank committed last."),
    _rank(Metric.LAST_STEP_TIMESTAMP, "Unix time of this rank's last committed step."),
    _pod(
        Metric.STEP_DURATION,
        "Wall time of a step; of local rank 0 alone, since the ranks of a job step together.",
        buckets=STEP_SECONDS,
    ),
    # Progress of the job.
    _job(Metric.EPOCH, "Epoch of the last committed step, from 0."),
    _job(Metric.STEPS_PLANNED, "Global steps the whole run will have."),
    _job(Metric.LOSS, "Mean training loss of the last step over all ranks."),
    _job(Metric.LEARNING_RATE, "Learning rate of the last step."),
    _job(Metric.GRADIENT_NORM, "Norm of the whole gradient of the last step, not clipped."),
    _job(Metric.LOSS_SCALE, "What the loss is multiplied with, so that half precision holds its gradients."),
    Family(
        Metric.USER_VALUE,
        "Value that the script reports by `attach.log()` under a name of its own; at most 32 names per rank.",
        scope=Scope.RANK,
        source=Source.SCRIPT,
        labels=(MetricLabel.NAME,),
    ),
    _job("ddp_eval_loss", "Mean loss of the last evaluation over all ranks."),
    _job("ddp_eval_accuracy_ratio", "Share of samples the last evaluation found classified rightly, 0 to 1."),
    _job(
        Metric.SKIPPED_STEPS,
        "Steps that used up samples without moving the weights of any rank, since loss or gradient was not finite.",
    ),
    # Work of a rank, and the time that it takes.
    _rank(Metric.TOKENS, "Tokens this rank computed, if the script reports them; the sum is the job's."),
    _rank(
        Metric.MODEL_FLOPS,
        "Floating-point operations of the model that this rank did, forward and backward, without what is recomputed.",
    ),
    _rank(
        Metric.PEAK_FLOPS,
        "Most operations that the device can do in a second in half precision, dense; absent where that is not known.",
    ),
    _job(
        Metric.RECOMPUTED,
        "Operations done a second time in the backward pass, over those of the model; HFU is MFU times 1 plus this.",
    ),
    _rank(
        Metric.WAIT_SECONDS,
        "Time of steps that went into waiting for weights, sums of gradients or other stages; only of ranks that"
        " share a model so, and on a GPU of stages alone.",
        labels=(MetricLabel.OPERATION,),
        values=tuple(Wait),
        is_absent_at_first=True,
    ),
    _rank(Metric.SAMPLED_STEPS, "Steps of which it was measured how long the rank was busy itself."),
    _rank(
        Metric.SAMPLED_BUSY,
        "Time of the sampled steps without that in which the rank waited for others: a straggler has more.",
    ),
    _rank(
        Metric.SAMPLED_COMM_EXPOSED,
        "Time of the sampled steps in which the rank waited for gradients and did nothing else.",
    ),
    # Time of the rank's host program.
    _rank(Metric.GC_PAUSE_SECONDS, "Time in Python's garbage collector, of all threads."),
    # Absent without a GPU, except for the counters.
    _rank("ddp_gpu_memory_allocated_bytes", "Memory of the GPU that tensors of this rank have."),
    _rank("ddp_gpu_memory_reserved_bytes", "What torch's allocator holds of the GPU's memory."),
    _rank(
        "ddp_gpu_memory_peak_allocated_bytes",
        "Most memory that tensors had since the process began, or since the script reset torch's peak.",
    ),
    _rank("ddp_gpu_memory_limit_bytes", "Memory that the GPU has."),
    _rank(
        "ddp_gpu_alloc_retries_total",
        "Times the allocator freed its cached memory to serve an allocation: the GPU is almost out of memory.",
    ),
    _rank("ddp_gpu_oom_total", "Times that an allocation failed because the GPU was out of memory."),
    # The driver's figures for the whole GPU of a rank. A figure that the GPU does not have is absent.
    _driver(
        "ddp_gpu_memory_used_bytes",
        "Memory of the GPU in use, as the driver counts it: with CUDA contexts, buffers of NCCL and other processes.",
    ),
    _driver("ddp_gpu_utilization_ratio", "Share of the driver's last sampling period in which a kernel ran, 0 to 1."),
    _driver("ddp_gpu_sm_clock_hertz", "Clock of the GPU's multiprocessors."),
    _driver("ddp_gpu_sm_clock_max_hertz", "Highest clock that the GPU's multiprocessors can have."),
    _driver(
        THROTTLED,
        "1 while the GPU lowers its clock for this reason, else 0; `power_cap` is normal at full load.",
        labels=(MetricLabel.REASON,),
        values=tuple(CLOCK_EVENTS.values()),
    ),
    # Positions in collectives.
    _collective(
        Metric.ENQUEUED,
        "Number of the last collective that this rank began in a process group; who is behind is waited for.",
        labels=(MetricLabel.PROCESS_GROUP,),
        values=PROCESS_GROUPS,
    ),
    _collective(
        Metric.COMPLETED,
        "Number of the last collective that this rank saw completed in a process group.",
        labels=(MetricLabel.PROCESS_GROUP,),
        values=PROCESS_GROUPS,
    ),
    # In the rank's metrics file, but written by the launcher, because it detects how the rank ended.
    _rank(
        "ddp_collective_timeouts_total",
        "Times this rank ended, or left its group, since a collective took too long: who has none is waited for.",
    ),
    _rank(
        "ddp_collective_errors_total",
        "Times this rank ended, or left its group, since a collective failed: a peer or the network went away.",
    ),
    # Contents of the job's own ledger beside its checkpoints; see ddp_trainer.train.config.goodput_account.
    _job(
        Metric.JOB_TIME,
        "Wall time of the whole job by what it went into; the sum over states is the time since it first started.",
        labels=(MetricLabel.STATE,),
        values=tuple(JobTime),
        is_absent_at_first=True,
    ),
    _job(
        Metric.JOB_START,
        "Unix time at which the job first started; the states of ddp_job_time_seconds_total add up to the time since.",
    ),
    _job(
        Metric.LOST_PROGRESS,
        "Productive time of steps that were lost with a restart or a rollback; it stays in the state productive.",
        is_absent_at_first=True,
    ),
    _job(
        Metric.LOST_STEPS,
        "Steps of the whole job that were done before a restart and not saved, so that they were done again.",
        is_absent_at_first=True,
    ),
    # Start of the pod, which local rank 0 measures.
    _pod(
        Metric.STARTUP,
        "Time of each phase of this pod's start, from the launcher to the end of the first step, once it has ended.",
        labels=(MetricLabel.PHASE,),
        values=tuple(IN_POD),
        is_absent_at_first=True,
    ),
    _pod(Metric.AGENT_START, "Unix time at which the launcher of this pod started: where its start begins."),
    # Checkpoints that local rank 0 writes and loads.
    _pod(
        Metric.CHECKPOINT_SAVES,
        "Checkpoints of this pod that were due, by how it went; skipped while the one before was being written.",
        labels=(MetricLabel.RESULT,),
        values=("success", "failure", "skipped"),
    ),
    _pod(Metric.CHECKPOINT_FAILURES, "Saves of this pod that failed since the last one that succeeded."),
    _pod("ddp_checkpoint_save_seconds_total", "Time from the start of a checkpoint until it was durable."),
    _pod("ddp_checkpoint_blocking_seconds_total", "The part of saving during which training stood still."),
    _pod(Metric.CHECKPOINT_LOAD_SECONDS, "Time spent restoring checkpoints."),
    _pod("ddp_checkpoint_last_success_timestamp_seconds", "Unix time at which the last checkpoint became durable."),
    _pod("ddp_checkpoint_last_step", "Global step of the last durable checkpoint."),
    _pod("ddp_checkpoint_size_bytes", "Size of the last durable checkpoint."),
    _pod(Metric.CHECKPOINT_INTERVAL, "Time between checkpoints: as asked for in seconds, else as last measured."),
    # The process of a rank, and what it is.
    _process(Metric.RANK_UP, "1 while the process of this rank exists, else 0."),
    _process(
        Metric.RANK_PID,
        "Process id of this rank inside its pod, a value and not a label, so that a restart makes no new series.",
    ),
    _process(
        "ddp_rank_stopped", "1 while the process is stopped or in uninterruptible sleep (states T, t, D), else 0."
    ),
    _process("ddp_rank_start_time_seconds", "Unix time at which this rank's process started."),
    _process(
        "ddp_rank_cpu_seconds_total",
        "CPU time of the process; of a rank that does not step, it tells spinning from waiting.",
    ),
    _process("ddp_rank_resident_memory_bytes", "Resident memory of the process."),
    _process(
        "ddp_rank_resident_memory_peak_bytes",
        "Most resident memory that the process had since it began; absent where the kernel does not tell.",
    ),
    _rank(
        Metric.RANK_INFO,
        "Where this rank runs, and its place in a layout; 1, to be joined with.",
        labels=(
            *(MetricLabel.LOCAL_RANK, MetricLabel.NODE_RANK, MetricLabel.BACKEND),
            *(MetricLabel.DEVICE, MetricLabel.DEVICE_NAME, MetricLabel.GPU_UUID),
            *DIMENSION_NAMES,
        ),
    ),
    _job(
        Metric.JOB_INFO,
        "What the job is made of; 1, to be joined with.",
        labels=(
            *(MetricLabel.RUN_ID, MetricLabel.TORCH_VERSION, MetricLabel.NCCL_VERSION),
            *(MetricLabel.BACKEND, MetricLabel.PRECISION, MetricLabel.PARALLELISM),
        ),
    ),
)
