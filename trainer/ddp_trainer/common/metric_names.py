"""Names of this project's metrics, of their labels, and of the dashboards that show them.

The pods export these names, and the plugin and the charts query them. Standard library only.
"""

from __future__ import annotations

from enum import StrEnum


class MetricLabel(StrEnum):
    """Labels of this project's metrics. Prometheus reserves ``job``, so the job's label is ``ddp_job``."""

    JOB = "ddp_job"
    RANK = "rank"
    PHASE = "phase"
    STATE = "state"
    CAUSE = "cause"
    REASON = "reason"
    RESULT = "result"
    LOCAL_RANK = "local_rank"
    NODE_RANK = "node_rank"
    BACKEND = "backend"
    DEVICE = "device"
    DEVICE_NAME = "device_name"
    GPU_UUID = "gpu_uuid"
    PROCESS_GROUP = "process_group"
    OPERATION = "operation"
    RUN_ID = "run_id"
    TORCH_VERSION = "torch_version"
    NCCL_VERSION = "nccl_version"
    PRECISION = "precision"
    PARALLELISM = "parallelism"
    VERSION = "version"
    NAME = "name"


class Metric(StrEnum):
    """Metric families by name.

    Its members are those that the command line reads, or that other packages than ``metrics`` report. The complete
    catalogue is in ``metrics/families``.
    """

    STEPS = "ddp_steps_total"
    SAMPLES = "ddp_samples_total"
    PHASE_SECONDS = "ddp_step_phase_seconds_total"
    WAIT_SECONDS = "ddp_step_wait_seconds_total"
    STEP = "ddp_step"
    STEPS_PLANNED = "ddp_steps_planned"
    EPOCH = "ddp_epoch"
    LAST_STEP_TIMESTAMP = "ddp_last_step_timestamp_seconds"
    USER_VALUE = "ddp_user_value"
    LOSS = "ddp_loss"
    LEARNING_RATE = "ddp_learning_rate"
    GRADIENT_NORM = "ddp_gradient_norm"
    LOSS_SCALE = "ddp_loss_scale"
    TOKENS = "ddp_tokens_total"
    MODEL_FLOPS = "ddp_model_flops_total"
    RECOMPUTED = "ddp_recomputed_flops_ratio"
    PEAK_FLOPS = "ddp_peak_flops_per_second"
    STEP_DURATION = "ddp_step_duration_seconds"
    SAMPLED_STEPS = "ddp_sampled_steps_total"
    SAMPLED_BUSY = "ddp_sampled_busy_seconds_total"
    SAMPLED_COMM_EXPOSED = "ddp_sampled_comm_exposed_seconds_total"
    ENQUEUED = "ddp_collective_last_enqueued_sequence"
    COMPLETED = "ddp_collective_last_completed_sequence"
    JOB_TIME = "ddp_job_time_seconds_total"
    JOB_START = "ddp_job_start_time_seconds"
    LOST_PROGRESS = "ddp_lost_progress_seconds_total"
    LOST_STEPS = "ddp_lost_steps_total"
    SKIPPED_STEPS = "ddp_skipped_steps_total"
    CHECKPOINT_SAVES = "ddp_checkpoint_saves_total"
    CHECKPOINT_FAILURES = "ddp_checkpoint_consecutive_failures"
    CHECKPOINT_LOAD_SECONDS = "ddp_checkpoint_load_seconds_total"
    CHECKPOINT_INTERVAL = "ddp_checkpoint_interval_seconds"
    GC_PAUSE_SECONDS = "ddp_gc_pause_seconds_total"
    STARTUP = "ddp_startup_seconds"
    AGENT_START = "ddp_agent_start_time_seconds"
    RANK_UP = "ddp_rank_up"
    RANK_PID = "ddp_rank_pid"
    RANK_INFO = "ddp_rank_info"
    JOB_INFO = "ddp_job_info"
    RESTARTS = "ddp_worker_restarts_total"
    FAILURES = "ddp_worker_failures_total"
    LAST_FAILURE = "ddp_last_failure_timestamp_seconds"
    LAST_FAILED_RANK = "ddp_last_failed_rank"
    GROUP_STATE = "ddp_worker_group_state"
    RENDEZVOUS_ROUND = "ddp_rendezvous_round"
    WORLD_SIZE = "ddp_world_size"
    FIRST_RANK = "ddp_first_rank"
    NODES = "ddp_nodes"
    OUTSIDE_SINCE = "ddp_outside_group_timestamp_seconds"
    STALLED = "ddp_stalled_seconds"
    STALLED_BY = "ddp_stalled_by_rank"


def cell(name: str, value: str = "") -> str:
    """Return the key of a series.

    >>> cell("ddp_steps_total"), cell("ddp_worker_restarts_total", "failure")
    ('ddp_steps_total', 'ddp_worker_restarts_total{failure}')
    """
    return f"{name}{{{value}}}" if value else name


class Dashboard(StrEnum):
    """This project's Grafana dashboards, by their ``uid``."""

    JOB = "ddp-job"
    RANKS = "ddp-ranks"
    FLEET = "ddp-fleet"
