"""Fleet: all jobs of some namespaces. Which needs a person, and what does unreliability cost?"""

from __future__ import annotations

from typing import Final

from tools.dashboards import colors
from tools.dashboards.choices import FLEET, NAMESPACES, to_job, to_ranks_of_job
from tools.dashboards.panel import Dashboard, Query, Row
from tools.dashboards.panel_types import bars, column, lines, shares, stat, table
from tools.dashboards.promql import BY_JOB, LOST, NOT_PRODUCTIVE, TIME, grown

_WORLD: Final = f"on ({BY_JOB}) group_left () max by ({BY_JOB}) (ddp_world_size{{<jobs>}})"
_RUNNING: Final = f'max by ({BY_JOB}) (ddp_worker_group_state{{<jobs>, state="running"}})'
_RESTARTS: Final = f"max by ({BY_JOB}, cause) (increase(ddp_worker_restarts_total{{<jobs>}}[$__range]))"
_WASTED: Final = f"{grown(TIME, '<jobs>', NOT_PRODUCTIVE, by=f'{BY_JOB}, state')} * {_WORLD} / 3600"
_WAITING: Final = f'max by ({BY_JOB}) (ddp_worker_group_state{{<jobs>, state=~"pending|rendezvous|starting"}})'
_OURS: Final = '<jobs>, alertname=~"Ddp.+", alertstate="firing"'

NEEDY: Final = Row(
    "Which job needs a person?",
    (
        stat("Jobs that run", "Jobs of which a pod trains.", Query(f"sum({_RUNNING})", now=True), unit="none"),
        stat(
            "Jobs that wait",
            "Jobs that hold machines, wait for others or start, and train on none.",
            Query(f"sum({_WAITING} > bool {_RUNNING})", now=True),
            unit="none",
            steps={None: "green", 1: "orange"},
        ),
        stat("Ranks", "Processes that exist.", Query("sum(ddp_rank_up{<jobs>})", now=True), unit="none"),
        stat(
            "Nodes that are missing",
            "Nodes that elastic jobs could have and do not.",
            Query(
                f"sum(max by ({BY_JOB}) (ddp_nodes_desired{{<jobs>}}) - max by ({BY_JOB}) (ddp_nodes{{<jobs>}}))",
                now=True,
            ),
            unit="none",
            steps={None: "green", 1: "orange"},
        ),
        stat(
            "Restarts, in the time shown",
            "Times that groups were formed anew.",
            Query(f"sum({_RESTARTS})", now=True),
            unit="none",
            decimals=0,
        ),
        stat(
            "Alerts",
            "Alerts that fire now.",
            Query(f"count(ALERTS{{{_OURS}}})", now=True),
            unit="none",
            noValue="none",
            steps={None: "green", 1: "red"},
        ),
        table(
            "Jobs",
            "Which job stands, is slow or unprotected? The longest silence first; a job's name leads to it.",
            Query(f"{_RUNNING}", table=True),
            Query(f"time() - max by ({BY_JOB}) (ddp_last_step_timestamp_seconds{{<jobs>}})", table=True),
            Query(
                f"max by ({BY_JOB}) (ddp_step{{<jobs>}}) / max by ({BY_JOB}) (ddp_steps_planned{{<jobs>}})", table=True
            ),
            Query("ddp_job:ddp_samples:rate5m{<jobs>}", table=True),
            Query("ddp_job:ddp_mfu:ratio5m{<jobs>}", table=True),
            Query("ddp_job:ddp_goodput:ratio1h{<jobs>}", table=True),
            Query("ddp_job:ddp_straggler_tax:ratio5m{<jobs>}", table=True),
            Query(f"max by ({BY_JOB}) (ddp_world_size{{<jobs>}})", table=True),
            Query(f"sum by ({BY_JOB}) ({_RESTARTS})", table=True),
            Query(f"time() - max by ({BY_JOB}) (ddp_checkpoint_last_success_timestamp_seconds{{<jobs>}})", table=True),
            Query(f"count by ({BY_JOB}) (ALERTS{{{_OURS}}})", table=True),
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
                "Value #J": "Checkpoint age",
                "Value #K": "Alerts",
            },
            sort={"Alerts": True, "Silent for": True},
            overrides=(
                column("Job", links=[to_job(), to_ranks_of_job()]),
                column("Runs", steps={None: "orange", 1: "green"}),
                column("Silent for", unit="s", steps={None: "green", 120: "orange", 600: "red"}),
                column("Done", unit="percentunit"),
                column("Samples/s", unit="short"),
                column("MFU", unit="percentunit"),
                column("Goodput", unit="percentunit", steps={None: "red", 0.85: "orange", 0.95: "green"}),
                column("Straggler tax", unit="percentunit", steps={None: "text", 0.05: "orange", 0.15: "red"}),
                column("Restarts", unit="short"),
                column("Checkpoint age", unit="s"),
                column("Alerts", steps={None: "text", 1: "red"}),
            ),
        ),
        table(
            "Alerts that fire",
            "What is wrong where, and since when is it known? Runbooks are named as the alerts.",
            Query(f"max by (alertname, severity, {BY_JOB}, rank, pod) (ALERTS{{{_OURS}}})", table=True),
            columns={
                "alertname": "Alert",
                "severity": "Severity",
                "namespace": "Namespace",
                "ddp_job": "Job",
                "rank": "Rank",
                "pod": "Pod",
            },
            sort={"Severity": False},
            overrides=(column("Job", links=[to_job(), to_ranks_of_job()]),),
            height=7,
        ),
    ),
)

COST: Final = Row(
    "What does unreliability cost?",
    (
        shares(
            "Hours of ranks that trained nothing",
            "By cause, in the time shown: the time of each job times its ranks. With a GPU each, these are GPU hours.",
            Query(f"sort_desc(sum by (state) ({_WASTED}) > 0)", "{{state}}", now=True),
            Query(f"sum({grown(LOST, '<jobs>', by=BY_JOB)} * {_WORLD}) / 3600 > 0", "lost progress", now=True),
            unit="h",
            colours=colors.TIME,
        ),
        shares(
            "Lost to each job",
            "Which job wastes most? Hours of its ranks that trained nothing, in the time shown.",
            Query(f"topk(12, sum by ({BY_JOB}) ({_WASTED}) > 0)", "{{namespace}}/{{ddp_job}}", now=True),
            unit="h",
        ),
        bars(
            "Restarts by cause",
            "Is it one job, or did something happen to all of them at once?",
            Query(
                f"sum by (cause) (max by ({BY_JOB}, cause)"
                " (increase(ddp_worker_restarts_total{<jobs>}[$__rate_interval]))) > 0",
                "{{cause}}",
            ),
            unit="none",
        ),
        bars(
            "Failures by reason",
            "What do ranks die of?",
            Query("sum by (reason) (increase(ddp_worker_failures_total{<jobs>}[$__rate_interval])) > 0", "{{reason}}"),
            unit="none",
        ),
    ),
)

SPEED: Final = Row(
    "How fast?",
    (
        lines(
            "Samples a second, by job",
            "Which job has become slower?",
            Query("ddp_job:ddp_samples:rate5m{<jobs>}", "{{namespace}}/{{ddp_job}}"),
            unit="short",
        ),
        lines(
            "Goodput of the last hour, by job",
            "Is it one job that suffers, or all at once?",
            Query("ddp_job:ddp_goodput:ratio1h{<jobs>}", "{{namespace}}/{{ddp_job}}"),
            unit="percentunit",
            max=1,
        ),
        lines(
            "Use of the hardware, by job",
            "Model FLOPs done of those that the devices could do (MFU).",
            Query("ddp_job:ddp_mfu:ratio5m{<jobs>}", "{{namespace}}/{{ddp_job}}"),
            unit="percentunit",
        ),
        lines(
            "Ranks, by job",
            "Who has the machines?",
            Query(f"max by ({BY_JOB}) (ddp_world_size{{<jobs>}})", "{{namespace}}/{{ddp_job}}"),
            unit="none",
            is_stacked=True,
        ),
    ),
)

BELIEF: Final = Row(
    "Can the numbers be believed?",
    (
        stat(
            "Exporters",
            "Pods that serve metrics, by version; several are an upgrade that is under way.",
            Query("count by (version) (ddp_build_info{<jobs>})", "{{version}}", now=True),
            unit="none",
            width=6,
        ),
        stat(
            "Launchers that are gone",
            "Pods whose exporter answers and whose launcher has ended.",
            Query("sum(ddp_agent_up{<jobs>} == bool 0)", now=True),
            unit="none",
            steps={None: "green", 1: "red"},
            width=6,
        ),
        stat(
            "Boards left out",
            "Ranks whose metrics are damaged or of another version, and so are not here.",
            Query("sum(ddp_exporter_stale_boards{<jobs>})", now=True),
            unit="none",
            steps={None: "green", 1: "orange"},
            width=6,
        ),
        stat(
            "Time for an answer",
            "What the exporter takes for one scrape, on average.",
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
    description="All jobs: which needs a person, what unreliability costs, and whether the numbers can be believed.",
    rows=(NEEDY, COST, SPEED, BELIEF),
    variables=NAMESPACES,
)
