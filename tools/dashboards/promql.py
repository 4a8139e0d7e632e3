"""Phrases of PromQL that several panels say."""

from __future__ import annotations

from typing import Final

TIME: Final = "ddp_job_time_seconds_total"
LOST: Final = "ddp_lost_progress_seconds_total"
BY_JOB: Final = "namespace, ddp_job"
NOT_PRODUCTIVE: Final = 'state!~"productive|suspended"'
"""A suspended job holds no machine."""
NOT_SUSPENDED: Final = 'state!="suspended"'
PRODUCTIVE: Final = 'state="productive"'


def grown(metric: str, chosen: str, *matchers: str, by: str = "") -> str:
    """How much a count of the whole job has grown in the range. The next pod takes it up where it stood, which
    ``increase`` would take for its beginning.

    >>> grown("a_total", "<job>")
    '(max(max_over_time(a_total{<job>}[$__range])) - min(min_over_time(a_total{<job>}[$__range])))'
    """
    series = f"{metric}{{{', '.join([chosen, *matchers])}}}[$__range]"
    grouped = f" by ({by}) " if by else ""
    return f"(max{grouped}(max_over_time({series})) - min{grouped}(min_over_time({series})))"


def among_most(expression: str, count: int = 12, *, by: str = "rank") -> str:
    """``expression`` for those of which it is greatest at the end of the range; ``<at>`` in it is where a moment may
    stand. A plain ``topk`` would choose anew at each moment, and draw a line for all that it ever chose.

    >>> among_most("max by (rank) (a{<rank>}<at>)")
    'max by (rank) (a{<rank>}) and on (rank) topk(12, max by (rank) (a{<rank>} @ end()))'
    """
    return f"{expression.replace('<at>', '')} and on ({by}) topk({count}, {expression.replace('<at>', ' @ end()')})"


def gpus(metric: str) -> str:
    """What DCGM's exporter says of the GPUs of the ranks. It knows them by UUID; its labels of pods are its own pod's,
    or missing. Where an old and a new pod overlap, one of them is taken.
    """
    owners = 'topk by (gpu_uuid) (1, ddp_rank_info{<rank>, gpu_uuid!=""})'
    owned = f'label_replace({owners}, "UUID", "$1", "gpu_uuid", "(.+)")'
    return f"max by (rank) ({owned} * on (UUID) group_left () max by (UUID) ({metric}))"
