"""Metric families of pods: values that the launcher reports and values that the aggregator adds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from ddp_trainer.common.constants import FailureReason, GroupState, Metric, MetricLabel, RestartCause
from ddp_trainer.metrics.families.family import Family, Kind, Scope, Source
from ddp_trainer.metrics.families.rank_families import EVERY_STEP, WORK

SUMMED: Final = (
    *(Metric.SAMPLES, Metric.PHASE_SECONDS, Metric.TOKENS, Metric.MODEL_FLOPS),
    *(Metric.SAMPLED_STEPS, Metric.SAMPLED_BUSY, Metric.SAMPLED_COMM_EXPOSED),
)
"""Counters of ranks that Prometheus rules sum over a job. Each pod sums its own ranks, since the cost of a rule grows
with the number of series that it reads.
"""


def _of_agent(name: str, kind: Kind, help_text: str, *, unit: str = "") -> Family:
    return Family(name=name, kind=kind, scope=Scope.POD, source=Source.AGENT_BOARD, unit=unit, help=help_text)


def _counted(name: str, label: MetricLabel, values: Iterable[str], help_text: str) -> Family:
    return Family(
        name=name,
        kind=Kind.COUNTER,
        scope=Scope.POD,
        source=Source.AGENT_BOARD,
        labels=(label,),
        values=tuple(values),
        help=help_text,
    )


def _of_aggregator(name: str, kind: Kind, help_text: str, *, unit: str = "") -> Family:
    return Family(name=name, kind=kind, scope=Scope.POD, source=Source.AGGREGATOR, unit=unit, help=help_text)


def of_pod(family: Family) -> Family:
    """Return the family of the pod-wide total of a rank's family."""
    return replace(
        family,
        name=family.name.replace("ddp_", "ddp_pod_", 1),
        scope=Scope.POD,
        source=Source.AGGREGATOR,
        help=f"Growth of `{family.name}` since the exporter began, of all ranks of the pod together.",
    )


AGENT: Final = (
    Family(
        name="ddp_agent_up",
        kind=Kind.GAUGE,
        scope=Scope.POD,
        source=Source.PROCESS,
        help="1 while the launcher of this pod exists, else 0.",
    ),
    Family(
        name=Metric.GROUP_STATE,
        kind=Kind.GAUGE,
        scope=Scope.POD,
        source=Source.AGENT_BOARD,
        labels=(MetricLabel.STATE,),
        values=tuple(GroupState),
        help="1 for the state this pod's worker group is in, 0 for the others.",
    ),
    _counted(Metric.RESTARTS, MetricLabel.CAUSE, RestartCause, "Times the worker group was formed anew, by cause."),
    _counted(Metric.FAILURES, MetricLabel.REASON, FailureReason, "Workers of this pod that ended and should not have."),
    _of_agent(
        "ddp_rendezvous_duration_seconds", Kind.SUMMARY, "Time from joining until a group was formed.", unit="seconds"
    ),
    _of_agent("ddp_rendezvous_last_duration_seconds", Kind.GAUGE, "What the last rendezvous took.", unit="seconds"),
    _of_agent(
        "ddp_rendezvous_failures_total",
        Kind.COUNTER,
        "Tries of this pod's launcher to reach the store that failed; while they go on, no group can be formed.",
    ),
    _of_agent(
        "ddp_rendezvous_refused_connections_total",
        Kind.COUNTER,
        "Connections that the store refused because they did not prove to hold the run's secret; from rank 0's pod.",
    ),
    _of_agent(Metric.RENDEZVOUS_ROUND, Kind.GAUGE, "Generation of the group, the number of its rendezvous."),
    _of_agent(Metric.WORLD_SIZE, Kind.GAUGE, "Processes in the group."),
    _of_agent(Metric.FIRST_RANK, Kind.GAUGE, "First rank of the pod in the group; the others follow in order."),
    _of_agent(Metric.NODES, Kind.GAUGE, "Nodes in the group."),
    _of_agent("ddp_nodes_desired", Kind.GAUGE, "Nodes the group could have at most."),
    _of_agent("ddp_restarts_remaining", Kind.GAUGE, "What is left of the run's restart budget."),
    _of_agent(
        Metric.STALLED,
        Kind.GAUGE,
        "Time since any rank of the pod made progress, while its ranks wait for another; 0 while they make progress.",
        unit="seconds",
    ),
    _of_agent(Metric.STALLED_BY, Kind.GAUGE, "First rank that the ranks of the pod wait for; -1 for none."),
)

AGGREGATOR: Final = (
    Family(
        name="ddp_build_info",
        kind=Kind.INFO,
        scope=Scope.POD,
        source=Source.AGGREGATOR,
        labels=(MetricLabel.VERSION,),
        help="Version of kubectl-ddp in this pod.",
    ),
    _of_aggregator("ddp_exporter_scrapes_total", Kind.COUNTER, "Times the boards were read for a scrape."),
    _of_aggregator(
        "ddp_exporter_scrape_seconds_total", Kind.COUNTER, "Time spent reading the boards for scrapes.", unit="seconds"
    ),
    _of_aggregator(
        "ddp_exporter_stale_boards", Kind.GAUGE, "Boards left out because they are damaged or of another version."
    ),
    *(of_pod(family) for family in (*EVERY_STEP, *WORK) if family.name in SUMMED),
    _of_aggregator("ddp_shm_used_bytes", Kind.GAUGE, "What is used of the pod's /dev/shm.", unit="bytes"),
    _of_aggregator("ddp_shm_size_bytes", Kind.GAUGE, "Size of the pod's /dev/shm.", unit="bytes"),
    _of_aggregator(
        "ddp_container_memory_limit_bytes",
        Kind.GAUGE,
        "Memory that the container may use; absent where nothing limits it.",
        unit="bytes",
    ),
)
