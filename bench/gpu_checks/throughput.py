"""K: the speed of the trainer against a loop written by hand, the GPU's own ceiling, and the count of operations."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.gpu_checks.check_report import Bench
from bench.gpu_checks.launches import Running, train_single_rank
from bench.gpu_checks.probe import query_nvidia_smi
from bench.harness import CannotMeasure

ROUNDS: Final = 50
OVERHEAD_BAR: Final = 1.03
COMPILED_BAR: Final = 1.0
MOST_SYNCS: Final = 3.0
"""Waits of the host for the GPU in a step: the vote, the loss that is logged, and one to spare."""
FLOPS_OFF_BY: Final = 0.02
STEPS: Final = 30
WARM_STEPS: Final = 10
PROFILED_STEPS: Final = 3
SYNCS: Final = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
COMPILE_SECONDS: Final = 45.0
LARGE_SECONDS: Final = 30.0
START_SECONDS: Final = 20.0


@dataclass(frozen=True, slots=True)
class Model:
    """A GPT, and the batch that it learns from."""

    layers: int
    heads: int
    width: int
    window: int
    samples: int

    @property
    def flag(self) -> str:
        """Value of the trainer's ``--model``."""
        return f"gpt:layers={self.layers},heads={self.heads},width={self.width}"


MEDIUM: Final = Model(layers=24, heads=16, width=1024, window=1024, samples=16)
"""350 million weights with a usual vocabulary, 300 million with one of bytes."""
LARGE: Final = Model(layers=24, heads=16, width=2048, window=1024, samples=8)
"""1.3 billion weights, and 1.2 with a vocabulary of bytes."""
TINY: Final = Model(layers=2, heads=2, width=64, window=64, samples=8)


def run(bench: Bench) -> None:
    """Measure what is quick and certain first."""
    model = TINY if bench.is_small else MEDIUM
    ceiling = _ceiling(bench)
    per_sample = _count_flops(bench, TINY)
    data = _text(bench.folder("text"), model)
    before = _time_plain_loop(bench, "by_hand_before", model)
    own = _time_trainer(bench, "trainer", model, data)
    flops = per_sample(model) * model.samples
    found = bench.findings
    found.add("model_flops_per_second", flops / own)
    found.add("share_of_ceiling_ratio", flops / own / ceiling)
    _trace_kernels(bench, model, data)
    for name, other, flags, seconds in (
        ("compiled", model, ("--compile", "--compile-blocks"), COMPILE_SECONDS),
        ("recompute", model, ("--activation-checkpointing",), START_SECONDS),
        ("large", LARGE, (), LARGE_SECONDS),
    ):
        if bench.seconds_left < seconds or (bench.is_small and name != "recompute"):
            found.mark_unsupported(name, "the time limit was reached")
            continue
        try:
            taken = _time_trainer(bench, name, other, data, *flags)
        except CannotMeasure as error:
            found.require(f"{name}: the trainer came to its end", holds=False)
            found.details[f"{name} printed"] = str(error)
        else:
            found.add(f"{name}_share_of_ceiling_ratio", per_sample(other) * other.samples / taken / ceiling)
            if name == "compiled":
                found.at_most("step of the compiled model over one of the model as it is", taken / own, COMPILED_BAR)
    by_hand = min(before, _time_plain_loop(bench, "by_hand_after", model))
    if bench.is_gpu:
        found.at_most("step of the trainer over one of a loop by hand", own / by_hand, OVERHEAD_BAR)


def _ceiling(bench: Bench) -> float:
    """Operations per second of a large matrix product of random numbers."""
    import torch

    side = bench.size(8192, 256)
    dtype = torch.bfloat16 if bench.is_gpu else torch.float32
    left, right = (torch.randn(side, side, device=bench.device, dtype=dtype) for _ in range(2))
    seconds = timed(bench, lambda: left @ right, ROUNDS)
    reached = 2 * side**3 / statistics.median(seconds)
    bench.findings.add("ceiling_flops_per_second", reached)
    clocks = query_nvidia_smi("clocks.sm,power.draw") if bench.is_gpu else []
    if clocks:
        bench.findings.details["clock"] = clocks
    bench.findings.require("the matrix product reached a speed", reached > 0)
    return reached


def timed(bench: Bench, work: Callable[[], object], rounds: int) -> list[float]:
    """Return seconds of each round, by the device's own events where it has some."""
    import torch

    seconds = []
    for number in range(rounds + 5):
        if bench.is_gpu:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
            end.synchronize()
            taken = begin.elapsed_time(end) / 1000
        else:
            begun = time.perf_counter()
            work()
            taken = time.perf_counter() - begun
        if number >= 5:
            seconds.append(taken)
    return seconds


def gpt(model: Model) -> Any:
    """Return the trainer's GPT of this size."""
    from ddp_workloads.gpt import Gpt

    return Gpt(vocabulary=256, window=model.window, layers=model.layers, heads=model.heads, width=model.width)


def _count_flops(bench: Bench, small: Model) -> Callable[[Model], int]:
    """Compare the formula with what torch counts; return the formula, by an instance without memory."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import cross_entropy
    from torch.utils.flop_counter import FlopCounterMode

    network = gpt(small).to(bench.device)
    tokens = torch.randint(256, (small.samples, small.window + 1), device=bench.device)
    # Fused attention computes its forward pass again in the backward pass, which no formula of a model counts.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        cross_entropy(network(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:]).backward()
    counted, estimated = counter.get_total_flops(), network.flops_per_sample() * small.samples
    bench.findings.at_most("operations by formula, off from those counted", abs(estimated / counted - 1), FLOPS_OFF_BY)

    def per_sample(model: Model) -> int:
        with torch.device("meta"):
            return int(gpt(model).flops_per_sample())

    return per_sample


def _time_plain_loop(bench: Bench, name: str, model: Model) -> float:
    """Median seconds of a step of a loop as short as it can be."""
    import torch
    from torch.nn.functional import cross_entropy

    network = gpt(model).to(bench.device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-4, fused=bench.is_gpu)
    text = torch.randint(256, (64, model.samples, model.window + 1))

    def step(number: int, network: Any = network, optimizer: Any = optimizer) -> None:
        tokens = text[number % len(text)].to(bench.device, non_blocking=True)
        with torch.autocast(bench.device, torch.bfloat16, enabled=bench.is_gpu):
            logits = network(tokens[:, :-1])
            loss = cross_entropy(logits.transpose(1, 2), tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    seconds = []
    for number in range(STEPS):
        begun = time.perf_counter()
        step(number)
        if bench.is_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    median = statistics.median(seconds[WARM_STEPS:])
    bench.findings.add(f"{name}_step_seconds", median)
    del step, network, optimizer
    if bench.is_gpu:
        bench.findings.add(f"{name}_memory_bytes", torch.cuda.max_memory_allocated())
        torch.cuda.empty_cache()
    return median


def _text(folder: Path, model: Model) -> Path:
    """A folder with text for more steps than are taken."""
    letters = "abcdefghijklmnopqrstuvwxyz     \n"
    size = 4 * STEPS * model.samples * (model.window + 1)
    chance = random.Random(0)
    (folder / "text.txt").write_text("".join(chance.choices(letters, k=size)), encoding="utf-8")
    return folder


def flags_of(bench: Bench, model: Model, data: Path) -> tuple[str, ...]:
    """Return what the trainer is given for this model."""
    precision = ("--precision", "bf16") if bench.is_gpu else ()
    return (
        *("--task", "text", "--data", str(data), "--model", model.flag, "--window", str(model.window)),
        *("--global-batch", str(model.samples), "--batch-slices", "1", "--device", bench.device, *precision),
        *("--evaluate-every", "1000000", "--epochs", "1000000", "--checkpoint-seconds", "inf"),
    )


def _time_trainer(bench: Bench, name: str, model: Model, data: Path, *flags: str) -> float:
    """Median seconds of the later steps of a run of the trainer, by its own clock."""
    run = train_single_rank(
        *flags_of(bench, model, data),
        *("--max-steps", str(STEPS), "--log-steps", "1", *flags),
        seconds=bench.seconds_left,
    )
    seconds = step_seconds(run)
    bench.findings.add(f"{name}_step_seconds", seconds)
    return seconds


def step_seconds(run: Running, warm_steps: int = WARM_STEPS) -> float:
    """Return the median of the seconds of a step, of those after the first ones, by the clock of the rank.

    Raises:
        CannotMeasure: The run printed too few steps.
    """
    batch = next((int(event["global_batch"]) for _, event in run.events("started")), 0)
    rates = [event["samples_per_second"] for _, event in run.events("step") if int(event["step"]) > warm_steps]
    if not rates:
        raise CannotMeasure(f"the trainer printed no step after {warm_steps}: {run.output[-300:]}")
    return batch / statistics.median(rates)


def _trace_kernels(bench: Bench, model: Model, data: Path) -> None:
    """Count kernels of flash attention, and calls in which the host waits for the GPU, in a trace of the profiler."""
    folder = bench.folder("traces")
    train_single_rank(
        *flags_of(bench, model, data),
        *("--max-steps", str(WARM_STEPS + PROFILED_STEPS + 2), "--profile", f"{WARM_STEPS}:{PROFILED_STEPS}"),
        *("--profile-dir", str(folder)),
        seconds=bench.seconds_left,
    )
    traces = [file for file in folder.rglob("*") if file.is_file()]
    bench.findings.at_least("traces that the profiler left", len(traces), 1)
    names = [name for file in traces for name in event_names(file)]
    syncs = sum(name in SYNCS for name in names) / PROFILED_STEPS
    bench.findings.add("synchronizations_of_a_step_count", syncs)
    if bench.is_gpu:
        bench.findings.at_most("waits of the host for the GPU in a step", syncs, MOST_SYNCS)
        bench.findings.at_least("kernels of flash attention", sum("flash" in name.lower() for name in names), 1)


def event_names(file: Path) -> list[str]:
    """Return the names of the events of a trace, packed or not."""
    import gzip

    content = file.read_bytes()
    text = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    return [str(event.get("name", "")) for event in json.loads(text).get("traceEvents", [])]
