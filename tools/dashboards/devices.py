"""Machines and GPUs under the ranks: rows of the dashboard of ranks."""

from __future__ import annotations

from typing import Final

from tools.dashboards.panel import Panel, Query, Row
from tools.dashboards.panel_types import bars, dashed, lines
from tools.dashboards.promql import among_most, gpus

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
            "Does the memory of a rank grow without end? Data loaders in processes of their own come on top. The dashed"
            " line is the most that any rank had since its process began.",
            Query(among_most("max by (rank) (ddp_rank_resident_memory_bytes{<rank>}<at>)"), "rank {{rank}}"),
            Query("max(ddp_rank_resident_memory_peak_bytes{<rank>})", "peak"),
            unit="bytes",
            overrides=(dashed("peak"),),
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
        lines(
            "Time in Python's garbage collector",
            "Is it Python itself? Share of the time; a rank that collects while the others train is a straggler.",
            Query(
                among_most("max by (rank) (rate(ddp_gc_pause_seconds_total{<rank>}[$__rate_interval]<at>))"),
                "rank {{rank}}",
            ),
            unit="percentunit",
        ),
        bars(
            "Collectives that broke, by rank",
            "Who left its group since a collective took too long or failed? Whoever did not, while its peers did, is"
            " waited for.",
            *(
                Query(
                    f"increase(ddp_collective_{kind}_total{{<rank>}}[$__rate_interval]) > 0",
                    f"rank {{{{rank}}}}: {word}",
                )
                for kind, word in (("timeouts", "too long"), ("errors", "failed"))
            ),
            unit="none",
        ),
    ),
)


def _of_limit(title: str, question: str, metric: str) -> Panel:
    """Memory of a kind, as a share of what the GPU has."""
    limit = "max by (rank) (ddp_gpu_memory_limit_bytes{<rank>}<at>)"
    share = f"max by (rank) ({metric}{{<rank>}}<at>) / on (rank) ({limit} > 0)"
    query = Query(among_most(share), "rank {{rank}}")
    return lines(title, question, query, unit="percentunit", max=1, steps={None: "text", 0.95: "red"}, width=8)


GPU: Final = Row(
    "Is it the memory of the GPU?",
    (
        _of_limit(
            "Peak of tensors",
            "How near was it to the end? The most that tensors had since the process began.",
            "ddp_gpu_memory_peak_allocated_bytes",
        ),
        _of_limit(
            "Tensors now",
            "Does it grow from step to step? Then something holds on to tensors, as a sum of losses with their graphs.",
            "ddp_gpu_memory_allocated_bytes",
        ),
        _of_limit(
            "Held by the allocator",
            "Far above what tensors have, with retries: fragmentation; see torch's expandable_segments.",
            "ddp_gpu_memory_reserved_bytes",
        ),
        _of_limit(
            "In use, by the driver's count",
            "Far above what the allocator holds: CUDA contexts, buffers of NCCL, or another process.",
            "ddp_gpu_memory_used_bytes",
        ),
        bars(
            "Allocations that needed a second try",
            "Is memory about to run out? Each costs time, too.",
            Query("increase(ddp_gpu_alloc_retries_total{<rank>}[$__rate_interval]) > 0", "rank {{rank}}"),
            unit="none",
        ),
        bars(
            "Allocations that failed",
            "Which rank met an end of memory?",
            Query("increase(ddp_gpu_oom_total{<rank>}[$__rate_interval]) > 0", "rank {{rank}}"),
            unit="none",
        ),
    ),
)


def _of_driver(title: str, question: str, expression: str) -> Panel:
    return lines(title, question, Query(among_most(expression), "rank {{rank}}"), unit="percentunit", max=1, width=8)


DRIVER: Final = Row(
    "Does the GPU work, and at full speed?",
    (
        _of_driver(
            "Utilization",
            "Does a kernel run at all? A kernel of NCCL that waits for its peers counts as well.",
            "max by (rank) (ddp_gpu_utilization_ratio{<rank>}<at>)",
        ),
        _of_driver(
            "SM clock, of its maximum",
            "Does one run slower than the others?",
            "max by (rank) (ddp_gpu_sm_clock_hertz{<rank>}<at>)"
            " / on (rank) (max by (rank) (ddp_gpu_sm_clock_max_hertz{<rank>}<at>) > 0)",
        ),
        bars(
            "Throttled, by reason",
            "Which rank lowers its clock because of heat or the machine's power? The GPU's own power cap is left out.",
            Query('ddp_gpu_throttled{<rank>, reason!="power_cap"} > 0', "rank {{rank}}: {{reason}}"),
            unit="none",
        ),
    ),
    collapsed=True,
)


def _of_silicon(title: str, question: str, metric: str, unit: str) -> Panel:
    return lines(title, question, Query(gpus(metric), "rank {{rank}}"), unit=unit, width=8)


SILICON: Final = Row(
    "Is it the GPU? (from DCGM's exporter)",
    (
        _of_silicon("Temperature", "Is it too hot?", "DCGM_FI_DEV_GPU_TEMP", "celsius"),
        _of_silicon("Clock", "Does one run slower than the others?", "DCGM_FI_DEV_SM_CLOCK * 1e6", "hertz"),
        _of_silicon("Power", "Does one get less than the others?", "DCGM_FI_DEV_POWER_USAGE", "watt"),
        _of_silicon(
            "Last XID",
            "Did the driver report an error? 48, 63, 64, 74, 79, 94 and 95 are the hardware: drain the node.",
            "DCGM_FI_DEV_XID_ERRORS",
            "none",
        ),
        _of_silicon(
            "Held back by heat",
            "Was the clock lowered because of the temperature, and for which share of the time?",
            "rate(DCGM_FI_DEV_THERMAL_VIOLATION[$__rate_interval]) / 1e6",
            "percentunit",
        ),
        _of_silicon(
            "NVLink",
            "Does one GPU's traffic differ from the others'? In the driver's own unit: compare, and do not read it.",
            "rate(DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL[$__rate_interval])",
            "short",
        ),
    ),
    collapsed=True,
)
