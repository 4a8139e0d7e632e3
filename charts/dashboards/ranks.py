"""Ranks: which rank of a job is slow, silent or short of something, and where it runs."""

from __future__ import annotations

from typing import Final

from charts.dashboards.choices import A_JOB, MARKS, RANKS, SOME_RANKS, to_rank
from charts.dashboards.kinds import bars, column, dashed, lines, shares, table
from charts.dashboards.panel import Dashboard, Query, Row
from charts.dashboards.promql import among_most

_PLACE: Final = "rank, pod, node"
_PHASES: Final = "sum by (rank, phase) (rate(ddp_step_phase_seconds_total{%s}[5m]))"

SLOW: Final = Row(
    "Who is slow?",
    (
        shares(
            "Parts of a step, against the median of all ranks",
            "Which part makes which rank slow? 2 is twice the median of all ranks. The rank that others wait for is low"
            " in comm_exposed: it comes last.",
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
        lines(
            "Steps a second, by rank",
            "Do all ranks step alike? Under DDP they must, unless ranks train alone for a while.",
            Query(
                among_most("max by (rank) (rate(ddp_steps_total{<rank>}[$__rate_interval]<at>))"),
                "rank {{rank}}",
            ),
            unit="none",
        ),
    ),
)

SILENT: Final = Row(
    "Who is silent, and where is it?",
    (
        table(
            "Ranks",
            "Where does each rank run, and when did it step last? Sorted by silence. Stopped: SIGSTOP, a debugger, or a"
            " disk or driver that does not answer.",
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
                column("Rank", links=[to_rank("${__value.raw}")]),
                column("Up", steps={None: "red", 1: "green"}),
                column("Stopped", steps={None: "text", 1: "red"}),
                column("Silent for", unit="s", steps={None: "green", 120: "orange", 600: "red"}),
                column("Age", unit="s"),
            ),
        ),
    ),
)

HOST: Final = Row(
    "Is it the machine?",
    (
        lines(
            "Processors in use",
            "Does a silent rank spin or sleep? One in a loop uses a processor, one that waits none. The 12 that use"
            " most, and the median.",
            Query(
                among_most("max by (rank) (rate(ddp_rank_cpu_seconds_total{<rank>}[$__rate_interval]<at>))"),
                "rank {{rank}}",
            ),
            Query("quantile(0.5, rate(ddp_rank_cpu_seconds_total{<job>}[$__rate_interval]))", "median"),
            unit="none",
            overrides=(dashed("median"),),
        ),
        lines(
            "Memory of ranks",
            "Does the memory of a rank grow without end? Data loaders in processes of their own come on top.",
            Query(among_most("max by (rank) (ddp_rank_resident_memory_bytes{<rank>}<at>)"), "rank {{rank}}"),
            unit="bytes",
        ),
        lines(
            "Memory of pods, of their limit",
            "Which pod will be ended by the kernel? The memory of its ranks over the limit of its container.",
            Query(
                among_most(
                    "sum by (pod) (ddp_rank_resident_memory_bytes{<job>}<at>)"
                    " / on (pod) max by (pod) (ddp_container_memory_limit_bytes{<job>}<at>)",
                    by="pod",
                ),
                "{{pod}}",
            ),
            unit="percentunit",
            steps={None: "text", 0.9: "red"},
        ),
        lines(
            "Shared memory of pods, in use",
            "Will a data loader die of a full /dev/shm? Its size is `--shm`.",
            Query(
                among_most(
                    "max by (pod) (ddp_shm_used_bytes{<job>}<at>)"
                    " / on (pod) (max by (pod) (ddp_shm_size_bytes{<job>}<at>) > 0)",
                    by="pod",
                ),
                "{{pod}}",
            ),
            unit="percentunit",
            steps={None: "text", 0.9: "red"},
        ),
        bars(
            "Steps without an effect, by rank",
            "Which rank met a loss or gradient that was not finite?",
            Query("increase(ddp_skipped_steps_total{<rank>}[$__rate_interval]) > 0", "rank {{rank}}"),
            unit="none",
        ),
    ),
)

DASHBOARD: Final = Dashboard(
    uid=RANKS,
    title="Training: ranks",
    description="The ranks of one job: which is slow, which is silent, where it runs, and what it lacks.",
    rows=(SLOW, SILENT, HOST),
    variables=(*A_JOB, SOME_RANKS),
    annotations=MARKS,
)
