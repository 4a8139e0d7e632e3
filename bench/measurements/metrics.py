"""Cost of metrics for the training thread, and cost of a scrape.

Ours stores doubles into shared memory. The baseline keeps the same thirteen numbers with prometheus_client, labels
resolved beforehand, which is the fastest that library can be used. Batches of calls are timed and divided, ours and
the baseline's in turns, with warm caches. Between two steps of a training the caches are used for other things, so both
are also timed one call at a time after all caches were overwritten, the worst that can happen: then fetching the
interpreter's own code from memory costs more than what it does. A scrape is a whole one: connect, ask, read all, from
a real aggregator, of a pod with eight ranks.

The cost of automatic metrics for a plain script is the difference between blocks of the same loop, over DDP and a
DataLoader, with and without the hooks in turns. It is in processor seconds, so that other load does not count. The
tracker of the job's time breakdown is timed as the trainer calls it after every step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

from bench.harness import CannotMeasure, Options, Report, interleaved, paired_ratio

SUMMARY = "what recording a step costs the training thread, and what a scrape of 8 ranks takes"

RANKS: Final = 8
BAR_SECONDS: Final = 1e-6
LISTENING_BAR_SECONDS: Final = 10e-6
PHASE_SECONDS: Final = (0.001, 0.0002, 0.01, 0.02, 0.003, 0.001, 0.0, 0.0001)
CACHE_BYTES: Final = 64 << 20
"""More than the caches hold."""
SILENCE_SECONDS: Final = 0.06
"""Pause between scrapes, longer than the aggregator serves the same page again."""

Step = Callable[[int], None]


def measure(options: Options) -> Report:
    """Measure a step, in turns with the baseline; then scrapes, automatic metrics and the time breakdown."""
    calls, rounds, single = (2_000, 10, 20) if options.quick else (10_000, 60, 100)
    report = Report()
    with tempfile.TemporaryDirectory() as directory:
        own, peer = make_recorder_step(Path(directory)), prometheus_client_step()
        arms = {"metrics_file": lambda: per_call(own, calls), "prometheus_client": lambda: per_call(peer, calls)}
        times = interleaved(arms, rounds=rounds, options=options)
        cold = interleaved(
            {"metrics_file": lambda: time_cold_call(own), "prometheus_client": lambda: time_cold_call(peer)},
            rounds=single,
            options=dataclasses.replace(options, progress=lambda _: None),
        )
        with aggregator(Path(directory)) as address:
            scrapes = [scrape(address) for _ in range(single)]
    step = report.figure("record_step_seconds", times["metrics_file"])
    report.figure("record_step_cold_seconds", cold["metrics_file"])
    report.baseline("prometheus_client_record_step_seconds", times["prometheus_client"])
    report.baseline("prometheus_client_record_step_cold_seconds", cold["prometheus_client"])
    report.figure("to_prometheus_client_ratio", paired_ratio(times["metrics_file"], times["prometheus_client"]))
    report.figure("scrape_8_ranks_seconds", [seconds for seconds, _ in scrapes])
    report.figure("scrape_8_ranks_bytes", float(max(size for _, size in scrapes)))
    report.at_most("median seconds that recording a step takes on the training thread", step.median, BAR_SECONDS)
    measure_autolog(report, options)
    return report


def measure_autolog(report: Report, options: Options) -> None:
    """Measure the cost of automatic metrics for a plain script, and of the time breakdown for the trainer."""
    from bench.workloads.metrics_loop import AutologLoop, Ledger

    steps, rounds, calls = (300, 20, 1_000) if options.quick else (300, 100, 10_000)
    quiet = dataclasses.replace(options, progress=lambda _: None)
    options.progress(f"listening to a script, {rounds} times {steps} steps")
    with tempfile.TemporaryDirectory() as directory:
        loop = AutologLoop(Path(directory))
        try:
            loop.run_with_autolog(300)  # buckets are built anew, and DDP is timed often at first
            arms = {"bare": lambda: loop.run_plain(steps), "listened_to": lambda: loop.run_with_autolog(steps)}
            times = interleaved(arms, rounds=rounds, options=quiet)
        finally:
            loop.close()
        ledger = Ledger(Path(directory), loop.recorder)
        report.figure("ledger_step_seconds", [ledger.time_steps(calls) for _ in range(20)])
        report.figure("ledger_settle_seconds", [ledger.time_finish() for _ in range(20)])
    report.baseline("bare_step_processor_seconds", times["bare"])
    report.figure("listened_to_step_processor_seconds", times["listened_to"])
    added = [listening - bare for listening, bare in zip(times["listened_to"], times["bare"], strict=True)]
    summary = report.figure("listening_adds_processor_seconds", added)
    report.at_most("median processor's seconds that listening adds to a step", summary.median, LISTENING_BAR_SECONDS)


def per_call(step: Step, calls: int) -> float:
    """Mean seconds of one call over ``calls`` of them."""
    begun = time.perf_counter()
    for number in range(calls):
        step(number)
    return (time.perf_counter() - begun) / calls


def time_cold_call(step: Step) -> float:
    """Seconds of one call between two computations that need all the cache."""
    bytearray(CACHE_BYTES).find(b"\1")
    begun = time.perf_counter()
    step(1)
    return time.perf_counter() - begun


def make_recorder_step(directory: Path) -> Step:
    """A step of rank 0 in a metrics file; the other ranks of the pod have stepped once."""
    from ddp_trainer.metrics import attach
    from ddp_trainer.process.recorder import RendezvousResult

    recorders = []
    for rank in range(RANKS):
        variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(RANKS)}
        recorder = attach.rank_recorder({"DDP_METRICS_DIR": str(directory), **variables})
        recorder.identity(rank=rank, local_rank=rank, world_size=RANKS, backend="gloo", device="cpu")
        recorder.step(1, 0, 16, *PHASE_SECONDS)
        recorders.append(recorder)
    attach.agent_recorder(directory, {}).rendezvous_completed(
        RendezvousResult(1.5, 1, size=RANKS, nodes=1, nodes_desired=1)
    )
    record = recorders[0].step
    return lambda number: record(number, 0, 16, *PHASE_SECONDS)


def prometheus_client_step() -> Step:
    """The same numbers in prometheus_client, in its default mode: in the process, one lock per number."""
    from prometheus_client import CollectorRegistry, Counter, Gauge

    from ddp_trainer.common.time_classes import Phase

    registry = CollectorRegistry()
    counters = [Counter(name, name, registry=registry) for name in ("steps", "samples")]
    phase_counter = Counter("phase_seconds", "phase_seconds", ["phase"], registry=registry)
    phases = [phase_counter.labels(phase).inc for phase in Phase]
    gauges = [Gauge(name, name, registry=registry) for name in ("step", "epoch", "last_step")]
    steps, samples = (counter.inc for counter in counters)
    set_step, set_epoch, set_last = (gauge.set for gauge in gauges)

    def step(number: int) -> None:
        steps()
        samples(16)
        for add, seconds in zip(phases, PHASE_SECONDS, strict=True):
            add(seconds)
        set_step(number)
        set_epoch(0)
        set_last(time.time())

    return step


@contextlib.contextmanager
def aggregator(directory: Path) -> Iterator[tuple[str, int]]:
    """A real aggregator of ``directory``, on a free port of this host."""
    command = [sys.executable, "-m", "ddp_trainer.metrics.aggregator", "--directory", str(directory), "--port", "0"]
    environment = os.environ | {"DDP_METRICS_ADDRESS": "127.0.0.1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield "127.0.0.1", parse_listen_port(process.stderr)
        finally:
            process.terminate()


def parse_listen_port(stderr: IO[str] | None) -> int:
    """The port in the aggregator's first line."""
    line = stderr.readline() if stderr else ""
    found = re.search(r":(\d+)/metrics", line)
    if not found:
        raise CannotMeasure(f"The aggregator did not start: {line.strip()}")
    return int(found[1])


def scrape(address: tuple[str, int]) -> tuple[float, int]:
    """Seconds and bytes of one scrape."""
    time.sleep(SILENCE_SECONDS)
    begun = time.perf_counter()
    with socket.create_connection(address, timeout=10) as connection, connection.makefile("rb") as answer:
        connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        size = len(answer.read())
    return time.perf_counter() - begun, size
