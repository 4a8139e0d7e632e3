"""Overhead of a training loop over one written by hand: our trainer with all features on, and other libraries.

Every loop is a separate process, in turns, and the model inside keeps the time
(``bench/workloads/overhead_workload.py``). A perceptron of 26,000 weights on one process shows what is added in
microseconds; a GPT of 9.5 million weights on two gloo ranks shows whether any of it matters. Ours records metrics in a
real file, updates the sample tracker, votes, checks all gradients and has a checkpoint directory; no evaluation and no
save falls into the timed steps.

The loop by hand is as lean as its author can write it: no DataLoader, no DistributedSampler, no report of the loss.
Only its optimizer is torch's AdamW as it comes, which on the CPU goes over the weights one by one. So ours runs twice.
``ours`` is what a user of the trainer gets: the same AdamW, equal up to rounding, with the fused kernel that our flags
choose; the limit applies to it. ``ours_same_optimizer`` uses the optimizer object of the loop by hand, and shows what
our loop itself adds. Other differences are part of our loop: it drops gradients without ``zero_grad``, begins the
backward pass at each sample's loss, and reads the rows of several steps with one call, because the samples declare
independent rows.

A third part does the same for a model that is sharded: ``--parallel shard=2`` beside ``fully_shard`` by hand
(``bench/workloads/fsdp_loops.py``), each with its own optimizer.

The part ``compile-cache`` starts runs of one rank under the launcher until their first step is committed: without
``--compile``, with it on an empty cache, and with it on the cache of the run before. All of a start counts, from the
import of torch on.

What is added is judged by the processor's seconds, all threads of the process together: other load on the machine does
not count as ours, and waiting, of which a step of one process has none, does not hide. Peers that are not installed
are named and left out: ``pip install --group bench`` brings them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from bench.drivers.first_steps import MODELS, first_step, write_text
from bench.harness import CannotMeasure, Options, Report, interleaved, paired_ratio
from bench.peers.torchrun_driver import free_port

SUMMARY = "what our loop and other libraries' add to a step of one written by hand"

PARTS: Final = ("tiny", "gpt", "fsdp", "compile-cache")

SCRIPT: Final = Path(__file__).parents[1] / "scripts" / "loop.py"
PEERS: Final = {
    "fabric": "lightning",
    "accelerate": "accelerate",
    "lightning": "lightning",
    "hf_trainer": "transformers",
}
"""Loop of a peer → module that it needs."""
GPT_PEERS: Final = ("fabric", "accelerate")
TRAINER_ARMS: Final = ("ours", "ours_same_optimizer")
BAR_SECONDS: Final = 20e-6
BAR_RATIO: Final = 0.99
LIMIT_SECONDS: Final = 600

Times = dict[str, float]
"""Output of ``bench/scripts/loop.py``."""


def measure(options: Options) -> Report:
    """The small model in one process, then the larger one in two, whole on each and sharded."""
    report = Report()
    parts = options.parts(PARTS)
    peers = installed(options) if {"tiny", "gpt"} & set(parts) else []
    if "tiny" in parts:
        _measure_small_model(report, peers, options)
    if "gpt" in parts:
        _measure_gpt(report, [peer for peer in peers if peer in GPT_PEERS], options)
    if "fsdp" in parts:
        _measure_fsdp(report, options)
    if "compile-cache" in parts:
        _measure_compile_cache(report, options)
    return report


def _measure_compile_cache(report: Report, options: Options) -> None:
    with tempfile.TemporaryDirectory(prefix="ddp-bench-") as name:
        directory = Path(name)
        write_text(directory / "text")
        for size, model in MODELS.items():
            cache = directory / f"cache-{size}"
            cold = first_step(directory, model, cache=cache)
            report.figure(f"compile_cache_{size}_cold_cpu_seconds", cold["cpu"])
            arms = {"plain": None, "warm": cache}
            cpu: dict[str, list[float]] = {arm: [] for arm in arms}
            for number in range(1 if options.quick else 3):
                for arm in options.random.sample(list(arms), k=len(arms)):
                    taken = first_step(directory, model, cache=arms[arm])
                    cpu[arm].append(taken["cpu"])
                    options.progress(f"{size}, {arm}, round {number + 1}: {taken}; cold {cold}")
            report.baseline(f"compile_cache_{size}_plain_cpu_seconds", cpu["plain"])
            report.figure(f"compile_cache_{size}_warm_cpu_seconds", cpu["warm"])
            ratio = report.figure(f"compile_cache_{size}_warm_to_plain_ratio", paired_ratio(cpu["warm"], cpu["plain"]))
            if size == "medium":
                report.at_most("start to the first step, compiled on a warm cache / uncompiled", ratio.median, 1.3)


def installed(options: Options) -> list[str]:
    """Return the peers that can be imported, and report the others."""
    missing = sorted({module for module in PEERS.values() if importlib.util.find_spec(module) is None})
    if missing:
        options.progress(f"Not installed, and left out: {', '.join(missing)} (pip install --group bench).")
    return [peer for peer, module in PEERS.items() if module not in missing]


def _measure_small_model(report: Report, peers: Sequence[str], options: Options) -> None:
    rounds, steps = (1, 300) if options.quick else (5, 1500)
    taken = run_interleaved(["bare", *TRAINER_ARMS, *peers], "tiny", 1, steps, rounds, options)
    bare = [times["processor"] for times in taken["bare"]]
    report.baseline("bare_step_seconds", [times["median"] for times in taken["bare"]])
    report.baseline("bare_step_processor_seconds", bare)
    for name in (*TRAINER_ARMS, *peers):
        added = [times["processor"] - alone for times, alone in zip(taken[name], bare, strict=True)]
        put = report.figure if name in TRAINER_ARMS else report.baseline
        summary = put(f"{name}_added_per_step_seconds", added)
        if name == "ours":
            report.at_most("median seconds that our loop adds to a bare step", summary.median, BAR_SECONDS)


def _measure_gpt(report: Report, peers: Sequence[str], options: Options) -> None:
    rounds, steps = (1, 6) if options.quick else (5, 30)
    taken = run_interleaved(["bare", *TRAINER_ARMS, *peers], "gpt", 2, steps, rounds, options)
    bare = [times["median"] for times in taken["bare"]]
    report.baseline("gpt_bare_step_seconds", bare)
    for name in (*TRAINER_ARMS, *peers):
        put = report.figure if name in TRAINER_ARMS else report.baseline
        rate = put(f"gpt_{name}_rate_to_bare_ratio", paired_ratio(bare, [times["median"] for times in taken[name]]))
        if name == "ours":
            report.at_least("rate of our loop over the bare one, GPT on 2 ranks", rate.median, BAR_RATIO)


def _measure_fsdp(report: Report, options: Options) -> None:
    """Throughput of the larger model, sharded over two ranks; the processor's seconds beside it, for a busy machine."""
    rounds, steps = (1, 6) if options.quick else (5, 30)
    taken = run_interleaved(["bare_fsdp", "ours_fsdp"], "gpt", 2, steps, rounds, options)
    bare, trainer = taken["bare_fsdp"], taken["ours_fsdp"]
    report.baseline("fsdp_bare_step_seconds", [times["median"] for times in bare])
    report.baseline("fsdp_bare_step_processor_seconds", [times["processor"] for times in bare])
    report.figure("fsdp_ours_step_processor_seconds", [times["processor"] for times in trainer])
    rates = paired_ratio([times["median"] for times in bare], [times["median"] for times in trainer])
    rate = report.figure("fsdp_ours_rate_to_bare_ratio", rates)
    report.at_least("rate of --parallel shard=2 over fully_shard by hand, GPT on 2 ranks", rate.median, BAR_RATIO)


def run_interleaved(
    loops: Sequence[str], workload: str, ranks: int, steps: int, rounds: int, options: Options
) -> dict[str, list[Times]]:
    """Run each loop once per round."""
    taken: dict[str, list[Times]] = {loop: [] for loop in loops}

    def once(loop: str) -> float:
        taken[loop].append(one_run(loop, workload, ranks, steps))
        return taken[loop][-1]["median"]

    arms: Mapping[str, Callable[[], float]] = {loop: partial(once, loop) for loop in loops}
    interleaved(arms, rounds=rounds, options=options)
    return taken


def one_run(loop: str, workload: str, ranks: int, steps: int) -> Times:
    """Start the ranks of one loop; return the measurements of the first one.

    Raises:
        CannotMeasure: one of them failed.
    """
    command = [sys.executable, str(SCRIPT), loop, workload, str(steps)]
    with tempfile.TemporaryDirectory() as directory:
        processes = [
            subprocess.Popen(
                command,
                env=environment(rank, ranks, port, directory),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for port in [free_port()]
            for rank in range(ranks)
        ]
        try:
            outputs = [process.communicate(timeout=LIMIT_SECONDS) for process in processes]
        except subprocess.TimeoutExpired:
            raise CannotMeasure(f"The loop {loop!r} took longer than {LIMIT_SECONDS} s.") from None
        finally:
            for process in processes:
                process.kill()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        if process.returncode:
            last = (errors.strip().splitlines() or ["it printed nothing"])[-1]
            raise CannotMeasure(f"The loop {loop!r} ended with {process.returncode}: {last}")
    times: Times = json.loads(outputs[0][0])
    return times


def environment(rank: int, ranks: int, port: int, directory: str) -> dict[str, str]:
    """What torchrun would tell a rank; nothing to a process that is alone."""
    variables = os.environ | {"OMP_NUM_THREADS": "1", "DDP_METRICS_DIR": directory, "GLOO_SOCKET_IFNAME": "lo"}
    if ranks == 1:
        return variables
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "GROUP_RANK": 0}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "bench"}
    return variables | address | {name: str(number) for name, number in numbers.items()}
