"""Samples that an epoch loses or repeats when the world changes on its way: 4 ranks, 3 after 10 steps, 2 after 20.

1,000 samples, read to the end of the epoch. One column keeps the global batch of 24; one the batch of 8 of each rank,
so that the global one shrinks with the world, which ours never does; and one keeps a global batch of 32, which 3 ranks
cannot share evenly, and which only ours can express. Ours is computed from the plan by which its ranks read, which
tests hold against real processes. Peers that are not installed are named and left out.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Final

from bench._samplers import Read, Resizes, accelerate, account, lightning, ours, torch_sampler
from bench.harness import Options, Report

SUMMARY = "samples lost and repeated while the world shrinks from 4 to 3 to 2 ranks"

WORLDS: Final = ((4, 10), (3, 10), (2, None))
COLUMNS: Final = {
    "global_batch_kept": Resizes(WORLDS, lambda _world: 24),
    "rank_batch_kept": Resizes(WORLDS, lambda world: 8 * world),
    "uneven": Resizes(WORLDS, lambda _world: 32),
}
PEERS: Final[dict[str, tuple[str, Callable[[Resizes], Read]]]] = {
    "torch_sampler": ("torch", torch_sampler),
    "accelerate": ("accelerate", accelerate),
}
"""Name → the module that it needs, and the arm."""


def measure(options: Options) -> Report:
    """Fill the table; nothing in it is left to chance."""
    report = Report()
    for column in ("global_batch_kept", "uneven"):
        lost, repeated = account(ours(COLUMNS[column]))
        options.progress(f"ours, {column}: {lost} lost, {repeated} repeated")
        report.figure(f"ours_{column}_lost_samples", lost)
        report.figure(f"ours_{column}_repeated_samples", repeated)
        report.at_most(f"samples lost, {column}", lost, 0)
        report.at_most(f"samples repeated, {column}", repeated, 0)
    for name, (module, arm) in PEERS.items():
        if not _has(module, options):
            continue
        for column in ("global_batch_kept", "rank_batch_kept"):
            _tell(report, f"{name}_{column}", arm(COLUMNS[column]), options)
    if _has("lightning", options):
        _tell(report, "lightning_resumed_on_1_rank", lightning(), options)
    return report


def _has(module: str, options: Options) -> bool:
    found = importlib.util.find_spec(module) is not None
    if not found:
        options.progress(f"Not installed, and left out: {module} (pip install --group bench).")
    return found


def _tell(report: Report, name: str, read: Read, options: Options) -> None:
    lost, repeated = account(read)
    options.progress(f"{name}: {lost} lost, {repeated} repeated")
    report.baseline(f"{name}_lost_samples", lost)
    report.baseline(f"{name}_repeated_samples", repeated)
