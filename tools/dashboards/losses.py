"""Rows about lost time and checkpoints of the dashboard of a job."""

from __future__ import annotations

from typing import Final

from tools.dashboards import colors
from tools.dashboards.panel import Query, Row
from tools.dashboards.panel_types import bar_gauge, on_the_right, stacked_series, stat, state_timeline, time_series
from tools.dashboards.promql import LOST, NOT_PRODUCTIVE, NOT_SUSPENDED, PRODUCTIVE, TIME, increase_of

WASTE: Final = Row(
    "What was lost?",
    (
        stat(
            "Goodput",
            "Share of the selected range spent on steps that were kept. Suspended time is excluded.",
            Query(
                f"({increase_of(TIME, '<job>', PRODUCTIVE)} - {increase_of(LOST, '<job>')})"
                f" / (sum{increase_of(TIME, '<job>', NOT_SUSPENDED, by='state')} > 0)",
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
            "Time of steps that were lost because no checkpoint contained them, in the selected range.",
            Query(increase_of(LOST, "<job>"), "time", now=True),
            unit="s",
        ),
        stat(
            "Lost steps",
            "Steps that were repeated, in the selected range.",
            Query(increase_of("ddp_lost_steps_total", "<job>"), now=True),
            unit="short",
        ),
        stat(
            "Restarts left",
            "Remaining restart budget. At 0, the next failure ends the job.",
            Query("min(ddp_restarts_remaining{<job>})", now=True),
            unit="none",
            steps={None: "red", 1: "orange", 2: "green"},
            noValue="no limit",
        ),
        stat(
            "Nodes",
            "Nodes in the worker group, and the maximum of an elastic job.",
            Query("max(ddp_nodes{<job>})", "in the group", now=True),
            Query("max(ddp_nodes_desired{<job>})", "at most", now=True),
            unit="none",
        ),
        stat(
            "Last rendezvous",
            "Duration of the latest rendezvous.",
            Query("max(ddp_rendezvous_last_duration_seconds{<job>})", now=True),
            unit="s",
            steps={None: "green", 60: "orange", 600: "red"},
        ),
        bar_gauge(
            "Unproductive time",
            "What was the rest of the range spent on? Lost progress is the time of steps that had to be repeated.",
            Query(f"sort_desc({increase_of(TIME, '<job>', NOT_PRODUCTIVE, by='state')} > 0)", "{{state}}", now=True),
            Query(increase_of(LOST, "<job>") + " > 0", "lost progress", now=True),
            unit="s",
            colours=colors.TIME,
        ),
        state_timeline(
            "State of the launchers",
            "When did the job run, and when did it wait? One row per state. Overlapping states belong to different "
            "pods.",
            Query("max by (state) (ddp_worker_group_state{<job>})", "{{state}}"),
            colours=colors.STATES,
        ),
        time_series(
            "Goodput of the last hour",
            "When did it drop? DdpGoodputLow fires below 85 % by default.",
            Query("ddp_job:ddp_goodput:ratio1h{<job>}", "goodput"),
            unit="percentunit",
            width=6,
            max=1,
        ),
        stacked_series(
            "Restarts by cause",
            "Why did the worker group re-form?",
            Query("max by (cause) (increase(ddp_worker_restarts_total{<job>}[$__rate_interval])) > 0", "{{cause}}"),
            unit="none",
            width=6,
        ),
        stacked_series(
            "Failures by reason",
            "Why did workers fail? `kubectl ddp logs --first-error` prints the rank and its error.",
            Query("sum by (reason) (increase(ddp_worker_failures_total{<job>}[$__rate_interval])) > 0", "{{reason}}"),
            unit="none",
            width=6,
        ),
        time_series(
            "World size and rendezvous",
            "Did the world size shrink, and how long did each rendezvous take? Failed attempts: pods did not reach "
            "the store.",
            Query("max(ddp_world_size{<job>})", "ranks"),
            Query(
                "sum(rate(ddp_rendezvous_duration_seconds_sum{<job>}[$__rate_interval]))"
                " / (sum(rate(ddp_rendezvous_duration_seconds_count{<job>}[$__rate_interval])) > 0)",
                "rendezvous",
            ),
            Query("sum(increase(ddp_rendezvous_failures_total{<job>}[$__rate_interval])) > 0", "failed attempts"),
            unit="none",
            width=6,
            overrides=(on_the_right("rendezvous", "s"),),
        ),
    ),
)

CRASH: Final = Row(
    "What would a crash cost now?",
    (
        stat(
            "Age of the last checkpoint",
            "A crash loses all work since then.",
            Query("time() - max(ddp_checkpoint_last_success_timestamp_seconds{<job>})", now=True),
            unit="s",
            decimals=0,
            noValue="none yet",
        ),
        stat(
            "Age, in intervals",
            "How many checkpoints were due since the last successful one? From 3 on, check why they fail.",
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
            "Checkpoint step",
            "Step from which a restart resumes.",
            Query("max(ddp_checkpoint_last_step{<job>})", now=True),
            unit="none",
        ),
        stat(
            "Size",
            "Size of one checkpoint on the volume.",
            Query("max(ddp_checkpoint_size_bytes{<job>})", now=True),
            unit="bytes",
        ),
        stat(
            "Failed in a row",
            "Saves that failed since the last one that succeeded, for example because the volume is full or lost.",
            Query("max(ddp_checkpoint_consecutive_failures{<job>})", now=True),
            unit="none",
            decimals=0,
            noValue="0",
            steps={None: "green", 1: "orange", 3: "red"},
        ),
        stat(
            "Loading, in range",
            "Time that restarts spent on reading checkpoints.",
            Query("max(increase(ddp_checkpoint_load_seconds_total{<job>}[$__range]))", now=True),
            unit="s",
        ),
        time_series(
            "Share of time spent saving",
            "How much time do checkpoints take, and for how much of it is training blocked?",
            Query("max(rate(ddp_checkpoint_save_seconds_total{<job>}[$__rate_interval]))", "saving"),
            Query("max(rate(ddp_checkpoint_blocking_seconds_total{<job>}[$__rate_interval]))", "standing still"),
            unit="percentunit",
            colours={"standing still": "red"},
        ),
        stacked_series(
            "Checkpoints",
            "When was a checkpoint due, and did it succeed? Skipped: the previous one was still being written. Save "
            "less often.",
            Query("sum by (result) (increase(ddp_checkpoint_saves_total{<job>}[$__rate_interval])) > 0", "{{result}}"),
            unit="none",
            colours={"success": "green", "failure": "red", "skipped": "orange"},
        ),
    ),
)
