"""Ranks dashboard: which rank is slow, stalled or short of a resource, and where it runs."""

from __future__ import annotations

from typing import Final

from tools.dashboards.choices import A_JOB, MARKS, RANKS, SOME_RANKS, to_rank
from tools.dashboards.devices import DRIVER, GPU, HOST, SILICON
from tools.dashboards.panel import Dashboard, Query, Row
from tools.dashboards.panel_types import bar_gauge, field_override, status_history, table, time_series
from tools.dashboards.promql import topk_at_end

_POD: Final = "pod, node"
_PLACE: Final = "rank, pod, node"
_PHASES: Final = "sum by (rank, phase) (rate(ddp_step_phase_seconds_total{%s}[5m]))"

_STRAGGLER: Final = "ddp_job_rank:ddp_straggler:ratio5m"
_ENQUEUED: Final = "ddp_collective_last_enqueued_sequence"
_BEGUN: Final = f"max by (process_group, {_PLACE}) ({_ENQUEUED}{{<rank>}})"
_AHEAD: Final = f"max by (process_group) ({_ENQUEUED}{{<job>}})"
_BEHIND: Final = f"topk(50, ({_AHEAD} > 0) - on (process_group) group_right () {_BEGUN})"
_THOSE_BEHIND: Final = f"and on (process_group, {_PLACE}) {_BEHIND}"


def _with_labels(expression: str) -> str:
    """Return a query of each rank, with the labels of where it runs."""
    return (
        f"({expression}) * on (namespace, ddp_job, rank) group_left (pod, node, device_name, gpu_uuid)"
        " topk by (namespace, ddp_job, rank) (1, ddp_rank_info{<job>})"
    )


SLOW: Final = Row(
    "Which rank is slow?",
    (
        table(
            "Stragglers",
            "Which rank do the others wait for, and where does it run? Own time of a rank in a step, divided by that "
            "of the median rank. Under DDP all ranks have the same step time, so compare their own time.",
            Query(_with_labels(f"topk(20, {_STRAGGLER}{{<rank>}})"), table=True),
            Query(
                _with_labels(f"ddp_job_rank:ddp_busy_seconds:mean5m{{<rank>}} and topk(20, {_STRAGGLER}{{<rank>}})"),
                table=True,
            ),
            columns={
                "rank": "Rank",
                "Value #A": "Against the median rank",
                "Value #B": "Busy in a step",
                "pod": "Pod",
                "node": "Node",
                "device_name": "Device",
                "gpu_uuid": "GPU",
            },
            sort={"Against the median rank": True},
            overrides=(
                field_override("Rank", links=[to_rank("${__value.raw}")]),
                field_override(
                    "Against the median rank", unit="short", steps={None: "green", 1.15: "orange", 1.5: "red"}
                ),
                field_override("Busy in a step", unit="s"),
            ),
        ),
        status_history(
            "Own time against the median rank",
            "Is it always the same rank, all ranks of one node, or changing ranks? The 24 slowest.",
            Query(
                f"max by (rank) ({_STRAGGLER}{{<rank>}}) and on (rank)"
                f" topk(24, max by (rank) (max_over_time({_STRAGGLER}{{<rank>}}[$__range] @ end())))",
                "rank {{rank}}",
            ),
            unit="none",
            decimals=2,
            steps={None: "green", 1.05: "light-yellow", 1.15: "orange", 1.5: "red"},
        ),
        bar_gauge(
            "Phases of a step, against the median of all ranks",
            "Which phase makes a rank slow? 2 is twice the median of all ranks. The rank that others wait for has "
            "little comm_exposed, because it arrives last.",
            Query(
                f"topk(16, {_PHASES % '<rank>'} / on (phase) group_left ()"
                f" (quantile by (phase) (0.5, {_PHASES % '<job>'}) > 0))",
                "rank {{rank}}: {{phase}}",
                now=True,
            ),
            unit="none",
            decimals=2,
            steps={None: "green", 1.15: "orange", 1.5: "red"},
            links=[to_rank("${__field.labels.rank}")],
        ),
        time_series(
            "Steps per second, by rank",
            "Do all ranks make the same number of steps? Under DDP they must, except with --strategy local-sgd.",
            Query(topk_at_end("max by (rank) (rate(ddp_steps_total{<rank>}[$__rate_interval]<at>))"), "rank {{rank}}"),
            unit="none",
        ),
    ),
)

SILENT: Final = Row(
    "Which rank is stalled, and where is it?",
    (
        table(
            "Ranks",
            "Where does each rank run, and when was its last step? Longest time without a step first. Stopped: "
            "SIGSTOP, a debugger, or a disk or driver that does not respond.",
            Query(f"max by ({_PLACE}, local_rank, node_rank, backend, device) (ddp_rank_info{{<rank>}})", table=True),
            Query(f"max by ({_PLACE}) (ddp_rank_up{{<rank>}})", table=True),
            Query(f"max by ({_PLACE}) (ddp_rank_stopped{{<rank>}})", table=True),
            Query(f"time() - max by ({_PLACE}) (ddp_last_step_timestamp_seconds{{<rank>}})", table=True),
            Query(f"max by ({_PLACE}) (ddp_step{{<rank>}})", table=True),
            Query(f"time() - max by ({_PLACE}) (ddp_rank_start_time_seconds{{<rank>}})", table=True),
            Query(f"max by ({_PLACE}) (ddp_rank_pid{{<rank>}})", table=True),
            columns={
                "rank": "Rank",
                "pod": "Pod",
                "node": "Node",
                "local_rank": "Local rank",
                "device": "Device",
                "Value #B": "Up",
                "Value #C": "Stopped",
                "Value #D": "Silent for",
                "Value #E": "Step",
                "Value #F": "Age",
                "Value #G": "Process",
            },
            sort={"Silent for": True},
            overrides=(
                field_override("Rank", links=[to_rank("${__value.raw}")]),
                field_override("Up", steps={None: "red", 1: "green"}),
                field_override("Stopped", steps={None: "text", 1: "red"}),
                field_override("Silent for", unit="s", steps={None: "green", 120: "orange", 600: "red"}),
                field_override("Age", unit="s"),
            ),
        ),
        table(
            "Pods",
            "Is it the pod? Launcher 0: the launcher is dead, so nothing restarts its ranks. Unreadable: boards of "
            "ranks whose metrics cannot be read.",
            Query(f"max by ({_POD}) (ddp_first_rank{{<job>}})", table=True),
            Query(f"max by ({_POD}) (ddp_agent_up{{<job>}})", table=True),
            Query(f'max by ({_POD}) (ddp_worker_group_state{{<job>, state="running"}})', table=True),
            Query(f"max by ({_POD}) (ddp_exporter_stale_boards{{<job>}})", table=True),
            Query(f"max by ({_POD}) (ddp_shm_used_bytes{{<job>}} / ddp_shm_size_bytes{{<job>}})", table=True),
            columns={
                "pod": "Pod",
                "node": "Node",
                "Value #A": "First rank",
                "Value #B": "Launcher",
                "Value #C": "Runs",
                "Value #D": "Unreadable",
                "Value #E": "Shared",
            },
            sort={"First rank": False},
            overrides=(
                field_override("Launcher", steps={None: "red", 1: "green"}),
                field_override("Runs", steps={None: "orange", 1: "green"}),
                field_override("Unreadable", steps={None: "text", 1: "orange"}),
                field_override("Shared", unit="percentunit", steps={None: "text", 0.9: "red"}),
            ),
            width=12,
        ),
        table(
            "Position in collectives",
            "In a hang: which rank did not enter the collective that the others wait in? `kubectl ddp hang` shows its "
            "stack. The 50 ranks that are furthest behind.",
            Query(_BEHIND, table=True),
            Query(f"{_BEGUN} {_THOSE_BEHIND}", table=True),
            Query(
                f"max by (process_group, {_PLACE}) (ddp_collective_last_completed_sequence{{<rank>}}) {_THOSE_BEHIND}",
                table=True,
            ),
            columns={
                "process_group": "Group",
                "rank": "Rank",
                "pod": "Pod",
                "node": "Node",
                "Value #A": "Behind",
                "Value #B": "Begun",
                "Value #C": "Completed",
            },
            sort={"Behind": True},
            overrides=(
                field_override("Rank", links=[to_rank("${__value.raw}")]),
                field_override("Behind", steps={None: "green", 1: "orange", 10: "red"}),
            ),
            width=12,
        ),
    ),
)

DASHBOARD: Final = Dashboard(
    uid=RANKS,
    title="Training: ranks",
    description="The ranks of one job: which is slow, which is stalled, where it runs, and which resource it lacks.",
    rows=(SLOW, SILENT, HOST, GPU, DRIVER, SILICON),
    variables=(*A_JOB, SOME_RANKS),
    annotations=MARKS,
)
