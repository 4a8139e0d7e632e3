"""What a job has lost, and what it would lose now: rows of the dashboard of a job."""

from __future__ import annotations

from typing import Final

from tools.dashboards import colors
from tools.dashboards.panel import Query, Row
from tools.dashboards.panel_types import bars, lines, on_the_right, shares, stat, timeline
from tools.dashboards.promql import LOST, NOT_PRODUCTIVE, NOT_SUSPENDED, PRODUCTIVE, TIME, grown

WASTE: Final = Row(
    "What was lost?",
    (
        stat(
            "Goodput",
            "Share of the time shown, but for suspensions, that went into steps which were kept.",
            Query(
                f"({grown(TIME, '<job>', PRODUCTIVE)} - {grown(LOST, '<job>')})"
                f" / (sum{grown(TIME, '<job>', NOT_SUSPENDED, by='state')} > 0)",
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
            Query(f"sort_desc({grown(TIME, '<job>', NOT_PRODUCTIVE, by='state')} > 0)", "{{state}}", now=True),
            Query(grown(LOST, "<job>") + " > 0", "lost progress", now=True),
            unit="s",
            colours=colors.TIME,
        ),
        timeline(
            "State of the launchers",
            "When did it run, when did it wait? A row for each state; several at once are several pods.",
            Query("max by (state) (ddp_worker_group_state{<job>})", "{{state}}"),
            colours=colors.STATES,
        ),
        lines(
            "Goodput of the last hour",
            "When did it fall? DdpGoodputLow fires below 85 %, unless told otherwise.",
            Query("ddp_job:ddp_goodput:ratio1h{<job>}", "goodput"),
            unit="percentunit",
            width=6,
            max=1,
        ),
        bars(
            "Restarts by cause",
            "Why was the group formed anew?",
            Query("max by (cause) (increase(ddp_worker_restarts_total{<job>}[$__rate_interval])) > 0", "{{cause}}"),
            unit="none",
            width=6,
        ),
        bars(
            "Failures by reason",
            "What did ranks die of? `kubectl ddp logs --first-error` names the rank and its error.",
            Query("sum by (reason) (increase(ddp_worker_failures_total{<job>}[$__rate_interval])) > 0", "{{reason}}"),
            unit="none",
            width=6,
        ),
        lines(
            "World and rendezvous",
            "Did the world shrink, and what did it cost to form it again? Failed tries: pods did not reach the store.",
            Query("max(ddp_world_size{<job>})", "ranks"),
            Query(
                "sum(rate(ddp_rendezvous_duration_seconds_sum{<job>}[$__rate_interval]))"
                " / (sum(rate(ddp_rendezvous_duration_seconds_count{<job>}[$__rate_interval])) > 0)",
                "rendezvous",
            ),
            Query("sum(increase(ddp_rendezvous_failures_total{<job>}[$__rate_interval])) > 0", "failed tries"),
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
            "When was one due, and did it succeed? Skipped: the one before was still being written; save less often.",
            Query("sum by (result) (increase(ddp_checkpoint_saves_total{<job>}[$__rate_interval])) > 0", "{{result}}"),
            unit="none",
            colours={"success": "green", "failure": "red", "skipped": "orange"},
        ),
    ),
)
