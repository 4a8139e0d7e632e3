"""Time that a save blocks the training, its effect on concurrent steps, and the state after a kill during a save.

A model and its AdamW of 500 MB are saved by the trainer, by ``torch.save`` with a sync, by ``dcp.save`` and by
``dcp.async_save``, in turns. A stall is what the training thread waits; the write is then waited for outside of it, so
saves do not overlap. The first save of each is a separate figure, because it allocates memory. Beside the
writes of both asynchronous ways, small steps are computed, and compared with steps beside nothing.

The part ``object-store`` repeats stalls and kills with uploads to Swift by S3, which ``make stores`` installs. Without
it the part is left out.

The part ``layouts`` is about what is in a checkpoint: :mod:`bench.workloads.checkpoint_layouts`.
"""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.drivers.kill_during_save import kill_at_random_times
from bench.harness import CannotMeasure, Options, Report, interleaved, paired_ratio
from bench.workloads.checkpoint_layouts import cross
from ddp_trainer.train.utils.locations import StorageUrl

SUMMARY = (
    "how long a save of 500 MB stops the training, what 50 kills leave, also in an object store, and layouts that go on"
)
PARTS = ("stall", "kills", "object-store", "layouts")

STATE_BYTES = 500_000_000
QUICK_BYTES = 100_000_000
"""Size of the state for kills in a quick run, and of uploads that are killed: Swift is written in Python."""
QUICK_KILLS = 10
LAYERS = 12
STALL_BAR_SECONDS = 0.060
STEP_SECONDS = 0.25
"""Duration of the count of steps during a write."""


@dataclass(slots=True)
class SaveMethod:
    """One way to save."""

    begin: Callable[[], None]
    """Part of a save that blocks the training."""
    end: Callable[[], None]
    """Part of a save that does not block the training."""

    def time_save(self) -> float:
        """Seconds that the training waits for a save."""
        begun = time.perf_counter()
        self.begin()
        seconds = time.perf_counter() - begun
        self.end()
        return seconds


def measure(options: Options) -> Report:
    """Stalls in turns and steps beside writes, kills, and layouts of ranks."""
    report = Report()
    parts: dict[str, Callable[[Report, Options], None]] = {
        "stall": measure_stall,
        "kills": kill_in_directory,
        "object-store": measure_object_store,
        "layouts": cross,
    }
    for part in options.parts(PARTS):
        parts[part](report, options)
    return report


def measure_stall(report: Report, options: Options) -> None:
    """Measure how long each way to save blocks the training, in turns, and the steps during writes."""
    with tempfile.TemporaryDirectory(prefix="ddp-bench-") as directory:
        arms = make_save_methods(Path(directory), STATE_BYTES)
        for name, arm in arms.items():
            report.baseline(f"{name}_first_stall_seconds", arm.time_save())
        rounds = 3 if options.quick else 10
        stalls = interleaved({name: arm.time_save for name, arm in arms.items()}, rounds=rounds, options=options)
        own = report.figure("stall_seconds", stalls.pop("ours"))
        report.figures["first_stall_seconds"] = report.baselines.pop("ours_first_stall_seconds")
        for name, seconds in stalls.items():
            report.baseline(f"{name}_stall_seconds", seconds)
        measure_slowdown(arms, report, rounds=rounds, options=options)
    report.at_most("median seconds that a save of 500 MB stops the training", own.median, STALL_BAR_SECONDS)


def kill_in_directory(report: Report, options: Options) -> None:
    """Measure the state after kills at random moments."""
    with tempfile.TemporaryDirectory(prefix="ddp-bench-") as directory:
        measure_kill(Path(directory), report, options, size_bytes=STATE_BYTES)


def measure_object_store(report: Report, options: Options) -> None:
    """Measure stalls and kills with uploads to Swift.

    Raises:
        CannotMeasure: Swift is not installed, and no other part was asked for.
    """
    from tests.support.object_stores import BIN, BUCKET, swift

    if not (BIN / "swift-proxy-server").exists():
        if options.only == {"object-store"}:
            raise CannotMeasure("Swift is not installed: make stores.")
        options.progress("Swift is not installed, and the part object-store is left out: make stores.")
        return
    with tempfile.TemporaryDirectory(prefix="ddp-bench-") as name:
        directory = Path(name)
        with swift(directory / "store") as store, environment(store.environ | {"TMPDIR": name}):
            measure_upload_stall(StorageUrl(f"s3://{BUCKET}/stall"), report, options)
            measure_kill(StorageUrl(f"s3://{BUCKET}/kills"), report, options, size_bytes=QUICK_BYTES)


def measure_upload_stall(place: StorageUrl, report: Report, options: Options) -> None:
    """Measure how long a save that is uploaded blocks the training, and how long the upload takes."""
    arm = trainer_save_method(place, make_state(STATE_BYTES))
    arm.time_save()  # allocates the memory
    stalls, uploads = [], []
    for _ in range(3 if options.quick else 10):
        begun = time.perf_counter()
        stalls.append(arm.time_save())
        uploads.append(time.perf_counter() - begun)
    report.figure("upload_seconds", uploads)
    stall = report.figure("object_store_stall_seconds", stalls).median
    report.at_most("median seconds that a save of 500 MB to an object store stops training", stall, STALL_BAR_SECONDS)


def measure_kill(place: Path | StorageUrl, report: Report, options: Options, *, size_bytes: int) -> None:
    """Measure the state after kills at random moments."""
    count, size = (QUICK_KILLS, QUICK_BYTES) if options.quick else (50, size_bytes)
    kills = kill_at_random_times(place, count=count, size_bytes=size, chance=options.random)
    report.figure("kills_count", float(kills.count))
    report.figure("kills_mid_save_count", float(kills.mid_save))
    report.at_most(f"kills of {count} that left no loadable checkpoint", kills.unloadable, 0)
    report.at_most(f"kills of {count} that left one older than was reported durable", kills.older, 0)


def measure_slowdown(arms: dict[str, SaveMethod], report: Report, *, rounds: int, options: Options) -> None:
    """Measure how many times longer a small step takes during a write."""
    step = small_step()

    def time_step_during_save(arm: SaveMethod | None) -> float:
        if arm is not None:
            arm.begin()
        begun, count = time.perf_counter(), 0
        while time.perf_counter() - begun < STEP_SECONDS:
            step()
            count += 1
        seconds = (time.perf_counter() - begun) / count
        if arm is not None:
            arm.end()
        return seconds

    savers = {"nothing": None, "ours": arms["ours"], "dcp_async": arms["dcp_async"]}
    times = interleaved(
        {name: lambda arm=arm: time_step_during_save(arm) for name, arm in savers.items()},
        rounds=rounds,
        options=options,
    )
    report.figure("step_beside_write_ratio", paired_ratio(times["ours"], times["nothing"]))
    report.baseline("dcp_async_step_beside_write_ratio", paired_ratio(times["dcp_async"], times["nothing"]))
    against = report.figure("step_beside_write_over_dcp_async_ratio", paired_ratio(times["ours"], times["dcp_async"]))
    report.at_most("median small step beside our write, against one beside dcp.async_save", against.median, 1.0)


def small_step() -> Callable[[], None]:
    """A step of a small model: what a write can disturb."""
    import torch

    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(32, 256)

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(model(batch).square().mean())
        optimizer.step()

    return step


def make_state(size_bytes: int) -> dict[str, Any]:
    """Weights and AdamW's two moments, of this size together."""
    import torch

    side = int((size_bytes / 3 / 4 / LAYERS) ** 0.5)
    model = torch.nn.Sequential(*(torch.nn.Linear(side, side) for _ in range(LAYERS)))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for weight in model.parameters():
        weight.grad = torch.full_like(weight, 1e-3)
    optimizer.step()
    optimizer.zero_grad()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def make_save_methods(directory: Path, size_bytes: int) -> dict[str, SaveMethod]:
    """Every way to save the same state."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    state = make_state(size_bytes)
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    steps = iter(range(1, 1 << 20))

    def plain() -> None:
        torch.save(state, directory / "plain.pt")
        with (directory / "plain.pt").open("rb") as stream:
            os.fsync(stream.fileno())

    # As a tree without lists, which dcp would store value by value.
    moments = {str(key): value for key, value in state["optimizer"]["state"].items()}
    tree = {"model": state["model"], "moments": moments}
    running: list[Any] = []

    def dcp_sync() -> None:
        dcp.save(tree, checkpoint_id=str(directory / f"dcp-{next(steps) % 2}"))

    def dcp_async() -> None:
        running.append(dcp.async_save(tree, checkpoint_id=str(directory / f"async-{next(steps) % 2}")))

    def dcp_wait() -> None:
        running.pop().result()

    warnings.filterwarnings("ignore", module="torch.distributed")
    return {
        "ours": trainer_save_method(directory / "ours", state),
        "torch_save": SaveMethod(plain, lambda: None),
        "dcp_save": SaveMethod(dcp_sync, lambda: None),
        "dcp_async": SaveMethod(dcp_async, dcp_wait),
    }


def trainer_save_method(place: Path | StorageUrl, state: dict[str, Any]) -> SaveMethod:
    """The trainer's way to save a state at a place."""
    from bench.workloads.save_loop import a_saver, draft
    from ddp_trainer.train.checkpoint.torch_zip_writer import pack

    saver = a_saver(place, 0)
    saver.open()
    saver.reserve(pack(state).storage_bytes)
    steps = iter(range(1, 1 << 20))

    def save_with_manager() -> None:
        step = next(steps)
        saver.save(step, lambda: state, lambda: draft(step))

    return SaveMethod(save_with_manager, saver.wait_for_save)


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process, which its children inherit, and restore them."""
    before = dict(os.environ)
    os.environ.update(variables)
    tempfile.tempdir = None
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        tempfile.tempdir = None
