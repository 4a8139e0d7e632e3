"""Time and memory as the data set and the state grow.

``samples``: the commit of a step, and samples per second of processor time of a whole run. ``transfer``: a state from
one rank to another, against one raw broadcast of the same bytes. ``resume``: a state from a directory, against
``torch.load(mmap=True)`` with ``load_state_dict``. Each has the exponent of its growth, 0 if the size does not matter.
The page cache holds the files, so ``resume`` does not measure a disk.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bench.harness import CannotMeasure, Options, Report, interleaved, paired_ratio
from ddp_trainer.train import Config, run
from ddp_trainer.train.checkpoint.checkpoint_files import read
from ddp_trainer.train.checkpoint.state_transfer import broadcast_state
from ddp_trainer.train.checkpoint.torch_zip_writer import pack
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.data.sample_tracker import SampleTracker
from ddp_trainer.train.distributed.group import Group
from tests.support.forked_ranks import run_ranks
from tests.support.train_builders import a_directory, a_manifest

SUMMARY = (
    "commits, transfers and cold resumes at growing sizes of data set and state, and the exponents of their growth"
)
PARTS = ("transfer", "samples", "resume")

SAMPLES: Final = {"100k": 10**5, "1m": 10**6, "10m": 10**7, "100m": 10**8}
STATES: Final = {"10mb": 10, "100mb": 100, "1gb": 1000}
"""Size of a state of weights and AdamW, in megabytes."""
WIDTH: Final = 1024
BATCH: Final = 4096
STEPS: Final = 100


def measure(options: Options) -> Report:
    """Take the selected parts; the ranks are forked before torch has started threads."""
    report = Report()
    parts: dict[str, Callable[[Report, Options], None]] = {
        "transfer": measure_transfer,
        "samples": measure_samples,
        "resume": measure_resume,
    }
    for part in options.parts(PARTS):
        parts[part](report, options)
    return report


def growth_exponent(sizes: Mapping[str, int], values: Mapping[str, float]) -> float:
    """Return the exponent of the power law that fits the values best.

    >>> growth_exponent({"a": 1, "b": 10, "c": 100}, {"a": 2.0, "b": 20.0, "c": 200.0})
    1.0
    """
    points = [(math.log(sizes[name]), math.log(value)) for name, value in values.items()]
    return round(statistics.linear_regression(*zip(*points, strict=True)).slope, 3)


class Numbers:
    """Samples that cost nothing to read, of any number."""

    rowwise = True

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Tensor:
        return self.batch(torch.tensor([index]))[0]

    def batch(self, ids: Tensor) -> Tensor:
        """Return the samples of these ids."""
        return (ids % 7).float().unsqueeze(1)


class Fit:
    """Task with a small network."""

    name = "fit"

    def __init__(self, count: int) -> None:
        self._count = count

    def model(self) -> nn.Module:
        """Return the network."""
        return nn.Sequential(nn.Linear(1, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))

    def train_samples(self) -> Numbers:
        """Return the samples."""
        return Numbers(self._count)

    def test_samples(self) -> tuple[()]:
        """Return none."""
        return ()

    def losses(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Return the losses."""
        losses: Tensor = (model(batch) - batch).square().squeeze(1)
        return losses

    def metrics(self, model: nn.Module, batch: Tensor) -> Mapping[str, Tensor]:
        """Return the sum of the losses."""
        return {"loss": self.losses(model, batch).sum()}


def measure_samples(report: Report, options: Options) -> None:
    """Measure the commit of a step, and runs over a small and a large data set in turns."""
    trackers = {name: SampleTracker(count) for name, count in SAMPLES.items()}
    commits = {name: partial(time_commit, trackers[name], count) for name, count in SAMPLES.items()}
    seconds = interleaved(commits, rounds=5 if options.quick else 20, options=options)
    medians = {name: report.figure(f"commit_{name}_samples_seconds", values).median for name, values in seconds.items()}
    report.figure("commit_growth_ratio", growth_exponent(SAMPLES, medians))
    report.at_most("seconds to commit 4,096 of 100 million samples", min(seconds["100m"]), 0.001)
    runs = {name: partial(time_run, SAMPLES[name]) for name in ("100k", "10m")}
    seconds = interleaved(runs, rounds=3 if options.quick else 10, options=options)
    for name, values in seconds.items():
        report.figure(f"throughput_{name}_samples_per_second", BATCH * STEPS / min(values))
    share = min(seconds["100k"]) / min(seconds["10m"])
    report.at_least("throughput at 10 million samples over that at 100 thousand", share, 0.95)


def time_commit(tracker: SampleTracker, count: int) -> float:
    """Seconds of processor time of a commit of random samples."""
    ids = torch.randint(0, count, (BATCH,))
    began = time.thread_time()
    tracker.commit(ids)
    return time.thread_time() - began


def time_run(count: int) -> float:
    """Seconds of processor time of a run of :data:`STEPS` steps."""
    config = Config(epochs=100, max_steps=STEPS, global_batch=BATCH, warmup_steps=0, learning_rate=0.01, threads=1)
    began = time.process_time()
    run(config, Fit(count), env=Environment())
    return time.process_time() - began


def make_model(megabytes: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a model and an optimizer that has stepped, with a state of this size."""
    layers = max(1, round(megabytes * 1e6 / (3 * 4 * WIDTH * (WIDTH + 1))))
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for weight in model.parameters():
        weight.grad = torch.full_like(weight, 1e-3)
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def measure_transfer(report: Report, options: Options) -> None:
    """Measure raw broadcasts and transfers into the tensors of a rank, in turns, and the memory of both."""
    rounds = 3 if options.quick else 10
    medians: dict[str, float] = {}
    for name, megabytes in STATES.items():
        results = run_ranks(2, partial(time_transfers, megabytes=megabytes, rounds=rounds))
        if not all(isinstance(result, tuple) for result in results):
            raise CannotMeasure(f"A rank failed: {results}")
        raw, ours, _ = results[0]
        medians[name] = report.figure(f"transfer_{name}_seconds", ours).median
        report.baseline(f"raw_broadcast_{name}_seconds", raw)
        ratio = report.figure(f"transfer_{name}_ratio", paired_ratio(ours, raw)).median
        memory = report.figure(f"transfer_{name}_memory_bytes", [result[2] for result in results]).maximum
        options.progress(f"{name}: {ratio:.2f} of a raw broadcast")
    report.figure("transfer_growth_ratio", growth_exponent(STATES, medians))
    report.at_most("transfer of 1 GB over a raw broadcast", ratio, 1.3)
    report.at_most("bytes of memory for a transfer of 1 GB", memory, 64 << 20)


def time_transfers(group: Group, megabytes: int, rounds: int) -> tuple[list[float], list[float], int]:
    """Return seconds of raw broadcasts and of transfers, and the bytes that the latter need, on one rank."""
    model, optimizer = make_model(megabytes)
    state: dict[str, Any] = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    plain = torch.ones(pack(state).storage_bytes, dtype=torch.uint8)
    raw, ours, most = [], [], 0
    for _ in range(rounds):
        raw.append(time_together(group, lambda: dist.broadcast(plain, 0)))
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark becomes the present size
        before = memory_bytes("VmHWM")
        ours.append(time_together(group, lambda: broadcast_state(state, 0, group, targets=state)))
        most = max(most, memory_bytes("VmHWM") - before)
    return raw, ours, most


def time_together(group: Group, work: Callable[[], object]) -> float:
    """Seconds until all ranks have done their work."""
    group.gather(0)
    began = time.perf_counter()
    work()
    group.gather(0)
    return time.perf_counter() - began


def memory_bytes(entry: str) -> int:
    """Return an entry of this process's status, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(entry))


def measure_resume(report: Report, options: Options) -> None:
    """Measure loads from a directory in turns."""
    medians: dict[str, float] = {}
    for name, megabytes in STATES.items():
        with tempfile.TemporaryDirectory(prefix="ddp-bench-") as directory:
            model, optimizer = make_model(megabytes)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            a_directory(Path(directory)).write(a_manifest(1), pack(state))
            place = Path(directory) / "step-00000001"
            arms = {
                "ours": partial(time_load, place, model, optimizer, is_ours=True),
                "torch": partial(time_load, place, model, optimizer, is_ours=False),
                "digest": partial(time_digest, place),
            }
            seconds = interleaved(arms, rounds=3 if options.quick else 10, options=options)
        medians[name] = report.figure(f"resume_{name}_seconds", seconds["ours"]).median
        report.figure(f"resume_{name}_digest_seconds", seconds["digest"])
        report.baseline(f"torch_load_{name}_seconds", seconds["torch"])
        ratio = report.figure(f"resume_{name}_ratio", paired_ratio(seconds["ours"], seconds["torch"])).median
    report.figure("resume_growth_ratio", growth_exponent(STATES, medians))
    report.at_most("cold resume of 1 GB over torch.load with mmap", ratio, 1.5)


def time_load(place: Path, model: nn.Module, optimizer: torch.optim.Optimizer, *, is_ours: bool) -> float:
    """Seconds to load weights and moments; ours checks the digest, and leaves nothing mapped."""
    began = time.perf_counter()
    if is_ours:
        read(place)
    state = torch.load(place / "state.pt", map_location="cpu", mmap=True, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    if is_ours:
        for values in optimizer.state.values():
            values.update({name: value.clone() for name, value in values.items()})
    return time.perf_counter() - began


def time_digest(place: Path) -> float:
    """Seconds to check the digest."""
    began = time.perf_counter()
    read(place)
    return time.perf_counter() - began
