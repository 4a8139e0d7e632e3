"""PromQL expressions that several panels share."""

from __future__ import annotations

from typing import Final

TIME: Final = "ddp_job_time_seconds_total"
LOST: Final = "ddp_lost_progress_seconds_total"
BY_JOB: Final = "namespace, ddp_job"
NOT_PRODUCTIVE: Final = 'state!~"productive|suspended"'
"""A suspended job holds no node."""
NOT_SUSPENDED: Final = 'state!="suspended"'
PRODUCTIVE: Final = 'state="productive"'


def increase_of(metric: str, chosen: str, *matchers: str, by: str = "") -> str:
    """Return the growth of a counter of the whole job in the range.

    A new pod continues the counter at its last value, which ``increase`` would take for a start from 0.

    >>> increase_of("a_total", "<job>")
    '(max(max_over_time(a_total{<job>}[$__range])) - min(min_over_time(a_total{<job>}[$__range])))'
    """
    series = f"{metric}{{{', '.join([chosen, *matchers])}}}[$__range]"
    grouped = f" by ({by}) " if by else ""
    return f"(max{grouped}(max_over_time({series})) - min{grouped}(min_over_time({series})))"


def topk_at_end(expression: str, count: int = 12, *, by: str = "rank") -> str:
    """Return ``expression`` for the series that are greatest at the end of the range.

    ``<at>`` marks where a time modifier may stand. A plain ``topk`` selects at each time, and draws all series that it
    ever selected.

    >>> topk_at_end("max by (rank) (a{<rank>}<at>)")
    'max by (rank) (a{<rank>}) and on (rank) topk(12, max by (rank) (a{<rank>} @ end()))'
    """
    return f"{expression.replace('<at>', '')} and on ({by}) topk({count}, {expression.replace('<at>', ' @ end()')})"


def gpus(metric: str) -> str:
    """Return a query of DCGM's exporter for the GPUs of the ranks, joined by UUID.

    The pod labels of the exporter name its pod, or are missing. If an old and a new pod overlap, one is taken.
    """
    owners = 'topk by (gpu_uuid) (1, ddp_rank_info{<rank>, gpu_uuid!=""})'
    owned = f'label_replace({owners}, "UUID", "$1", "gpu_uuid", "(.+)")'
    return f"max by (rank) ({owned} * on (UUID) group_left () max by (UUID) ({metric}))"
