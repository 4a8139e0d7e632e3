"""N: the metrics of a rank that trains on a GPU, as Prometheus reads them from the launcher."""

from __future__ import annotations

import time
import urllib.request
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from bench.gpu_checks.check_report import Bench
from bench.gpu_checks.launches import ALONE, LAUNCH, TRAIN, Running, free_port
from bench.gpu_checks.probe import query_nvidia_smi
from bench.gpu_checks.throughput import step_seconds
from ddp_trainer.common.gpu_specs import find_gpu_specs
from ddp_trainer.metrics.families.rank_families import RANKS

BETWEEN_SECONDS: Final = 5.0
"""Time between two scrapes, as in a ServiceMonitor."""
SCRAPE_SECONDS: Final = 5.0
WARM_STEPS: Final = 5
GIGAHERTZ: Final = 1e9
OFF_BY: Final = 0.03
"""Largest relative difference of the operations, of their rate and of the peak; MFU is rate over peak."""

Scrape = dict[str, float]
"""Name → value of the series of rank 0."""


def run(bench: Bench) -> None:
    """Train a GPT, and scrape twice."""
    folder, port = bench.folder("text"), free_port()
    (folder / "text.txt").write_text("".join(f"{n} times {n} is {n * n}.\n" for n in range(20_000)), encoding="utf-8")
    size = (
        ("gpt:layers=24,heads=16,width=1024", "1024", "8")
        if bench.is_gpu
        else ("gpt:layers=2,heads=2,width=64", "64", "8")
    )
    flags = (
        *("--task", "text", "--data", str(folder), "--model", size[0], "--window", size[1], "--global-batch", size[2]),
        *("--device", bench.device, "--precision", "bf16" if bench.is_gpu else "fp32", "--epochs", "100000"),
        *("--log-json", "--log-steps", "1", "--checkpoint-seconds", "inf", "--evaluate-every", "1000000"),
    )
    with Running([*LAUNCH, *ALONE, "--no-fork-server", "--metrics-port", str(port), *TRAIN, *flags]) as training:
        has_begun = training.wait_for(
            rf'"event": "step", "step": {WARM_STEPS}\b', bench.seconds_left - BETWEEN_SECONDS - 5.0
        )
        bench.findings.require("a rank trains", has_begun is not None)
        if has_begun is None:
            bench.findings.details["printed"] = training.output[-800:]
            return
        time.sleep(BETWEEN_SECONDS)  # the launcher reads the driver now and then
        first, _ = scrape(port)
        begun = time.monotonic()
        time.sleep(BETWEEN_SECONDS)
        second, uuids = scrape(port)
        seconds = time.monotonic() - begun
    found = bench.findings
    operations, steps = (second.get(name, 0.0) - first.get(name, 0.0) for name in ("ddp_model_flops_total", "ddp_step"))
    found.at_least("steps between two scrapes", steps, 1)
    if not steps:
        return
    found.add("metrics_count", len(second))
    [(_, started), *_] = training.events("started")
    per_step = float(started["flops_per_sample"]) * float(started["global_batch"])
    found.at_most(
        "operations between two scrapes, off from those of the steps", abs(operations / (per_step * steps) - 1), OFF_BY
    )
    by_metrics, by_steps = operations / seconds, per_step / step_seconds(training, WARM_STEPS)
    found.add("model_flops_per_second", by_metrics)
    if bench.is_gpu:
        found.at_most(
            "operations per second, off from those of the median step", abs(by_metrics / by_steps - 1), OFF_BY
        )
        _compare_with_driver(bench, second, uuids)


def scrape(port: int, rank: int = 0) -> tuple[Scrape, set[str]]:
    """Return the series of a rank, and the UUIDs of GPUs in any label."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=SCRAPE_SECONDS) as answer:
        text = answer.read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    uuids = {sample.labels["gpu_uuid"] for sample in samples if sample.labels.get("gpu_uuid")}
    return {sample.name: sample.value for sample in samples if sample.labels.get("rank", str(rank)) == str(rank)}, uuids


def _compare_with_driver(bench: Bench, scraped: Scrape, uuids: set[str]) -> None:
    found = bench.findings
    expected = {family.name for family in RANKS if family.name.startswith("ddp_gpu_")}
    missing = sorted(name for name in expected if name not in scraped)
    found.at_most(f"metrics of GPUs that are missing ({', '.join(missing)})", len(missing), 0)
    allocated, used, limit = (
        scraped.get(f"ddp_gpu_memory_{name}_bytes", -1.0) for name in ("allocated", "used", "limit")
    )
    found.require(
        f"allocated {allocated:.4g} <= used {used:.4g} <= limit {limit:.4g} bytes", 0 < allocated <= used <= limit
    )
    specs = find_gpu_specs("".join(query_nvidia_smi("name")))
    if specs is None:
        found.mark_unsupported("MFU", "the peak of this GPU is not known")
    else:
        peak = scraped.get("ddp_peak_flops_per_second", 0.0)
        found.at_most("peak of the GPU, off from the data sheet", abs(peak / specs.bf16_flops - 1), OFF_BY)
    found.at_least("utilization of the GPU", scraped.get("ddp_gpu_utilization_ratio", 0.0), 0.5)
    found.at_least("clock of the multiprocessors in hertz", scraped.get("ddp_gpu_sm_clock_hertz", 0.0), GIGAHERTZ)
    known = set(query_nvidia_smi("uuid"))
    found.require(f"UUID of the metrics ({', '.join(uuids)}) as of nvidia-smi", bool(uuids) and uuids <= known)
