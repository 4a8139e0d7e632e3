"""Samples that an epoch loses or repeats when the world changes on its way: 4 ranks, 3 after 10 steps, 2 after 20.

1,000 samples, read to the end of the epoch by real processes over gloo, which write down what their training steps were
computed on. One column keeps the global batch of 24; one the batch of 8 of each rank, so that the global one shrinks
with the world, which ours never does: it keeps the first one, 32; and one keeps a global batch of 32, which 3 ranks
cannot share evenly, and which only ours can express. The peers' groups leave in good order after their last step. Ours
do not: a rank is killed in the midst of the step after. Peers that are not installed are named and left out.

The part ``streams`` reads shards from a real S3 server. Worlds of 4, 3, 1 and 2 ranks share an epoch, each ended by a
kill; four ranks read an epoch without a fault, whose bytes are counted; and a new process resumes at 90 % of an epoch
of 10,000 shards and 10 million samples.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Final

from bench.harness import CannotMeasure, Options, Report
from bench.workloads import sample_loops, stream_epoch
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
PARTS: Final = ("worlds", "streams")
STREAMS: Final = {
    "undisturbed": ResizeSchedule(((4, None),), lambda _world: stream_epoch.BATCH),
    "resized": ResizeSchedule(((4, 10), (3, 8), (1, 5), (2, None)), lambda _world: stream_epoch.BATCH),
}
STREAM_IMPORTS: Final = ("s3fs", "bench.workloads.stream_epoch")
RESUMES: Final = 5
ATTEMPTS: Final = 3
"""Attempts of a peer to read an epoch."""


def measure(options: Options) -> Report:
    """Measure all cells of the table, and streams."""
    report, parts = Report(), options.parts(PARTS)
    with tempfile.TemporaryDirectory(prefix="ddp-bench-") as name:
        if "worlds" in parts:
            _measure_cases(Path(name), report, options)
        if "streams" in parts:
            _measure_streams(Path(name), report, options)
    return report


def _measure_streams(directory: Path, report: Report, options: Options) -> None:
    from tests.support import object_stores

    if not _is_installed("s3fs") or not (object_stores.BIN / "rclone").exists():
        raise CannotMeasure("An S3 server and its client are missing: make stores.")
    context = server(IMPORTED[:2] + STREAM_IMPORTS)
    bucket = directory / "store/files" / object_stores.BUCKET
    size_bytes = stream_epoch.write_epoch(bucket / "epoch")
    stream_epoch.write_large_index(bucket / "large")
    with object_stores.rclone(directory / "store") as store:

        def read(name: str, case: ResizeSchedule, *, dies: bool) -> tuple[int, int, int]:
            reads = directory / f"reads-{name}"
            reads.mkdir()
            arm = stream_epoch.StreamArm(f"s3://{object_stores.BUCKET}/epoch", store.environ, reads)
            used = read_epoch(context, arm, case, directory / f"streams-{name}", dies=dies)
            return *account(used), stream_epoch.bytes_read(reads)

        for name, case in STREAMS.items():
            lost, repeated, read_bytes = read(name, case, dies=len(case.worlds) > 1)
            options.progress(f"streams, {name}: {lost} lost, {repeated} repeated, {read_bytes / size_bytes:.3f} read")
            report.figure(f"streams_{name}_lost_samples", lost)
            report.figure(f"streams_{name}_repeated_samples", repeated)
            report.figure(f"streams_{name}_read_ratio", read_bytes / size_bytes)
            report.at_most(f"samples lost, streams {name}", lost, 0)
            report.at_most(f"samples repeated, streams {name}", repeated, 0)
            if name == "undisturbed":
                report.at_most("bytes read without faults / bytes of the data set", read_bytes / size_bytes, 1.1)
        os.environ |= store.environ
        seconds = [stream_epoch.resume_seconds(f"s3://{object_stores.BUCKET}/large", 0.9) for _ in range(RESUMES)]
        summary = report.figure("streams_resume_seconds", [wall for wall, _ in seconds])
        report.figure("streams_resume_cpu_seconds", [cpu for _, cpu in seconds])
        options.progress(f"streams, resume at 90 % of 10,000 shards: {summary.median:.2f} s")
        report.at_most("seconds to resume at 90 % of 10,000 shards", summary.median, 2.0)


def _measure_cases(directory: Path, report: Report, options: Options) -> None:
    context = server([module for module in (*IMPORTED, *LATE) if _is_installed(module)])
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
