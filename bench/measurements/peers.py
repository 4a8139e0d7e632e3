"""The same faults for this project and its peers: time to the next step, steps done again, samples, weights, cost.

One model, one data set and one plain loop (``bench/peers/loops/plain.py``) with its own checkpoint. Two nodes of one
worker each run on this machine, over gloo. Each combination of peer, settings, fault, size of the state and repeat is a
cell with one result file and its logs under ``build/bench-peers``. A cell with a result is not run again, so an
interrupted measurement continues where it was. Remove the folder to start from the beginning.

``make bench-peers`` installs the peers. ``--quick`` runs each fault once with a state of 1 MB, for at most 20 minutes;
the whole takes at most three hours, and starts no cell after that. ``--only`` names peers, faults or both. ``python -m
bench.peers.page`` writes docs/peers.md from the results.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bench.harness import CannotMeasure, Options, Report, machine
from bench.peers.fault_run import (
    FaultRun,
    MachineStalled,
    fault_run,
    inject_at_intervals,
    net_steps,
    recovery_times,
    save_steps,
)
from bench.peers.peer import FAULTS, LOOPS, ROOT, Peer, load_peers

SUMMARY = "the same faults for torchrun, ft_launcher, torchft, Ray Train and ours: recovery, samples, weights, cost"

HAS_OUT: Final = True
OUT: Final = ROOT / "build" / "bench-peers"
PARTS: Final = (*load_peers(), *FAULTS)
REPEATS: Final = 5
LARGE_FAULT: Final = "worker_killed"
"""The fault that the whole measurement also injects with the large state; more would take longer than three hours."""
LARGE_MEGABYTES: Final = 500
DETECTED: Final = ("rank_stopped", "rank_hung", "node_killed")
"""Faults that a peer notices after a time that its settings give."""
LIMIT_SECONDS: Final = 3 * 3600.0
QUICK_LIMIT_SECONDS: Final = 18 * 60.0
START_SECONDS: Final = 120.0
GIVE_UP_SECONDS: Final = 60.0
QUICK_GIVE_UP_SECONDS: Final = 50.0
UNDISTURBED_SECONDS: Final = 180.0
CALM_SECONDS: Final = 3.0
STORM_SECONDS: Final = 300.0
QUICK_STORM_SECONDS: Final = 20.0
EVERY_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Cell:
    """One run, which has one result."""

    peer: str
    fault: str
    megabytes: int
    fast: bool
    repeat: int
    quick: bool

    @property
    def name(self) -> str:
        """Name of its files."""
        kind = "fast" if self.fast else "default"
        return f"{'quick-' if self.quick else ''}{self.peer}-{kind}-{self.fault}-{self.megabytes}mb-{self.repeat}"


def plan_runs(options: Options) -> list[Cell]:
    """Return all cells, fault by fault, with the peers of a round in random order.

    A fault from which a peer does not recover, as its own documents say, is injected once.
    """
    chosen, known = options.parts(PARTS), load_peers()
    names = [name for name in chosen if name in known] or list(known)
    faults = [name for name in chosen if name in FAULTS] or list(FAULTS)
    cells: list[Cell] = []
    for fault in faults:
        for megabytes in (1,) if options.quick or fault != LARGE_FAULT else (1, LARGE_MEGABYTES):
            for repeat in range(1 if options.quick or fault == "storm" else REPEATS):
                options.random.shuffle(names)
                able = [name for name in names if not repeat or known[name].may_recover(fault)]
                cells += [Cell(name, fault, megabytes, True, repeat, options.quick) for name in able]
    if not options.quick:  # with the defaults of those that have faster settings, once, at the end
        tuned = [name for name in names if known[name].settings]
        cells += [
            Cell(name, fault, 1, False, 0, False)
            for name in tuned
            for fault in faults
            if fault in DETECTED and known[name].may_recover(fault)
        ]
    return cells


def compile_libraries(python: Path) -> None:
    """Compile what is installed beside ``python``, or the peer whose cell is the first would start slowest."""
    compile_all = "compileall.compile_dir(sysconfig.get_path('purelib'), quiet=2, workers=0)"
    subprocess.run([python, "-c", f"import compileall, sysconfig; {compile_all}"], check=True)


def run_cell(cell: Cell, peer: Peer, folder: Path, seed: int) -> dict[str, Any]:
    """Run a cell and return its result."""
    result: dict[str, Any] = {**asdict(cell), "load": os.getloadavg()[0], "cores": os.cpu_count()}
    if reason := peer.cannot.get(cell.fault):
        return {**result, "cannot": reason}
    nodes = 1 if cell.fault == "node_joins" else 2
    with fault_run(peer, folder, state_megabytes=cell.megabytes, nodes=nodes, fast=cell.fast) as run:
        if run.wait(lambda lines: _all_ranks_step(lines, nodes), START_SECONDS) is None:
            return {**result, "failed": "did not begin to train"}
        result |= _measure_baseline(run)
        _measure_fault(run, cell, result, seed)
    result |= _final_state(peer, folder)
    return result


def _all_ranks_step(lines: list[Any], world: int) -> float | None:
    ranks = {line.rank for line in lines[-20 * world :] if line.world == world and line.step > 10}
    return 1.0 if len(ranks) == world else None


def _measure_baseline(run: FaultRun) -> dict[str, float]:
    before, begun = run.usage(), time.time()
    run.wait(lambda _: None, CALM_SECONDS)
    after, ended = run.usage(), time.time()
    steps = max(1, net_steps(run.poll(), begun, ended))
    return {
        "calm_rate": steps / (ended - begun),
        "memory_bytes": after["memory"],
        "cpu_seconds_per_step": (after["seconds"] - before["seconds"]) / steps,
    }


def _measure_fault(run: FaultRun, cell: Cell, result: dict[str, Any], seed: int) -> None:
    if cell.fault == "storm":
        begun = time.time()
        faults = inject_at_intervals(run, QUICK_STORM_SECONDS if cell.quick else STORM_SECONDS, EVERY_SECONDS, seed)
        ended = time.time()
        kept = net_steps(run.poll(), begun, ended)
        result |= {"faults": faults, "goodput": kept / ((ended - begun) * result["calm_rate"])}
        # Does it train again, without another fault?
        outcome = recovery_times(list(run.lines), ended, 2, is_join=False)
    else:
        run.poll()
        begun = run.inject(cell.fault)
        before = [line for line in run.poll() if line.time <= begun]
        world = run.peer.workers_left if cell.fault == "node_killed" else 2
        outcome = recovery_times(before, begun, world, is_join=cell.fault == "node_joins")
    limit = QUICK_GIVE_UP_SECONDS if cell.quick else GIVE_UP_SECONDS
    run.wait(lambda lines: outcome(lines)["all_seconds"], limit)
    result |= outcome(run.lines)
    steps = save_steps(cell.megabytes)
    newest = run.lines[-1].step if run.lines else 0
    if result["any_seconds"] is not None:  # until rank 0 has written its weights once more
        run.wait(lambda lines: 1.0 if lines[-1].step > newest + steps else None, 10.0)


def _final_state(peer: Peer, folder: Path) -> dict[str, Any]:
    """Return what the weights say: samples lost and repeated, and how far they are from an undisturbed run's."""
    import torch

    if not (folder / "weights.pt").exists():
        return {}
    state = torch.load(folder / "weights.pt", weights_only=True)
    calm = folder / "undisturbed"
    calm.mkdir()
    loop = LOOPS / ("elastic_run.py" if peer.loop == "elastic_run.py" else "plain.py")
    environment = {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(LOOPS), str(ROOT / "trainer"), os.environ.get("PYTHONPATH")])),
        "BENCH_FOLDER": str(calm),
        "BENCH_STEPS": str(state["step"]),
        "BENCH_SAVE_STEPS": str(state["step"]),
        "BENCH_PAUSE": "0",
        "BENCH_STATE_MB": "0",
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, str(loop)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=UNDISTURBED_SECONDS,
    )
    if done.returncode:
        raise CannotMeasure(f"The undisturbed run ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    calm_state = torch.load(calm / "weights.pt", weights_only=True)
    weights, expected = state["weights"], calm_state["weights"]
    same_step = state["step"] == calm_state["step"]
    return {
        "final_step": state["step"],
        "lost_samples": state["lost"],
        "repeated_samples": state["repeated"],
        "weights_difference": float((weights - expected).abs().max() / expected.abs().max()) if same_step else None,
        "weights_equal": torch.equal(weights, expected),
    }


def load_results(out: Path) -> Iterator[dict[str, Any]]:
    """Return the results of all cells so far."""
    for file in sorted(out.glob("*.json")):
        yield json.loads(file.read_text())


def _installed_cells(options: Options, known: Mapping[str, Peer]) -> list[Cell]:
    """Return the cells whose peers are installed, after compiling what these import."""
    cells = plan_runs(options)
    for name in {cell.peer for cell in cells}:
        if missing := known[name].missing():
            options.progress(missing)
    cells = [cell for cell in cells if not known[cell.peer].missing()]
    for python in {known[cell.peer].python for cell in cells}:
        compile_libraries(python)
    return cells


def measure(options: Options) -> Report:
    """Run every cell that has no result yet."""
    out, known = (options.out or OUT).resolve(), load_peers()
    out.mkdir(parents=True, exist_ok=True)
    limit = QUICK_LIMIT_SECONDS if options.quick else LIMIT_SECONDS
    begun, cells, left = time.monotonic(), _installed_cells(options, known), 0
    for number, cell in enumerate(cells, 1):  # grows by the cells that come again
        file = out / f"{cell.name}.json"
        if file.exists():
            continue
        if time.monotonic() - begun > limit:
            left += 1
            continue
        folder = out / cell.name
        shutil.rmtree(folder, ignore_errors=True)
        started = time.monotonic()
        try:
            result = run_cell(cell, known[cell.peer], folder, options.seed)
        except MachineStalled:
            options.progress(f"{number}/{len(cells)} {cell.name}: the machine was suspended; the cell comes again.")
            cells.append(cell)
            continue
        except (CannotMeasure, OSError, subprocess.TimeoutExpired) as error:  # the other cells are still to run
            result = {**asdict(cell), "load": os.getloadavg()[0], "cores": os.cpu_count(), "failed": str(error)}
        result["wall_seconds"] = round(time.monotonic() - started, 1)
        for path in (*folder.glob("*.pt"), *folder.glob("checkpoints"), folder / "undisturbed", folder / "ray"):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        draft = file.with_suffix(".partial")
        draft.write_text(json.dumps(result, indent=1))
        draft.replace(file)
        shown = {key: result.get(key) for key in ("any_seconds", "all_seconds", "again_steps", "goodput", "failed")}
        options.progress(f"{number}/{len(cells)} {cell.name}, load {result['load']:.1f}: {shown}")
    if left:
        options.progress(f"{left} cells are left after {limit / 60:.0f} minutes; run the same command again.")
    return _report(out, options, left)


def _report(out: Path, options: Options, left: int) -> Report:
    report = Report(details={"left_cells": left, "machine_at_end": machine()})
    groups: dict[str, list[dict[str, Any]]] = {}
    for result in load_results(out):
        if result["quick"] == options.quick and result["fast"] and "cannot" not in result:
            groups.setdefault(f"{result['peer']}_{result['fault']}_{result['megabytes']}mb", []).append(result)
    for name, found in groups.items():
        report.figure(f"{name}_runs_count", len(found))
        report.figure(f"{name}_recovered_ratio", sum(r.get("all_seconds") is not None for r in found) / len(found))
        for key in ("any_seconds", "all_seconds", "again_steps", "lost_samples", "repeated_samples"):
            if values := [result[key] for result in found if result.get(key) is not None]:
                report.figure(f"{name}_{key}", values)
        if values := [result["goodput"] for result in found if "goodput" in result]:
            report.figure(f"{name}_goodput_ratio", values)
    if not groups:
        raise CannotMeasure("No peer is installed.")
    return report
