"""Time and memory as the data set and the state grow, beside stock torch in the same run.

``transfer``: a state from one rank to another, against one raw broadcast of the same bytes. ``faults``: two agents with
a rank each lose a worker and a node, get the node back, and start again from their checkpoint; beside them two ranks of
stock torchrun, with ``torch.save`` and with ``dcp``. Most weights of these jobs are not trained
(:mod:`bench.scripts.growing_task`), so the figures are those of the recovery and not of large steps. ``samples``: the
commit of a step, and samples per second of processor time of a whole run. ``resume``: a state from a directory, against
``torch.load(mmap=True)`` with ``load_state_dict``. ``save``: how long a save stops the training.

Each figure has the exponent of its growth, 0 if the size does not matter. ``--out DIR`` writes a table and two plots.
The page cache holds the files, so no part measures a disk. ``--quick`` takes at most four minutes on a quiet machine:
states of 10 MB and 1 GB, faults with 1 GB alone, and stock torchrun with ``torch.save`` alone.
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

from bench.drivers.two_agent_job import GIVEN_UP, two_agent_job
from bench.growth import growth_exponent, growth_plot, growth_table
from bench.harness import CannotMeasure, Options, Report, interleaved, paired_ratio
from bench.measurements.checkpoint import environment, make_save_methods
from bench.measurements.recovery import begin, torchrun_recovery
from bench.peers.torchrun_driver import torchrun
from bench.scripts.growing_task import STATE_MEGABYTES, Growing
from ddp_trainer.common.constants import Env
from ddp_trainer.train import Config, run
from ddp_trainer.train.checkpoint.checkpoint_broadcast import Receive, broadcast_latest_checkpoint, from_rank
from ddp_trainer.train.checkpoint.checkpoint_files import Checkpoint, read
from ddp_trainer.train.checkpoint.checkpoint_verify import BackgroundVerification
from ddp_trainer.train.checkpoint.torch_zip_writer import pack
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.data.batch_plan import SampleTracker
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.loop.train_state import load_full_state
from ddp_trainer.train.optim.optimizer import OptimizerWrapper
from tests.support.forked_ranks import run_ranks
from tests.support.train_builders import ALONE, a_directory, a_manifest

SUMMARY = "steps, commits, saves, transfers, recoveries and resumes at growing sizes of data set and state"
PARTS = ("transfer", "faults", "samples", "resume", "save")
HAS_OUT = True

SAMPLES: Final = {"100k": 10**5, "1m": 10**6, "10m": 10**7, "100m": 10**8, "1b": 10**9}
STATES: Final = {"10mb": 10, "100mb": 100, "1gb": 1000, "2gb": 2000}
"""Size of a state, in megabytes."""
QUICK_STATES: Final = ("10mb", "1gb")
QUICK_FAULTS: Final = ("1gb",)
KILLS: Final = 3
STOCK_KINDS: Final[Mapping[str, tuple[str, ...]]] = {"torch_save": (), "dcp": ("--dcp",)}
STOCK_STATES: Final = ("10mb", "1gb")
STOCK_SAVE_STEPS: Final = 100
TRAIN: Final = (
    *("-m", "ddp_trainer", "train", "--task", "bench.scripts.growing_task:Growing", "--epochs", "1000000"),
    *("--global-batch", "64", "--schedule", "constant", "--checkpoint-seconds", "30", "--log-json", "--log-steps", "1"),
)
WIDTH: Final = 1024
BATCH: Final = 4096
STEPS: Final = 100
MOVES: Final = {
    "raw broadcast": "raw_broadcast_{}",
    "transfer": "transfer_{}",
    "torch.load with mmap": "torch_load_{}",
    "cold resume": "resume_{}",
    "cold resume, verified": "resume_{}_verified",
    "stall of a save": "save_stall_{}",
    "stall of torch.save": "torch_save_stall_{}",
    "stall of dcp.save": "dcp_save_stall_{}",
    "stall of dcp.async_save": "dcp_async_stall_{}",
}
RECOVERY: Final = {
    "a worker is killed: survivor": "survivor_{}",
    "a worker is killed: all ranks": "worker_lost_{}",
    "stock torchrun, torch.save": "torchrun_torch_save_{}",
    "stock torchrun, dcp": "torchrun_dcp_{}",
    "a node is lost": "node_lost_{}",
    "a node joins": "join_{}",
    "pause of a join": "join_gap_{}",
    "both nodes start again": "cold_start_{}",
    "step": "step_{}",
}
BY_SAMPLES: Final = {"commit of 4,096 samples": "commit_{}_samples"}
"""Row of a table → name of its figures, with the size for ``{}``."""
OWN_FIGURES: Final = ("survivor", "worker_lost", "node_lost", "join", "join_gap", "cold_start", "step")
"""Times of ``faults``, in seconds."""


def measure(options: Options) -> Report:
    """Take the selected parts; the ranks are forked before torch has started threads."""
    report = Report()
    parts: dict[str, Callable[[Report, Options], None]] = {
        "transfer": measure_transfer,
        "faults": measure_recovery,
        "samples": measure_samples,
        "resume": measure_resume,
        "save": measure_save,
    }
    for part in options.parts(PARTS):
        began = time.monotonic()
        parts[part](report, options)
        options.progress(f"{part}: {time.monotonic() - began:.0f} s")
    if options.out is not None:
        write_results(report, options.out)
    return report


def state_sizes(options: Options) -> dict[str, int]:
    """Return the sizes of state to measure, in megabytes."""
    return {name: STATES[name] for name in QUICK_STATES} if options.quick else dict(STATES)


def add_growth(report: Report, name: str, sizes: Mapping[str, int], values: Mapping[str, float]) -> None:
    """Add the exponent with which the values grow, if there are several."""
    if len(values) > 1:
        report.figure(f"{name}_growth_ratio", growth_exponent(sizes, values))


def measure_samples(report: Report, options: Options) -> None:
    """Measure the commit of a step, and runs over a small and a large data set in turns."""
    trackers = {name: SampleTracker(count) for name, count in SAMPLES.items()}
    commits = {name: partial(time_commit, trackers[name], count) for name, count in SAMPLES.items()}
    seconds = interleaved(commits, rounds=20, options=options)
    medians = {name: report.figure(f"commit_{name}_samples_seconds", values).median for name, values in seconds.items()}
    add_growth(report, "commit", SAMPLES, medians)
    for name, tracker in trackers.items():
        report.figure(f"tracker_{name}_samples_bytes", tracker.state_dict()["seen"].nbytes)
    report.at_most("seconds to commit 4,096 of 100 million samples", min(seconds["100m"]), 0.001)
    runs = {name: partial(time_run, SAMPLES[name]) for name in ("100k", "10m")}
    seconds = interleaved(runs, rounds=5 if options.quick else 10, options=options)
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
    run(config, Growing(count), env=Environment())
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
    rounds = 6
    medians: dict[str, float] = {}
    for name, megabytes in state_sizes(options).items():
        results = run_ranks(2, partial(time_state_transfer, megabytes=megabytes, rounds=rounds))
        if not all(isinstance(result, tuple) for result in results):
            raise CannotMeasure(f"A rank failed: {results}")
        raw, transfers, _ = results[0]
        medians[name] = report.figure(f"transfer_{name}_seconds", transfers).median
        report.baseline(f"raw_broadcast_{name}_seconds", raw)
        ratio = report.figure(f"transfer_{name}_ratio", paired_ratio(transfers, raw)).median
        memory = report.figure(f"transfer_{name}_memory_bytes", [result[2] for result in results]).maximum
        options.progress(f"{name}: {ratio:.2f} of a raw broadcast")
        if name == "1gb":
            report.at_most("transfer of 1 GB over a raw broadcast", ratio, 1.3)
            report.at_most("bytes of memory for a transfer of 1 GB", memory, 64 << 20)
    add_growth(report, "transfer", STATES, medians)


def time_state_transfer(group: Group, megabytes: int, rounds: int) -> tuple[list[float], list[float], int]:
    """Return seconds of raw broadcasts and of transfers, and the bytes that the latter need, on one rank."""
    model, optimizer = make_model(megabytes)
    state: dict[str, Any] = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    own = Checkpoint(a_manifest(1), state=state) if group.rank == 0 else None
    receive = Receive(is_wanted=True, targets=lambda: state)
    plain = torch.ones(pack(state).storage_bytes, dtype=torch.uint8)
    raw, transfers, most = [], [], 0
    for _ in range(rounds):
        raw.append(time_all_ranks(group, lambda: dist.broadcast(plain, 0)))
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark becomes the present size
        before = memory_bytes("VmHWM")
        transfers.append(time_all_ranks(group, lambda: from_rank(0, own, group, receive=receive)))
        most = max(most, memory_bytes("VmHWM") - before)
    return raw, transfers, most


def time_all_ranks(group: Group, work: Callable[[], object]) -> float:
    """Seconds until all ranks have done their work."""
    group.gather(0)
    began = time.perf_counter()
    work()
    group.gather(0)
    return time.perf_counter() - began


def memory_bytes(entry: str, process: int | str = "self") -> int:
    """Return an entry of the status of a process, in bytes."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(entry))


def measure_resume(report: Report, options: Options) -> None:
    """Measure loads from a directory in turns."""
    medians: dict[str, float] = {}
    for name, megabytes in state_sizes(options).items():
        with tempfile.TemporaryDirectory(prefix="ddp-bench-") as directory:
            model, optimizer = make_model(megabytes)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            a_directory(Path(directory)).write(a_manifest(1), pack(state))
            place, wrapper = Path(directory) / "step-00000001", OptimizerWrapper(optimizer, Config(), STEPS)
            arms = {
                "ours": partial(time_load, place, model, wrapper),
                "verified": partial(time_load, place, model, wrapper, until_verified=True),
                "torch": partial(time_torch_load, place, model, optimizer),
            }
            seconds = interleaved(arms, rounds=5, options=options)
        medians[name] = report.figure(f"resume_{name}_seconds", seconds["ours"]).median
        report.figure(f"resume_{name}_verified_seconds", seconds["verified"])
        report.baseline(f"torch_load_{name}_seconds", seconds["torch"])
        ratio = report.figure(f"resume_{name}_ratio", paired_ratio(seconds["ours"], seconds["torch"])).median
        if name == "1gb":
            report.at_most("cold resume of 1 GB over torch.load with mmap", ratio, 1.5)
    add_growth(report, "resume", STATES, medians)


def time_load(place: Path, model: nn.Module, optimizer: OptimizerWrapper, *, until_verified: bool = False) -> float:
    """Seconds until the first step may begin, or until the digest is checked and nothing is mapped."""
    optimizer.optimizer.state.clear()  # a new process has no moments to free
    began = time.perf_counter()
    found = broadcast_latest_checkpoint(read(place, verified=False), ALONE, lambda _: None)
    assert found is not None
    verification = BackgroundVerification(found, ALONE, print)
    load_full_state(found, model, optimizer)
    verification.start()
    seconds = time.perf_counter() - began
    optimizer.wait_for_copies()
    verification.agree(wait=True)
    return time.perf_counter() - began if until_verified else seconds


def time_torch_load(place: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Seconds to load weights and moments; the moments stay mapped, and no digest is checked."""
    optimizer.state.clear()
    began = time.perf_counter()
    state = torch.load(place / "state.pt", map_location="cpu", mmap=True, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return time.perf_counter() - began


def measure_save(report: Report, options: Options) -> None:
    """Measure how long saves stop the training, in turns."""
    medians: dict[str, float] = {}
    for name, megabytes in state_sizes(options).items():
        with tempfile.TemporaryDirectory(prefix="ddp-bench-") as directory:
            arms = make_save_methods(Path(directory), megabytes * 10**6)
            for arm in arms.values():
                arm.time_save()  # allocates the memory
            rounds = 2 if options.quick else 3
            stalls = interleaved({key: arm.time_save for key, arm in arms.items()}, rounds=rounds, options=options)
        medians[name] = report.figure(f"save_stall_{name}_seconds", stalls.pop("ours")).median
        for key, seconds in stalls.items():
            report.baseline(f"{key}_stall_{name}_seconds", seconds)
    add_growth(report, "save_stall", STATES, medians)


def measure_recovery(report: Report, options: Options) -> None:
    """Measure faults of jobs with growing states and data sets, and the same of stock torchrun."""
    sizes = {name: size for name, size in state_sizes(options).items() if name in QUICK_FAULTS or not options.quick}
    times: dict[str, dict[str, float]] = {name: {} for name in OWN_FIGURES}
    with tempfile.TemporaryDirectory(prefix="ddp-bench-") as directory:
        for size, megabytes in sizes.items():
            for name, seconds in time_recovery(Path(directory) / size, megabytes, report, size).items():
                times[name][size] = report.figure(f"{name}_{size}_seconds", seconds).median
            options.progress(f"{size}: " + ", ".join(f"{name} {of[size]:.2f} s" for name, of in times.items()))
        for size in ("1gb",) if options.quick else STOCK_STATES:
            for kind, arguments in list(STOCK_KINDS.items())[: 1 if options.quick else None]:
                name = f"{kind}_{size}"
                stock = run_baseline(Path(directory) / name, sizes[size], arguments, report, name)
                took = ", ".join(f"{seconds:.2f} s" for seconds in stock) or "did not recover"
                options.progress(f"{size}: stock torchrun with {kind} {took}")
    for name, of in times.items():
        add_growth(report, name, STATES, of)
    first, group = times["survivor"]["1gb"], times["worker_lost"]["1gb"]
    limit = report.baselines.get("torchrun_torch_save_1gb_p50_seconds", GIVEN_UP)
    report.at_most("all ranks step after a worker with 1 GB is killed, over stock torchrun", group / limit, 0.2)
    if (raw := report.baselines.get("raw_broadcast_1gb_p50_seconds")) is not None:
        report.at_most("first step of the survivor of 1 GB, over a raw broadcast", first / raw, 1.5)


def time_recovery(directory: Path, megabytes: int, report: Report, size: str) -> dict[str, list[float]]:
    """Return the seconds of :data:`OWN_FIGURES` of a job with a state of this size.

    Raises:
        CannotMeasure: The job did not train again.
    """
    found: dict[str, list[float | None]] = {name: [] for name in OWN_FIGURES}
    with environment({STATE_MEGABYTES: str(megabytes)}), two_agent_job(directory, TRAIN) as run:
        run.train(world=2, steps=STEPS)
        steady = [step.time for step in run.telling.steps][-STEPS:]
        found["step"].append(statistics.median(after - before for before, after in pairwise(steady)))
        for _ in range(KILLS):
            for place in (0, 1):
                run.warm(place)
            worker, killed = run.worker(1), time.time()
            os.kill(worker, signal.SIGKILL)
            found["survivor"].append(_since(killed, run.next_group_first_step(killed)))
            found["worker_lost"].append(_since(killed, run.next_group_first_step(killed, world=2)))
            run.train(world=2)
        report.figure(f"memory_{size}_bytes", [memory_bytes("VmRSS", run.worker(place)) for place in (0, 1)])
        lost = run.kill(1)
        found["node_lost"].append(_since(lost, run.first_step(lost, world=1)))
        run.train(world=1)
        begun = run.start(1)
        joint = run.first_step(begun, world=2)
        found["join"].append(_since(begun, joint))
        found["join_gap"].append(None if joint is None else joint - run.last_step(joint))
        run.train(world=2)
        for place in (1, 0):
            run.end(place)
        begun = run.start(0)
        run.start(1)
        found["cold_start"].append(_since(begun, run.first_step(begun, world=2)))
    measured = {name: [value for value in seconds if value is not None] for name, seconds in found.items()}
    if failed := [name for name in OWN_FIGURES if len(measured[name]) < len(found[name])]:
        raise CannotMeasure(f"With {megabytes} MB, the job did not train within {GIVEN_UP:g} s: {', '.join(failed)}.")
    return measured


def _since(began: float, stepped: float | None) -> float | None:
    return None if stepped is None else stepped - began


def run_baseline(directory: Path, megabytes: int, arguments: tuple[str, ...], report: Report, name: str) -> list[float]:
    """Return the seconds until two ranks of stock torchrun step again, for each kill of one after which they do.

    Raises:
        CannotMeasure: They did not begin to train.
    """
    script = ("--save-steps", str(STOCK_SAVE_STEPS), *arguments)
    with (
        # By default, new ranks may read the addresses of the last ones from the shared store, and never meet.
        environment({STATE_MEGABYTES: str(megabytes), Env.SHARE_STORE_OFF: "1"}),
        torchrun(directory, nnodes="1", nproc=2, arguments=("--max-restarts=9",), script_arguments=script) as run,
    ):
        begin(run, 2)
        if run.wait(lambda step: step.step > STOCK_SAVE_STEPS, timeout=GIVEN_UP, workers=2) is None:
            raise CannotMeasure(f"Stock torchrun did not save {megabytes} MB within {GIVEN_UP:g} s.")
        report.baseline(f"torchrun_{name}_memory_bytes", [memory_bytes("VmRSS", step.pid) for step in run.steps()[-2:]])
        attempts = [torchrun_recovery(run, run.kill_worker, 2) for _ in range(KILLS)]
    seconds = [value for value in attempts if value is not None]
    report.baseline(f"torchrun_{name}_recovered_ratio", len(seconds) / KILLS)
    if seconds:
        report.baseline(f"torchrun_{name}_seconds", seconds)
    return seconds


def write_results(report: Report, folder: Path) -> None:
    """Write ``scale.md``, tables of all times by size, and two plots."""
    every = {**report.baselines, **report.figures}

    def series(sizes: Mapping[str, int], rows: Mapping[str, str]) -> dict[str, dict[int, float]]:
        found: dict[str, dict[int, float]] = {}
        for label, name in rows.items():
            for size, number in sizes.items():
                for key in (f"{name.format(size)}_p50_seconds", f"{name.format(size)}_seconds"):
                    if key in every:
                        found.setdefault(label, {})[number] = every[key]
        return found

    folder.mkdir(parents=True, exist_ok=True)
    found = [(sizes, series(sizes, rows)) for sizes, rows in ((STATES, RECOVERY | MOVES), (SAMPLES, BY_SAMPLES))]
    (folder / "scale.md").write_text("\n".join(growth_table(sizes, rows) for sizes, rows in found if rows))
    for file, title, rows in (
        ("scale-recovery.svg", "From a fault to the next step", RECOVERY),
        ("scale-state.svg", "Copies of the state", MOVES),
    ):
        if shown := series(STATES, rows):
            (folder / file).write_text(growth_plot(title, "MB of state", shown))
