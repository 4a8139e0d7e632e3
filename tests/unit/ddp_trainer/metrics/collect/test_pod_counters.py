"""Counters of a pod: sums over its ranks that never fall."""

from __future__ import annotations

from pathlib import Path

from ddp_trainer.common.metric_names import Metric, cell
from ddp_trainer.common.time_classes import Phase
from ddp_trainer.metrics import attach
from ddp_trainer.metrics.collect.pod_sampler import PodCounters
from ddp_trainer.metrics.storage.mmap_directory import rank_metrics_path, read_pod_snapshot
from ddp_trainer.process.recorder import RankRecorder
from tests.support.metrics_processes import rank_variables

SAMPLES = "ddp_pod_samples_total"
FORWARD = cell("ddp_pod_step_phase_seconds_total", Phase.FORWARD)


def rank(directory: Path, local: int) -> RankRecorder:
    recorder = attach.rank_recorder(rank_variables(directory, local, of=2))
    recorder.identity(rank=local, local_rank=local, world_size=2, backend="gloo", device="cpu")
    return recorder


def stepped(recorder: RankRecorder, samples: int) -> None:
    recorder.step(1, 0, samples, *[0.25] * len(Phase))


def looked(sums: PodCounters, directory: Path) -> dict[str, float]:
    return sums.values(read_pod_snapshot(directory).ranks)


def test_a_sum_grows_as_its_ranks_do(tmp_path: Path) -> None:
    first, second, sums = rank(tmp_path, 0), rank(tmp_path, 1), PodCounters()
    assert set(looked(sums, tmp_path).values()) == {0.0}
    stepped(first, 16)
    stepped(second, 8)
    values = looked(sums, tmp_path)
    assert (values[SAMPLES], values[FORWARD], values["ddp_pod_tokens_total"]) == (24, 0.5, 0)
    assert looked(sums, tmp_path) == values, "a look adds nothing by itself"


def test_steps_before_the_start_of_the_exporter_do_not_count(tmp_path: Path) -> None:
    recorder = rank(tmp_path, 0)
    stepped(recorder, 16)
    sums = PodCounters()
    assert looked(sums, tmp_path)[SAMPLES] == 0
    stepped(recorder, 4)
    assert looked(sums, tmp_path)[SAMPLES] == 4


def test_a_sum_does_not_fall_when_a_board_is_lost_nor_jump_when_it_is_there_again(tmp_path: Path) -> None:
    first, second, sums = rank(tmp_path, 0), rank(tmp_path, 1), PodCounters()
    looked(sums, tmp_path)
    stepped(first, 16)
    stepped(second, 8)
    assert looked(sums, tmp_path)[SAMPLES] == 24
    metrics_file, aside = rank_metrics_path(tmp_path, 1), tmp_path / "aside"
    metrics_file.rename(aside)
    stepped(first, 1)
    assert looked(sums, tmp_path)[SAMPLES] == 25
    aside.rename(metrics_file)
    assert looked(sums, tmp_path)[SAMPLES] == 25


def test_a_new_board_is_counted_from_0(tmp_path: Path) -> None:
    sums = PodCounters()
    looked(sums, tmp_path)
    stepped(rank(tmp_path, 0), 16)
    assert looked(sums, tmp_path)[SAMPLES] == 16
    rank_metrics_path(tmp_path, 0).unlink()
    stepped(rank(tmp_path, 0), 4)
    assert read_pod_snapshot(tmp_path).ranks[0].file.values[Metric.SAMPLES] == 4
    assert looked(sums, tmp_path)[SAMPLES] == 20
