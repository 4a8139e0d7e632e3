"""Job dashboard: is the job training, how fast, why not faster, and what was lost?"""

from __future__ import annotations

from typing import Final

from tools.dashboards import colors
from tools.dashboards.choices import A_JOB, JOB, MARKS, to_rank
from tools.dashboards.learning import LEARNING, MADE
from tools.dashboards.losses import CRASH, WASTE
from tools.dashboards.panel import Dashboard, Query, Row
from tools.dashboards.panel_types import bar_gauge, on_the_right, reference_line, stat, time_series
from tools.dashboards.promql import gpus

_RUNNING: Final = 'on () max(ddp_worker_group_state{<job>, state="running"}) == 1'

TRAINING: Final = Row(
    "Is it training?",
    (
        stat(
            "State",
            "State of the launchers. Several states mean that the pods have not agreed yet.",
            Query("max by (state) (ddp_worker_group_state{<job>}) == 1", "{{state}}", now=True),
            unit="none",
            text="name",
            noValue="no pod",
            colours=colors.STATES,
            steps={None: "text"},
        ),
        stat(
            "Time since the last step",
            "Time since any rank finished a step. DdpTrainingStalled fires at 10 minutes by default.",
            Query(f"time() - max(ddp_last_step_timestamp_seconds{{<job>}}) and {_RUNNING}", now=True),
            unit="s",
            steps={None: "green", 120: "orange", 600: "red"},
            noValue="not running",
            decimals=0,
        ),
        stat(
            "Progress",
            "Finished steps of planned steps. Empty if the script does not report its number of steps.",
            Query("max(ddp_step{<job>}) / max(ddp_steps_planned{<job>})", now=True),
            unit="percentunit",
            min=0,
            max=1,
            decimals=1,
        ),
        stat(
            "Time left",
            "Time until the last planned step, at the speed of the last 5 minutes.",
            Query(
                "(max(ddp_steps_planned{<job>}) - max(ddp_step{<job>})) / (max(ddp_job:ddp_steps:rate5m{<job>}) > 0)",
                now=True,
            ),
            unit="s",
            decimals=0,
            noValue="unknown",
        ),
        stat(
            "Ranks",
            "Live worker processes and the world size. Fewer processes mean that a worker died and has not restarted.",
            Query("sum(ddp_rank_up{<job>})", "up", now=True),
            Query("max(ddp_world_size{<job>})", "in the group", now=True),
            unit="none",
        ),
        stat(
            "Alerts",
            "Firing alerts of this job. Each is marked in red on the graphs and has a runbook.",
            Query('count(ALERTS{<job>, alertstate="firing"})', now=True),
            unit="none",
            steps={None: "green", 1: "red"},
            noValue="none",
        ),
    ),
)

SPEED: Final = Row(
    "How fast?",
    (
        time_series(
            "Samples per second",
            "Is it slower than usual? The dashed line is the median of the last 6 hours.",
            Query("ddp_job:ddp_samples:rate5m{<job>}", "samples/s"),
            Query("quantile_over_time(0.5, ddp_job:ddp_samples:rate5m{<job>}[6h])", "median of 6 h"),
            unit="short",
            width=8,
            overrides=(reference_line("median of 6 h"),),
        ),
        time_series(
            "Tokens per second",
            "Throughput in tokens, if the script reports them.",
            Query("ddp_job:ddp_tokens:rate5m{<job>}", "tokens/s"),
            unit="short",
            width=8,
        ),
        time_series(
            "Hardware utilization",
            "Model FLOPs divided by the peak of the devices (MFU), the same with recomputed FLOPs (HFU), and DCGM's "
            "tensor core activity. Empty if the script reports no FLOPs, or the peak of the device is unknown.",
            Query("ddp_job:ddp_mfu:ratio5m{<job>}", "MFU"),
            Query(
                "ddp_job:ddp_mfu:ratio5m{<job>} * on () group_left () (1 + max(ddp_recomputed_flops_ratio{<job>}))",
                "HFU",
            ),
            Query(f"avg({gpus('DCGM_FI_PROF_PIPE_TENSOR_ACTIVE')})".replace("<rank>", "<job>"), "tensor cores"),
            unit="percentunit",
            width=8,
        ),
        time_series(
            "Step time",
            "Are steps equally long? A maximum far above p50 is an evaluation, a checkpoint or a slow rank.",
            *(
                Query(
                    f"histogram_quantile({share},"
                    " sum by (le) (rate(ddp_step_duration_seconds_bucket{<job>}[$__rate_interval])))",
                    name,
                )
                for name, share in (("p50", 0.5), ("p95", 0.95), ("max", 1))
            ),
            unit="s",
        ),
        time_series(
            "Steps",
            "Does the step number grow? A drop is a restart: steps after the last checkpoint are repeated.",
            Query("max(ddp_step{<job>})", "step"),
            Query("max(ddp_steps_planned{<job>})", "planned"),
            Query("max(ddp_epoch{<job>})", "epoch"),
            unit="short",
            overrides=(reference_line("planned"), on_the_right("epoch", "none")),
        ),
    ),
)

WHY: Final = Row(
    "Why is it not faster?",
    (
        time_series(
            "Phases of a step",
            "Is it bound by data (orange), compute (blue, green) or the network (purple)? Shares over all ranks.",
            Query("ddp_job_phase:ddp_step_phase_seconds:ratio5m{<job>}", "{{phase}}"),
            unit="percentunit",
            is_stacked=True,
            max=1,
            colours=colors.PHASES,
        ),
        time_series(
            "Seconds per phase of a step",
            "Which phase became slower? Seconds of a mean step of a mean rank.",
            Query(
                "sum by (phase) (rate(ddp_step_phase_seconds_total{<job>}[$__rate_interval]))"
                " / on () group_left () (sum(rate(ddp_steps_total{<job>}[$__rate_interval])) > 0)",
                "{{phase}}",
            ),
            unit="s",
            is_stacked=True,
            colours=colors.PHASES,
        ),
        time_series(
            "Waiting for other ranks",
            "Is it the network, or one slow rank? Share of time in which ranks wait for gradients. The straggler tax "
            "is the part that disappears if the slowest rank is as fast as the median rank. The rest is the network.",
            Query("ddp_job:ddp_comm_exposed:ratio5m{<job>}", "waiting for gradients"),
            Query("ddp_job:ddp_straggler_tax:ratio5m{<job>}", "straggler tax"),
            width=8,
            unit="percentunit",
            colours={"waiting for gradients": "purple", "straggler tax": "red"},
        ),
        time_series(
            "Waiting within a split model",
            "What do the ranks of a split model wait for? Share of step time. stage: pipeline bubble. all_gather: "
            "sharded weights. reduce_scatter: sharded gradients. On GPUs only stages are measured.",
            Query(
                "sum by (operation) (rate(ddp_step_wait_seconds_total{<job>}[$__rate_interval]))"
                " / on () group_left () (sum(rate(ddp_step_phase_seconds_total{<job>}[$__rate_interval])) > 0)",
                "{{operation}}",
            ),
            width=8,
            unit="percentunit",
            is_stacked=True,
        ),
        bar_gauge(
            "Slowest ranks",
            "Which rank do others wait for? Own time of a rank in a step, divided by that of the median rank. "
            "DdpStraggler fires from 1.15 by default. Click a bar to open its rank.",
            Query("topk(5, ddp_job_rank:ddp_straggler:ratio5m{<job>})", "rank {{rank}}", now=True),
            width=8,
            unit="none",
            decimals=2,
            steps={None: "green", 1.15: "orange", 1.5: "red"},
            links=[to_rank("${__field.labels.rank}")],
        ),
    ),
)

DASHBOARD: Final = Dashboard(
    uid=JOB,
    title="Training: job",
    description="One training job: is it training, how fast, why not faster, and what was lost?",
    rows=(TRAINING, SPEED, WHY, WASTE, CRASH, LEARNING, MADE),
    variables=A_JOB,
    annotations=MARKS,
)
