"""Rows about nodes and GPUs of the dashboard of ranks."""

from __future__ import annotations

from typing import Final

from tools.dashboards.panel import Panel, Query, Row
from tools.dashboards.panel_types import reference_line, stacked_series, time_series
from tools.dashboards.promql import gpus, topk_at_end

HOST: Final = Row(
    "Is it the node?",
    (
        time_series(
            "CPU usage",
            "Is a stalled rank busy or waiting? A busy rank uses a core, a waiting one uses none. The 12 highest, and "
            "the median.",
            Query(
                topk_at_end("max by (rank) (rate(ddp_rank_cpu_seconds_total{<rank>}[$__rate_interval]<at>))"),
                "rank {{rank}}",
            ),
            Query("quantile(0.5, rate(ddp_rank_cpu_seconds_total{<job>}[$__rate_interval]))", "median"),
            unit="none",
            overrides=(reference_line("median"),),
        ),
        time_series(
            "Memory, by rank",
            "Does a rank leak memory? Loader workers are not included. The dashed line is the highest peak of any "
            "process.",
            Query(topk_at_end("max by (rank) (ddp_rank_resident_memory_bytes{<rank>}<at>)"), "rank {{rank}}"),
            Query("max(ddp_rank_resident_memory_peak_bytes{<rank>})", "peak"),
            unit="bytes",
            overrides=(reference_line("peak"),),
        ),
        time_series(
            "Memory of pods, share of limit",
            "Which pod is close to an OOM kill? Memory of its ranks divided by the limit of its container.",
            Query(
                topk_at_end(
                    "sum by (pod) (ddp_rank_resident_memory_bytes{<job>}<at>)"
                    " / on (pod) max by (pod) (ddp_container_memory_limit_bytes{<job>}<at>)",
                    by="pod",
                ),
                "{{pod}}",
            ),
            unit="percentunit",
            steps={None: "text", 0.9: "red"},
        ),
        time_series(
            "Shared memory in use",
            "Is /dev/shm nearly full? Data loaders fail when it is. `--shm` sets its size.",
            Query(
                topk_at_end(
                    "max by (pod) (ddp_shm_used_bytes{<job>}<at>)"
                    " / on (pod) (max by (pod) (ddp_shm_size_bytes{<job>}<at>) > 0)",
                    by="pod",
                ),
                "{{pod}}",
            ),
            unit="percentunit",
            steps={None: "text", 0.9: "red"},
        ),
        time_series(
            "Time in Python's garbage collector",
            "Does garbage collection slow ranks down? Share of time. A rank that collects while others train is a "
            "straggler.",
            Query(
                topk_at_end("max by (rank) (rate(ddp_gc_pause_seconds_total{<rank>}[$__rate_interval]<at>))"),
                "rank {{rank}}",
            ),
            unit="percentunit",
        ),
        stacked_series(
            "Failed collectives, by rank",
            "Which rank left its group because a collective failed or timed out? Others wait for a rank that did not "
            "leave.",
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
    """Return a query of one kind of memory, as a share of the memory of the GPU."""
    limit = "max by (rank) (ddp_gpu_memory_limit_bytes{<rank>}<at>)"
    share = f"max by (rank) ({metric}{{<rank>}}<at>) / on (rank) ({limit} > 0)"
    query = Query(topk_at_end(share), "rank {{rank}}")
    return time_series(title, question, query, unit="percentunit", max=1, steps={None: "text", 0.95: "red"}, width=8)


GPU: Final = Row(
    "Is it GPU memory?",
    (
        _of_limit(
            "Peak memory of tensors",
            "How close was the rank to running out of memory? Peak since the process began.",
            "ddp_gpu_memory_peak_allocated_bytes",
        ),
        _of_limit(
            "Memory of tensors",
            "Does it grow from step to step? Then the script keeps tensors, for example a sum of losses with their "
            "graphs.",
            "ddp_gpu_memory_allocated_bytes",
        ),
        _of_limit(
            "Memory reserved by the allocator",
            "Far above the memory of tensors, with retries: fragmentation. See expandable_segments of torch.",
            "ddp_gpu_memory_reserved_bytes",
        ),
        _of_limit(
            "Memory in use, by the driver",
            "Far above the reserved memory: CUDA contexts, buffers of NCCL, or another process.",
            "ddp_gpu_memory_used_bytes",
        ),
        stacked_series(
            "Allocation retries",
            "Is memory nearly exhausted? Each retry costs time.",
            Query("increase(ddp_gpu_alloc_retries_total{<rank>}[$__rate_interval]) > 0", "rank {{rank}}"),
            width=8,
            unit="none",
        ),
        stacked_series(
            "Out-of-memory errors",
            "Which rank ran out of memory?",
            Query("increase(ddp_gpu_oom_total{<rank>}[$__rate_interval]) > 0", "rank {{rank}}"),
            width=8,
            unit="none",
        ),
    ),
)


def _of_driver(title: str, question: str, expression: str) -> Panel:
    return time_series(
        title, question, Query(topk_at_end(expression), "rank {{rank}}"), unit="percentunit", max=1, width=8
    )


DRIVER: Final = Row(
    "Is the GPU busy, and at full clock?",
    (
        _of_driver(
            "Utilization",
            "Does any kernel run? NCCL kernels that wait for peers count as busy.",
            "max by (rank) (ddp_gpu_utilization_ratio{<rank>}<at>)",
        ),
        _of_driver(
            "SM clock, share of maximum",
            "Is one GPU slower than the others?",
            "max by (rank) (ddp_gpu_sm_clock_hertz{<rank>}<at>)"
            " / on (rank) (max by (rank) (ddp_gpu_sm_clock_max_hertz{<rank>}<at>) > 0)",
        ),
        stacked_series(
            "Throttled, by reason",
            "Which GPU lowers its clock because of heat or the power of the node? The power cap of the GPU is "
            "excluded.",
            Query('ddp_gpu_throttled{<rank>, reason!="power_cap"} > 0', "rank {{rank}}: {{reason}}"),
            width=8,
            unit="none",
        ),
    ),
    collapsed=True,
)


def _gpu_lines(title: str, question: str, metric: str, unit: str) -> Panel:
    return time_series(title, question, Query(gpus(metric), "rank {{rank}}"), unit=unit, width=8)


SILICON: Final = Row(
    "Is it the GPU? (from DCGM's exporter)",
    (
        _gpu_lines("Temperature", "Is a GPU too hot?", "DCGM_FI_DEV_GPU_TEMP", "celsius"),
        _gpu_lines("Clock", "Is one GPU slower than the others?", "DCGM_FI_DEV_SM_CLOCK * 1e6", "hertz"),
        _gpu_lines("Power", "Does one GPU draw less power than the others?", "DCGM_FI_DEV_POWER_USAGE", "watt"),
        _gpu_lines(
            "Last XID",
            "Did the driver report an error? 48, 63, 64, 74, 79, 94 and 95 are the hardware: drain the node.",
            "DCGM_FI_DEV_XID_ERRORS",
            "none",
        ),
        _gpu_lines(
            "Thermal throttling",
            "Share of time in which the clock was lowered because of temperature.",
            "rate(DCGM_FI_DEV_THERMAL_VIOLATION[$__rate_interval]) / 1e6",
            "percentunit",
        ),
        _gpu_lines(
            "NVLink",
            "Does the traffic of one GPU differ from the others? The unit depends on the driver: compare GPUs only.",
            "rate(DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL[$__rate_interval])",
            "short",
        ),
    ),
    collapsed=True,
)
