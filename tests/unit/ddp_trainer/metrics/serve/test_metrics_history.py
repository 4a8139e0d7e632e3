"""The history of a pod's metrics: its size, its resolution, and its forms in a file and in a log."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from ddp_trainer.common.constants import HISTORY_MARK, GroupState, RestartCause
from ddp_trainer.common.goodput import JobAccount
from ddp_trainer.common.metric_names import Metric
from ddp_trainer.common.time_classes import JobTime
from ddp_trainer.metrics import attach
from ddp_trainer.metrics.serve.history import (
    FILE,
    FIRST_SECONDS,
    LEFT_READINGS,
    MOST_READINGS,
    History,
    downsample,
    lines,
    read,
)
from ddp_trainer.process.recorder import RankRecorder, RendezvousResult
from kubectl_ddp.status import metrics_parser
from tests.support.clocks import Clock
from tests.support.metrics_processes import rank_variables

STEPS = (Metric.STEPS.value, (("rank", "0"), ("local_rank", "0")))
LOSS = (Metric.LOSS.value, ())
START = 1_700_000_000.0


def recorder(directory: Path) -> RankRecorder:
    return attach.rank_recorder(rank_variables(directory))


def trained(directory: Path, seconds: int, clock: Clock, *, history: History | None = None) -> History:
    """Sample a history five times a second, while a rank steps once a second."""
    rank = recorder(directory)
    history = history or History(directory, clock)
    for number in range(seconds * 5):
        history.sample_if_due()
        if number % 5 == 0:
            rank.step(number // 5 + 1, 0, 8, 0.125, 0, 0.25, 0.25, 0.25, 0.125, 0, 0)
            rank.progress(1.0 / (number + 1), 0.1)
        clock.now += 0.2
    return history


def test_a_history_of_any_length_keeps_between_half_of_the_most_readings_and_all(tmp_path: Path) -> None:
    clock = Clock(START)
    history = trained(tmp_path, 1000, clock)
    assert MOST_READINGS / 2 <= len(history.times) < MOST_READINGS
    assert history.times[-1] > clock.now - history.interval - 1
    assert history.interval == 16 * FIRST_SECONDS


def test_readings_that_are_dropped_cost_resolution_only(tmp_path: Path) -> None:
    times, series = read(trained(tmp_path, 500, Clock(START)).to_dict())
    steps = series[STEPS]
    assert steps[-1] == 500
    sampled = [(moment - START, value) for moment, value in zip(times, steps, strict=True) if value is not None]
    assert all(value == pytest.approx(seconds, abs=1.01) for seconds, value in sampled)
    assert series[Metric.PHASE_SECONDS.value, (("rank", "0"), ("local_rank", "0"))][-1] == pytest.approx(500.0)
    assert series[Metric.PHASE_SECONDS.value, (("phase", "forward"),)][-1] == pytest.approx(125.0)
    assert series[Metric.SAMPLES.value, ()][-1] == 4000


def test_it_holds_series_of_job_and_launcher_and_none_that_was_always_zero(tmp_path: Path) -> None:
    agent = attach.agent_recorder(tmp_path, {})
    agent.state(GroupState.RUNNING)
    agent.rendezvous_completed(
        RendezvousResult(1.5, 2, size=4, nodes=2, nodes_desired=2, restarts={RestartCause.FAILURE: 1})
    )
    recorder(tmp_path).account(JobAccount(1000.0, [float(number) for number, _ in enumerate(JobTime)], 3, 1.5))
    _, series = read(History(tmp_path, Clock(START)).to_dict())
    assert series[Metric.WORLD_SIZE.value, ()] == [4]
    assert series[Metric.RESTARTS.value, (("cause", "failure"),)] == [1]
    assert (Metric.RESTARTS.value, (("cause", "hang"),)) not in series
    assert series[Metric.LOST_PROGRESS.value, ()] == [1.5]
    assert sum(name == Metric.JOB_TIME for name, _ in series) == len(JobTime) - 1


def test_it_holds_a_value_of_the_script_of_the_lowest_rank_that_has_it(tmp_path: Path) -> None:
    for rank in (1, 0):
        attach.log(rank_variables(tmp_path, rank, of=2), val_accuracy=0.0 + rank, extra={f"of/rank-{rank}": math.nan})
    _, series = read(History(tmp_path, Clock(START)).to_dict())
    found = {labels: values for (name, labels), values in series.items() if name == Metric.USER_VALUE}
    assert found.keys() == {
        (("name", "val_accuracy"), ("rank", "0")),
        (("name", "of/rank-0"), ("rank", "0")),
        (("name", "of/rank-1"), ("rank", "1")),
    }
    assert found[("name", "val_accuracy"), ("rank", "0")] == [0.0]


def test_a_restarted_aggregator_continues_the_history(tmp_path: Path) -> None:
    clock = Clock(START)
    before = trained(tmp_path, 300, clock)
    before.keep()
    clock.now += 60
    after = trained(tmp_path, 10, clock, history=History.load(tmp_path, clock))
    assert after.times[: len(before.times)] == pytest.approx(before.times, abs=0.01)
    assert after.interval == before.interval
    assert read(after.to_dict())[1][STEPS][-1] == 310


@pytest.mark.parametrize("text", ["", "[]", "{", '{"version": 2, "times": [], "series": []}', '{"version": 1}'])
def test_a_file_that_is_no_history_is_replaced(text: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(text)
    assert History.load(tmp_path).times == []


def test_a_loss_that_is_no_number_stays_so(tmp_path: Path) -> None:
    rank, clock = recorder(tmp_path), Clock(START)
    history = History(tmp_path, clock)
    for loss in (2.5, math.nan, math.inf):
        rank.progress(loss, 0.1)
        history.sample_if_due()
        clock.now += 1
    text = json.dumps(history.to_dict(), allow_nan=False)
    assert read(json.loads(text))[1][LOSS][:3] == pytest.approx([2.5, math.nan, math.inf], nan_ok=True)


def test_the_history_in_a_log_is_read_from_among_other_lines(tmp_path: Path) -> None:
    document = trained(tmp_path, 400, Clock(START)).to_dict()
    left = downsample(document)
    assert len(left["times"]) == LEFT_READINGS
    assert (left["times"][0], left["times"][-1]) == (document["times"][0], document["times"][-1])
    packed = list(lines(left))
    assert all(line.startswith(HISTORY_MARK) and len(line) < 4096 for line in packed)
    log = ["step 1", *lines({"version": 1, "times": [], "series": []}), "again", *packed, "Restarts: none."]
    found = metrics_parser.unpacked(log)
    assert found is not None
    assert json.loads(found) == left
    assert read(left)[1][STEPS][-1] == read(document)[1][STEPS][-1]


def test_eight_ranks_leave_less_than_sixteen_kilobytes_in_a_log(tmp_path: Path) -> None:
    clock = Clock(START)
    ranks = [attach.rank_recorder(rank_variables(tmp_path, number, of=8)) for number in range(8)]
    history = History(tmp_path, clock)
    for step in range(200):
        for number, rank in enumerate(ranks):
            noise = ((step * 7919 + number * 104729) % 1000) / 10_000
            rank.step(step, 0, 8, noise, 0, 0.2 + noise, 0.3 - noise, noise, 0.01, 0, 0)
        history.sample_if_due()
        clock.now += 0.51
    assert sum(map(len, lines(downsample(history.to_dict())))) < 16_384
