"""Samples that an epoch loses or repeats when the world changes on its way: 4 ranks, 3 after 10 steps, 2 after 20.

1,000 samples, read to the end of the epoch by real processes over gloo, which write down what their training steps were
computed on. One column keeps the global batch of 24; one the batch of 8 of each rank, so that the global one shrinks
with the world, which ours never does: it keeps the first one, 32; and one keeps a global batch of 32, which 3 ranks
cannot share evenly, and which only ours can express. The peers' groups leave in good order after their last step. Ours
do not: a rank is killed in the midst of the step after. Peers that are not installed are named and left out.
"""

from __future__ import annotations

import importlib.util
import tempfile
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Final

from bench.harness import CannotMeasure, Options, Report
from bench.workloads import sample_loops
from bench.workloads.elastic_epoch import Arm, ResizeSchedule, account, read_epoch, server

SUMMARY = "samples lost and repeated by real processes while the world shrinks from 4 to 3 to 2 ranks"

WORLDS: Final = ((4, 10), (3, 10), (2, None))
COLUMNS: Final = {
    "global_batch_kept": ResizeSchedule(WORLDS, lambda _world: 24),
    "rank_batch_kept": ResizeSchedule(WORLDS, lambda world: 8 * world),
    "uneven": ResizeSchedule(WORLDS, lambda _world: 32),
}
EXPRESSIBLE: Final = ("global_batch_kept", "rank_batch_kept")
"""Columns that peers support; all their ranks have batches of one size."""
PEERS: Final[dict[str, tuple[str, Arm]]] = {
    "torch_sampler": ("torch", sample_loops.torch_sampler),
    "accelerate": ("accelerate", sample_loops.accelerate),
    "lightning": ("lightning", sample_loops.lightning),
    "hugging_face": ("transformers", sample_loops.hugging_face),
}
"""Name → the module that it needs, and the arm."""
IMPORTED: Final = ("torch", "ddp_trainer.train.elastic_loop", "accelerate", "lightning.pytorch", "transformers.trainer")
LATE: Final = ("torch._dynamo", "torch.distributed.fsdp")
"""Modules that peers import during a step, in every rank again."""
ATTEMPTS: Final = 3
"""Attempts of a peer to read an epoch."""


def measure(options: Options) -> Report:
    """Measure all cells of the table."""
    report = Report()
    context = server([module for module in (*IMPORTED, *LATE) if _is_installed(module)])
    with tempfile.TemporaryDirectory(prefix="ddp-bench-") as name:
        directory = Path(name)
        for column, case in COLUMNS.items():
            read = read_epoch(context, sample_loops.reference_trainer, case, directory / f"ours-{column}", dies=True)
            lost, repeated = account(read)
            options.progress(f"ours, {column}: {lost} lost, {repeated} repeated")
            report.figure(f"ours_{column}_lost_samples", lost)
            report.figure(f"ours_{column}_repeated_samples", repeated)
            report.at_most(f"samples lost, {column}", lost, 0)
            report.at_most(f"samples repeated, {column}", repeated, 0)
        for peer, (module, arm) in PEERS.items():
            if not _is_installed(module):
                options.progress(f"Not installed, and left out: {module} (pip install --group bench).")
                continue
            for column in EXPRESSIBLE:
                read = _read_with_retry(context, arm, COLUMNS[column], directory / f"{peer}-{column}", options)
                if read is None:
                    continue
                lost, repeated = account(read)
                options.progress(f"{peer}, {column}: {lost} lost, {repeated} repeated")
                report.baseline(f"{peer}_{column}_lost_samples", lost)
                report.baseline(f"{peer}_{column}_repeated_samples", repeated)
    return report


def _read_with_retry(
    context: ForkServerContext, arm: Arm, case: ResizeSchedule, directory: Path, options: Options
) -> list[int] | None:
    """Return the samples that a peer's groups have read; None if every attempt failed.

    The start and end of a peer's groups are not measured. Every failure is reported.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return read_epoch(context, arm, case, directory / str(attempt))
        except CannotMeasure as err:
            options.progress(f"{directory.name}, attempt {attempt} of {ATTEMPTS}: {err}")
    return None


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module.split(".", maxsplit=1)[0]) is not None
