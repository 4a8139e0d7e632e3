"""Fleet dashboard: all jobs of some namespaces, and what failures cost."""

from __future__ import annotations

from typing import Final

from tools.dashboards import colors
from tools.dashboards.choices import FLEET, NAMESPACES, to_job, to_ranks_of_job
from tools.dashboards.panel import Dashboard, Query, Row
from tools.dashboards.panel_types import bar_gauge, field_override, stacked_series, stat, table, time_series
from tools.dashboards.promql import BY_JOB, LOST, NOT_PRODUCTIVE, TIME, increase_of

_WORLD: Final = f"on ({BY_JOB}) group_left () max by ({BY_JOB}) (ddp_world_size{{<jobs>}})"
_RUNNING: Final = f'max by ({BY_JOB}) (ddp_worker_group_state{{<jobs>, state="running"}})'
_RESTARTS: Final = f"max by ({BY_JOB}, cause) (increase(ddp_worker_restarts_total{{<jobs>}}[$__range]))"
_WASTED: Final = f"{increase_of(TIME, '<jobs>', NOT_PRODUCTIVE, by=f'{BY_JOB}, state')} * {_WORLD} / 3600"
_WAITING: Final = f'max by ({BY_JOB}) (ddp_worker_group_state{{<jobs>, state=~"pending|rendezvous|starting"}})'
_FIRING: Final = '<jobs>, alertname=~"Ddp.+", alertstate="firing"'

NEEDY: Final = Row(
    "Which job needs attention?",
    (
        stat("Running jobs", "Jobs with at least one training pod.", Query(f"sum({_RUNNING})", now=True), unit="none"),
        stat(
            "Waiting jobs",
            "Jobs that have pods, but none of them trains: they start, or wait for other pods.",
            Query(f"sum({_WAITING} > bool {_RUNNING})", now=True),
            unit="none",
            steps={None: "green", 1: "orange"},
        ),
        stat("Ranks", "Live worker processes.", Query("sum(ddp_rank_up{<jobs>})", now=True), unit="none"),
        stat(
            "Missing pods",
            "Pods below the maximum of elastic jobs.",
            Query(
                f"sum(max by ({BY_JOB}) (ddp_nodes_desired{{<jobs>}}) - max by ({BY_JOB}) (ddp_nodes{{<jobs>}}))",
                now=True,
            ),
            unit="none",
            steps={None: "green", 1: "orange"},
        ),
        stat(
            "Restarts in range",
            "Number of times that worker groups re-formed.",
            Query(f"sum({_RESTARTS})", now=True),
            unit="none",
            decimals=0,
        ),
        stat(
            "Alerts",
            "Alerts that are firing.",
            Query(f"count(ALERTS{{{_FIRING}}})", now=True),
            unit="none",
            noValue="none",
            steps={None: "green", 1: "red"},
        ),
        table(
            "Jobs",
            "Which job is stalled, slow or without a recent checkpoint? Longest time without a step first. Click a "
            "job to open it.",
            Query(f"{_RUNNING}", table=True),
            Query(f"time() - max by ({BY_JOB}) (ddp_last_step_timestamp_seconds{{<jobs>}})", table=True),
            Query(
                f"max by ({BY_JOB}) (ddp_step{{<jobs>}}) / max by ({BY_JOB}) (ddp_steps_planned{{<jobs>}})", table=True
            ),
            Query(f"max by ({BY_JOB}) (ddp_job:ddp_samples:rate5m{{<jobs>}})", table=True),
            Query(f"max by ({BY_JOB}) (ddp_job:ddp_mfu:ratio5m{{<jobs>}})", table=True),
            Query(f"max by ({BY_JOB}) (ddp_job:ddp_goodput:ratio1h{{<jobs>}})", table=True),
            Query(f"max by ({BY_JOB}) (ddp_job:ddp_straggler_tax:ratio5m{{<jobs>}})", table=True),
            Query(f"max by ({BY_JOB}) (ddp_world_size{{<jobs>}})", table=True),
            Query(f"sum by ({BY_JOB}) ({_RESTARTS})", table=True),
            Query(f"time() - max by ({BY_JOB}) (ddp_checkpoint_last_success_timestamp_seconds{{<jobs>}})", table=True),
            Query(f"count by ({BY_JOB}) (ALERTS{{{_FIRING}}})", table=True),
            columns={
                "namespace": "Namespace",
                "ddp_job": "Job",
                "Value #A": "Runs",
                "Value #B": "Silent for",
                "Value #C": "Done",
                "Value #D": "Samples/s",
                "Value #E": "MFU",
                "Value #F": "Goodput",
                "Value #G": "Straggler tax",
                "Value #H": "Ranks",
                "Value #I": "Restarts",
                "Value #J": "Saved",
                "Value #K": "Alerts",
            },
            sort={"Alerts": True, "Silent for": True},
            overrides=(
                field_override("Job", links=[to_job(), to_ranks_of_job()]),
                field_override("Runs", steps={None: "orange", 1: "green"}),
                field_override("Silent for", unit="s", steps={None: "green", 120: "orange", 600: "red"}),
                field_override("Done", unit="percentunit"),
                field_override("Samples/s", unit="short"),
                field_override("MFU", unit="percentunit"),
                field_override("Goodput", unit="percentunit", steps={None: "red", 0.85: "orange", 0.95: "green"}),
                field_override("Straggler tax", unit="percentunit", steps={None: "text", 0.05: "orange", 0.15: "red"}),
                field_override("Restarts", unit="short"),
                field_override("Saved", unit="s"),
                field_override("Alerts", steps={None: "text", 1: "red"}),
            ),
        ),
        table(
            "Firing alerts",
            "What is wrong, where, and since when? Each alert has a runbook of the same name.",
            Query(f"max by (alertname, severity, {BY_JOB}, rank, pod) (ALERTS{{{_FIRING}}})", table=True),
            columns={
                "alertname": "Alert",
                "severity": "Severity",
                "namespace": "Namespace",
                "ddp_job": "Job",
                "rank": "Rank",
                "pod": "Pod",
            },
            sort={"Severity": False},
            overrides=(field_override("Job", links=[to_job(), to_ranks_of_job()]),),
            height=7,
        ),
    ),
)

COST: Final = Row(
    "What do failures cost?",
    (
        bar_gauge(
            "Unproductive rank hours",
            "Time of each job times its ranks, by cause, in the range. With one GPU per rank these are GPU hours.",
            Query(f"sort_desc(sum by (state) ({_WASTED}) > 0)", "{{state}}", now=True),
            Query(f"sum({increase_of(LOST, '<jobs>', by=BY_JOB)} * {_WORLD}) / 3600 > 0", "lost progress", now=True),
            unit="h",
            colours=colors.TIME,
        ),
        bar_gauge(
            "Unproductive rank hours by job",
            "Which job wastes most? Unproductive hours of its ranks in the selected range.",
            Query(f"topk(12, sum by ({BY_JOB}) ({_WASTED}) > 0)", "{{namespace}}/{{ddp_job}}", now=True),
            unit="h",
        ),
        stacked_series(
            "Restarts by cause",
            "Is it one job, or an incident that affected many jobs?",
            Query(
                f"sum by (cause) (max by ({BY_JOB}, cause)"
                " (increase(ddp_worker_restarts_total{<jobs>}[$__rate_interval]))) > 0",
                "{{cause}}",
            ),
            unit="none",
        ),
        stacked_series(
            "Failures by reason",
            "Why do workers fail?",
            Query("sum by (reason) (increase(ddp_worker_failures_total{<jobs>}[$__rate_interval])) > 0", "{{reason}}"),
            unit="none",
        ),
    ),
)

SPEED: Final = Row(
    "How fast?",
    (
        time_series(
            "Samples per second, by job",
            "Which job became slower?",
            Query("ddp_job:ddp_samples:rate5m{<jobs>}", "{{namespace}}/{{ddp_job}}"),
            unit="short",
        ),
        time_series(
            "Goodput of the last hour, by job",
            "Is one job affected, or all of them?",
            Query("ddp_job:ddp_goodput:ratio1h{<jobs>}", "{{namespace}}/{{ddp_job}}"),
            unit="percentunit",
            max=1,
        ),
        time_series(
            "Hardware utilization, by job",
            "Model FLOPs utilization (MFU): model FLOPs divided by the peak of the devices.",
            Query("ddp_job:ddp_mfu:ratio5m{<jobs>}", "{{namespace}}/{{ddp_job}}"),
            unit="percentunit",
        ),
        time_series(
            "Ranks, by job",
            "Which jobs use the cluster?",
            Query(f"max by ({BY_JOB}) (ddp_world_size{{<jobs>}})", "{{namespace}}/{{ddp_job}}"),
            unit="none",
            is_stacked=True,
        ),
    ),
)

BELIEF: Final = Row(
    "Are the metrics complete?",
    (
        stat(
            "Exporters",
            "Pods that serve metrics, by version. Several versions mean that an upgrade is in progress.",
            Query("count by (version) (ddp_build_info{<jobs>})", "{{version}}", now=True),
            unit="none",
            width=6,
        ),
        stat(
            "Dead launchers",
            "Pods whose exporter responds while their launcher has exited.",
            Query("sum(ddp_agent_up{<jobs>} == bool 0)", now=True),
            unit="none",
            steps={None: "green", 1: "red"},
            width=6,
        ),
        stat(
            "Unreadable boards",
            "Ranks whose metrics are damaged or have another version. They are missing here.",
            Query("sum(ddp_exporter_stale_boards{<jobs>})", now=True),
            unit="none",
            steps={None: "green", 1: "orange"},
            width=6,
        ),
        stat(
            "Scrape duration",
            "Mean time of the exporter for one scrape.",
            Query(
                "sum(rate(ddp_exporter_scrape_seconds_total{<jobs>}[$__rate_interval]))"
                " / (sum(rate(ddp_exporter_scrapes_total{<jobs>}[$__rate_interval])) > 0)",
                now=True,
            ),
            unit="s",
            width=6,
        ),
    ),
    collapsed=True,
)

DASHBOARD: Final = Dashboard(
    uid=FLEET,
    title="Training: fleet",
    description="All jobs: which need attention, what failures cost, and whether the metrics are complete.",
    rows=(NEEDY, COST, SPEED, BELIEF),
    variables=NAMESPACES,
)
