"""Metric families of a pod, and the registry of all families.

The layout of the metrics files, the exposition, ``docs/metrics.md`` and the tests follow from :data:`FAMILIES`. Names
end in their base unit, names of counters in ``_total``. A value of which only the present state matters is a gauge; a
value of which a rate may be needed is a counter. Label sets are closed and all their series exist from the start,
because Prometheus' ``increase`` ignores the first sample of a series. The exception is ``ddp_user_value``, a gauge
whose names come from the script, at most 32 per rank.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from ddp_trainer.common.constants import FailureReason, GroupState, OutsideReason, RestartCause
from ddp_trainer.common.metric_names import Metric, MetricLabel
from ddp_trainer.metrics.families.family import Family, Scope, Source
from ddp_trainer.metrics.families.rank_families import RANKS

SUMMED: Final = (
    *(Metric.SAMPLES, Metric.PHASE_SECONDS, Metric.TOKENS, Metric.MODEL_FLOPS),
    *(Metric.SAMPLED_STEPS, Metric.SAMPLED_BUSY, Metric.SAMPLED_COMM_EXPOSED),
)
"""Counters of ranks that Prometheus rules sum over a job. Each pod sums its own ranks, since the cost of a rule grows
with the number of series that it reads.
"""


_agent: Final = partial(Family, scope=Scope.POD, source=Source.AGENT_FILE)
_aggregator: Final = partial(Family, scope=Scope.POD, source=Source.AGGREGATOR)


def of_pod(family: Family) -> Family:
    """Return the family of the pod-wide total of a rank's family."""
    return replace(
        family,
        name=family.name.replace("ddp_", "ddp_pod_", 1),
        scope=Scope.POD,
        source=Source.AGGREGATOR,
        help=f"Growth of `{family.name}` since the exporter began, of all ranks of the pod together.",
    )


PODS: Final = (
    Family("ddp_agent_up", "1 while the launcher of this pod exists, else 0.", scope=Scope.POD, source=Source.PROCESS),
    _agent(
        Metric.GROUP_STATE,
        "1 for the state this pod's worker group is in, 0 for the others.",
        labels=(MetricLabel.STATE,),
        values=tuple(GroupState),
    ),
    _agent(
        Metric.RESTARTS,
        "Times the worker group re-formed, by cause.",
        labels=(MetricLabel.CAUSE,),
        values=tuple(RestartCause),
    ),
    _agent(
        Metric.FAILURES,
        "Workers of this pod that ended and should not have; `launcher_crash` counts launchers.",
        labels=(MetricLabel.REASON,),
        values=tuple(FailureReason),
    ),
    _agent(Metric.LAST_FAILURE, "Unix time at which the last of them ended; absent before the first."),
    _agent(Metric.LAST_FAILED_RANK, "Rank of the last of them."),
    _agent("ddp_rendezvous_duration_seconds", "Time from joining until a group was formed.", is_summary=True),
    _agent("ddp_rendezvous_last_duration_seconds", "What the last rendezvous took."),
    _agent(
        "ddp_rendezvous_failures_total",
        "Failed attempts of this pod's launcher to reach the store; while they increase, no group can form.",
    ),
    _agent(
        "ddp_rendezvous_refused_connections_total",
        "Connections that the store refused because they did not prove to hold the run's secret; from rank 0's pod.",
    ),
    _agent(Metric.RENDEZVOUS_ROUND, "Generation of the group, the number of its rendezvous."),
    _agent(Metric.WORLD_SIZE, "Processes in the group."),
    _agent(Metric.FIRST_RANK, "First rank of the pod in the group; the others follow in order."),
    _agent(Metric.NODES, "Nodes in the group."),
    _agent("ddp_nodes_desired", "Nodes the group could have at most."),
    _agent("ddp_restarts_remaining", "What is left of the run's restart budget."),
    _agent(
        Metric.OUTSIDE_SINCE,
        "Unix time since which this pod's launcher is in no group, under the reason; 0 for the others, and in a group.",
        labels=(MetricLabel.REASON,),
        values=tuple(OutsideReason),
    ),
    _agent(
        Metric.STALLED,
        "Time since any rank of the pod made progress, while its ranks wait for another; 0 while they make progress.",
    ),
    _agent(Metric.STALLED_BY, "First rank that the ranks of the pod wait for; -1 for none."),
    _aggregator("ddp_build_info", "Version of kubectl-ddp in this pod.", labels=(MetricLabel.VERSION,)),
    _aggregator("ddp_exporter_scrapes_total", "Times the metrics files were read for a scrape."),
    _aggregator("ddp_exporter_scrape_seconds_total", "Time spent reading the metrics files for scrapes."),
    _aggregator("ddp_exporter_stale_boards", "Metrics files left out because they are damaged or of another version."),
    *(of_pod(family) for family in RANKS if family.name in SUMMED),
    _aggregator("ddp_shm_used_bytes", "What is used of the pod's /dev/shm."),
    _aggregator("ddp_shm_size_bytes", "Size of the pod's /dev/shm."),
    _aggregator(
        "ddp_container_memory_limit_bytes", "Memory that the container may use; absent where nothing limits it."
    ),
)


FAMILIES: Final = (*RANKS, *PODS)
