"""Job: one job from the top down, as somebody on call asks. Is it training, how fast, why, what was lost?"""

from __future__ import annotations

from typing import Final

from tools.dashboards import colors
from tools.dashboards.choices import A_JOB, JOB, MARKS, to_rank
from tools.dashboards.learning import LEARNING, MADE
from tools.dashboards.losses import CRASH, WASTE
from tools.dashboards.panel import Dashboard, Query, Row
from tools.dashboards.panel_types import dashed, lines, on_the_right, shares, stat
from tools.dashboards.promql import gpus

_RUNNING: Final = 'on () max(ddp_worker_group_state{<job>, state="running"}) == 1'

TRAINING: Final = Row(
    "Is it training?",
    (
        stat(
            "State",
            "What the launchers of the job are doing. Several states at once: pods that do not agree yet.",
            Query("max by (state) (ddp_worker_group_state{<job>}) == 1", "{{state}}", now=True),
            unit="none",
            text="name",
            noValue="no pod",
            colours=colors.STATES,
            steps={None: "text"},
        ),
        stat(
            "Since the last step",
            "How long ago any rank has finished a step. DdpTrainingStalled fires at 10 minutes, unless told otherwise.",
            Query(f"time() - max(ddp_last_step_timestamp_seconds{{<job>}}) and {_RUNNING}", now=True),
            unit="s",
            steps={None: "green", 120: "orange", 600: "red"},
            noValue="not running",
            decimals=0,
        ),
        stat(
            "Progress",
            "Steps done of steps planned; empty where the script does not say how many there will be.",
            Query("max(ddp_step{<job>}) / max(ddp_steps_planned{<job>})", now=True),
            unit="percentunit",
            min=0,
            max=1,
            decimals=1,
        ),
        stat(
            "Time left",
            "Until the last planned step, at the speed of the last 5 minutes.",
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
            "Processes that exist, beside those that the group was formed of. Fewer: a rank has died and is not back.",
            Query("sum(ddp_rank_up{<job>})", "up", now=True),
            Query("max(ddp_world_size{<job>})", "in the group", now=True),
            unit="none",
        ),
        stat(
            "Alerts",
            "Alerts of this job that fire now; each is marked in red on the graphs and has a runbook.",
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
        lines(
            "Samples a second",
            "Is it slower than usual? The dashed line is the median of the last 6 hours.",
            Query("ddp_job:ddp_samples:rate5m{<job>}", "samples/s"),
            Query("quantile_over_time(0.5, ddp_job:ddp_samples:rate5m{<job>}[6h])", "median of 6 h"),
            unit="short",
            width=8,
            overrides=(dashed("median of 6 h"),),
        ),
        lines(
            "Tokens a second",
            "The same in tokens, where the script tells how many it has computed.",
            Query("ddp_job:ddp_tokens:rate5m{<job>}", "tokens/s"),
            unit="short",
            width=8,
        ),
        lines(
            "Use of the hardware",
            "Model FLOPs done of those that the devices could do (MFU), those done again for want of memory as well"
            " (HFU), and what DCGM says of the tensor cores. Empty where the script tells no FLOPs, or the peak of the"
            " device is not known.",
            Query("ddp_job:ddp_mfu:ratio5m{<job>}", "MFU"),
            Query(
                "ddp_job:ddp_mfu:ratio5m{<job>} * on () group_left () (1 + max(ddp_recomputed_flops_ratio{<job>}))",
                "HFU",
            ),
            Query(f"avg({gpus('DCGM_FI_PROF_PIPE_TENSOR_ACTIVE')})".replace("<rank>", "<job>"), "tensor cores"),
            unit="percentunit",
            width=8,
        ),
        lines(
            "Time of a step",
            "How even are the steps? A max far above p50 is an evaluation, a checkpoint or a rank that stumbles.",
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
        lines(
            "Steps",
            "Does the step go on? A fall is a restart: steps after the last checkpoint are done again.",
            Query("max(ddp_step{<job>})", "step"),
            Query("max(ddp_steps_planned{<job>})", "planned"),
            Query("max(ddp_epoch{<job>})", "epoch"),
            unit="short",
            overrides=(dashed("planned"), on_the_right("epoch", "none")),
        ),
    ),
)

WHY: Final = Row(
    "Why is it not faster?",
    (
        lines(
            "Where the time of a step goes",
            "Is it bound by data (orange), compute (blue, green) or the network (purple)? Shares over all ranks.",
            Query("ddp_job_phase:ddp_step_phase_seconds:ratio5m{<job>}", "{{phase}}"),
            unit="percentunit",
            is_stacked=True,
            max=1,
            colours=colors.PHASES,
        ),
        lines(
            "Time of a step by its parts",
            "Which part has grown? Seconds of a mean step of a mean rank.",
            Query(
                "sum by (phase) (rate(ddp_step_phase_seconds_total{<job>}[$__rate_interval]))"
                " / on () group_left () (sum(rate(ddp_steps_total{<job>}[$__rate_interval])) > 0)",
                "{{phase}}",
            ),
            unit="s",
            is_stacked=True,
            colours=colors.PHASES,
        ),
        lines(
            "Waiting for others",
            "Is it the network, or one slow rank? Share of the time in which ranks wait for gradients. The straggler"
            " tax is what would be gone if the slowest rank were like the middle one; the rest is the network.",
            Query("ddp_job:ddp_comm_exposed:ratio5m{<job>}", "waiting for gradients"),
            Query("ddp_job:ddp_straggler_tax:ratio5m{<job>}", "straggler tax"),
            unit="percentunit",
            colours={"waiting for gradients": "purple", "straggler tax": "red"},
        ),
        lines(
            "Waiting within a model",
            "What do ranks that share a model wait for? stage: the bubble of a pipeline. all_gather: weights, and"
            " reduce_scatter: gradients, of a sharded one; on GPUs of stages alone. Share of the time of steps.",
            Query(
                "sum by (operation) (rate(ddp_step_wait_seconds_total{<job>}[$__rate_interval]))"
                " / on () group_left () (sum(rate(ddp_step_phase_seconds_total{<job>}[$__rate_interval])) > 0)",
                "{{operation}}",
            ),
            unit="percentunit",
            is_stacked=True,
        ),
        shares(
            "Slowest ranks",
            "Who is waited for? How long a rank is busy itself in a step, over that of the middle rank. DdpStraggler"
            " fires from 1.15 on, unless told otherwise. A bar leads to its rank.",
            Query("topk(5, ddp_job_rank:ddp_straggler:ratio5m{<job>})", "rank {{rank}}", now=True),
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
    description="One training job, from the top down: is it training, how fast, why not faster, what was lost?",
    rows=(TRAINING, SPEED, WHY, WASTE, CRASH, LEARNING, MADE),
    variables=A_JOB,
    annotations=MARKS,
)
