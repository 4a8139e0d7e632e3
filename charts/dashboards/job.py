"""Job: one job from the top down, as somebody on call asks. Is it training, how fast, why, what was lost?"""

from __future__ import annotations

from typing import Final

from charts.dashboards import palette
from charts.dashboards.choices import A_JOB, JOB, MARKS
from charts.dashboards.kinds import bars, dashed, lines, on_the_right, shares, stat, timeline
from charts.dashboards.panel import Dashboard, Query, Row
from charts.dashboards.promql import LOST, NOT_PRODUCTIVE, PRODUCTIVE, TIME, grown

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
            colours=palette.STATES,
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
            overrides=(dashed("median of 6 h"),),
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
            stacked="normal",
            max=1,
            colours=palette.PHASES,
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
            stacked="normal",
            colours=palette.PHASES,
        ),
    ),
)

WASTE: Final = Row(
    "What was lost?",
    (
        stat(
            "Goodput",
            "Share of the time shown that went into steps which were kept.",
            Query(
                f"({grown(TIME, '<job>', PRODUCTIVE)} - {grown(LOST, '<job>')})"
                f" / (sum{grown(TIME, '<job>', by='state')} > 0)",
                now=True,
            ),
            unit="percentunit",
            steps={None: "red", 0.85: "orange", 0.95: "green"},
            min=0,
            max=1,
            decimals=1,
        ),
        stat(
            "Lost progress",
            "Time of steps that no checkpoint held when a restart came, within the time shown.",
            Query(grown(LOST, "<job>"), "time", now=True),
            unit="s",
        ),
        stat(
            "Lost steps",
            "Steps that were done twice, within the time shown.",
            Query(grown("ddp_lost_steps_total", "<job>"), now=True),
            unit="short",
        ),
        stat(
            "Restarts left",
            "What is left of the restart budget; after it the next failure ends the job.",
            Query("min(ddp_restarts_remaining{<job>})", now=True),
            unit="none",
            steps={None: "red", 1: "orange", 2: "green"},
            noValue="no limit",
        ),
        stat(
            "Nodes",
            "Nodes in the group, beside those that an elastic job may have.",
            Query("max(ddp_nodes{<job>})", "in the group", now=True),
            Query("max(ddp_nodes_desired{<job>})", "at most", now=True),
            unit="none",
        ),
        stat(
            "Last rendezvous",
            "How long the pods took to find one another the last time.",
            Query("max(ddp_rendezvous_last_duration_seconds{<job>})", now=True),
            unit="s",
            steps={None: "green", 60: "orange", 600: "red"},
        ),
        shares(
            "Time that trained nothing",
            "Where did the rest of the time shown go? Lost progress is time that was productive, and in vain.",
            Query(grown(TIME, "<job>", NOT_PRODUCTIVE, by="state") + " > 0", "{{state}}", now=True),
            Query(grown(LOST, "<job>") + " > 0", "lost progress", now=True),
            unit="s",
            colours=palette.TIME,
        ),
        timeline(
            "State of the launchers",
            "When did it run, when did it wait? A row for each state; several at once are several pods.",
            Query("max by (state) (ddp_worker_group_state{<job>})", "{{state}}"),
            colours=palette.STATES,
        ),
        bars(
            "Restarts by cause",
            "Why was the group formed anew?",
            Query("max by (cause) (increase(ddp_worker_restarts_total{<job>}[$__rate_interval])) > 0", "{{cause}}"),
            unit="none",
            width=8,
        ),
        bars(
            "Failures by reason",
            "What did ranks die of? `kubectl ddp logs --first-error` names the rank and its error.",
            Query("sum by (reason) (increase(ddp_worker_failures_total{<job>}[$__rate_interval])) > 0", "{{reason}}"),
            unit="none",
            width=8,
        ),
        lines(
            "World and rendezvous",
            "Did the world shrink, and what did it cost to form it again?",
            Query("max(ddp_world_size{<job>})", "ranks"),
            Query(
                "sum(rate(ddp_rendezvous_duration_seconds_sum{<job>}[$__rate_interval]))"
                " / (sum(rate(ddp_rendezvous_duration_seconds_count{<job>}[$__rate_interval])) > 0)",
                "rendezvous",
            ),
            unit="none",
            width=8,
            overrides=(on_the_right("rendezvous", "s"),),
        ),
    ),
)

CRASH: Final = Row(
    "What would a crash cost now?",
    (
        stat(
            "Age of the last checkpoint",
            "All work since then is lost with a crash.",
            Query("time() - max(ddp_checkpoint_last_success_timestamp_seconds{<job>})", now=True),
            unit="s",
            decimals=0,
            noValue="none yet",
        ),
        stat(
            "Age, in intervals",
            "How many checkpoints should there have been since the last good one? From 3 on something is wrong.",
            Query(
                "(time() - max(ddp_checkpoint_last_success_timestamp_seconds{<job>}))"
                " / (max(ddp_checkpoint_interval_seconds{<job>}) > 0)",
                now=True,
            ),
            unit="none",
            decimals=1,
            steps={None: "green", 2: "orange", 3: "red"},
        ),
        stat(
            "Step in it",
            "Where a restart goes on.",
            Query("max(ddp_checkpoint_last_step{<job>})", now=True),
            unit="none",
        ),
        stat(
            "Size",
            "What the volume must hold, for each checkpoint that is kept.",
            Query("max(ddp_checkpoint_size_bytes{<job>})", now=True),
            unit="bytes",
        ),
        stat(
            "Failed, in the time shown",
            "Checkpoints that could not be written: full disk, slow store, lost volume.",
            Query('sum(increase(ddp_checkpoint_saves_total{<job>, result="failure"}[$__range]))', now=True),
            unit="none",
            decimals=0,
            steps={None: "green", 1: "red"},
        ),
        stat(
            "Loading, in the time shown",
            "What restarts have cost by reading checkpoints.",
            Query("max(increase(ddp_checkpoint_load_seconds_total{<job>}[$__range]))", now=True),
            unit="s",
        ),
        lines(
            "Share of time spent saving",
            "How much of the time goes into checkpoints, and for how much of it does training stand still?",
            Query("max(rate(ddp_checkpoint_save_seconds_total{<job>}[$__rate_interval]))", "saving"),
            Query("max(rate(ddp_checkpoint_blocking_seconds_total{<job>}[$__rate_interval]))", "standing still"),
            unit="percentunit",
            colours={"standing still": "red"},
        ),
        bars(
            "Checkpoints",
            "When was one written, and did it succeed?",
            Query("sum by (result) (increase(ddp_checkpoint_saves_total{<job>}[$__rate_interval])) > 0", "{{result}}"),
            unit="none",
            colours={"success": "green", "failure": "red"},
        ),
    ),
)

LEARNING: Final = Row(
    "Is it learning?",
    (
        lines(
            "Loss",
            "Does it fall? A gap is a loss that is not a number.",
            Query("max(ddp_loss{<job>})", "training"),
            Query("max(ddp_eval_loss{<job>})", "evaluation"),
            unit="short",
            from_data=True,
        ),
        lines(
            "Accuracy",
            "Share of the samples that the last evaluation found classified rightly.",
            Query("max(ddp_eval_accuracy_ratio{<job>})", "accuracy"),
            unit="percentunit",
            width=6,
            max=1,
        ),
        lines(
            "Learning rate",
            "Is the schedule the one that was meant, after a restart, too?",
            Query("max(ddp_learning_rate{<job>})", "learning rate"),
            unit="sci",
            width=6,
        ),
        bars(
            "Steps without an effect",
            "Were samples used up without moving the weights, since loss or gradient was not finite?",
            Query("max(increase(ddp_skipped_steps_total{<job>}[$__rate_interval])) > 0", "skipped"),
            unit="none",
        ),
    ),
)

DASHBOARD: Final = Dashboard(
    uid=JOB,
    title="Training: job",
    description="One training job, from the top down: is it training, how fast, why not faster, what was lost?",
    rows=(TRAINING, SPEED, WHY, WASTE, CRASH, LEARNING),
    variables=A_JOB,
    annotations=MARKS,
)
