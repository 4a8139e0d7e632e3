"""The picture of ``top``: numbers in, lines of a given width and height out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from kubectl_ddp.status.job_state import JobState, job_state
from kubectl_ddp.status.metrics_parser import parse
from kubectl_ddp.status.rank_status import RATIO, RankActivity, RankState, slowdown_by_rank, stragglers
from kubectl_ddp.top.top_view import JUDGED_SECONDS, RateWindow, TopView, curve, cut, rows_of, sparkline
from kubectl_ddp.util.text_table import Cell, Style
from tests.support.kube_objects import job, job_metrics, pod, pod_metrics, rank_metrics, snapshot

NOW = 1002.0
COLORS = re.compile(r"\x1b\[[0-9;]*m")


def a_rank(rank: int, *, pod_of: int = 8, busy: float = 0.1, **report: object) -> RankState:
    """A rank of a job of eight ranks a pod, which steps twice a second."""
    report = {"state": RankActivity.UP, "step": 100, "last_step": 1000.0, "phases": {"forward": 1.0}} | report
    place = {"local_rank": rank % pod_of, "pod": f"digits-worker-{rank // pod_of}", "node": "n"}
    speed = {"samples_per_second": 8.0, "seconds_per_step": 0.5, "busy_seconds": busy}
    return RankState(rank=rank, **place, **speed, **report)  # type: ignore[arg-type]


def a_state(ranks: Sequence[RankState] = ()) -> JobState:
    """A job that runs, with these ranks."""
    text = rank_metrics(0) + pod_metrics(world=max(2, len(ranks))) + job_metrics()
    shown = snapshot(job("Created", "Running"), pod(0))
    state = job_state(shown, {"digits-worker-0": parse(text)}, where="local")
    return replace(state, ranks=tuple(ranks)) if ranks else state


def drawn(ranks: Sequence[RankState], *, width: int = 120, height: int | None = 24, color: bool = False) -> list[str]:
    """A picture of these ranks."""
    picture = TopView(state=a_state(ranks), now=NOW, slow=slowdown_by_rank(ranks), notes=["q leaves"])
    return picture.lines(Style(color=color, width=width), height)


def test_every_rank_has_a_row_with_its_step_as_a_bar() -> None:
    shares = {"data_wait": 0.25, "forward": 0.25, "comm_exposed": 0.25, "optimizer": 0.25}
    lines = drawn([a_rank(rank, phases=shares) for rank in range(4)])
    assert lines[0].startswith("digits  Running  step 10 of 100 (10%), epoch 1")
    header, *rows = lines[3:8]
    assert header.split()[:4] == ["RANK", "POD", "STATE", "STEP"]
    assert " ".join(rows[1].split()) == "1 digits-worker-0 up 100 8 0.5 0.1 ddddddffffffccccccoooooo 2s ago"
    assert lines[-1] == "q leaves"


def test_a_rank_that_the_others_wait_for_is_named_and_marked() -> None:
    ranks = [a_rank(rank, busy=0.35 if rank == 2 else 0.1) for rank in range(4)]
    text = "\n".join(drawn(ranks))
    assert "stragglers: rank 2 (3.5x)" in text
    assert "0.35 !3.5x" in text
    assert text.count("!") == 1


def test_ranks_within_the_alerts_threshold_are_no_stragglers_and_of_two_nobody_can_tell() -> None:
    assert stragglers(slowdown_by_rank([a_rank(0), a_rank(1), a_rank(2, busy=0.1 * RATIO)])) == ()
    assert stragglers(slowdown_by_rank([a_rank(0), a_rank(1), a_rank(2, busy=0.1 * RATIO + 0.001)])) == (2,)
    assert slowdown_by_rank([a_rank(0), a_rank(1, busy=5.0)]) == {}
    assert slowdown_by_rank([a_rank(0), a_rank(1), a_rank(2, state=RankActivity.DOWN)]) == {}


def test_a_thousand_ranks_fit_the_screen_by_pod_and_the_worst_come_first() -> None:
    ranks = [a_rank(rank, busy=0.3 if rank == 770 else 0.1) for rank in range(1000)]
    ranks[123] = a_rank(123, state=RankActivity.DOWN)
    ranks[500] = a_rank(500, state=RankActivity.STOPPED)
    ranks[42] = a_rank(42, last_step=900.0)
    lines = drawn(ranks, height=20)
    assert len(lines) == 20
    rows = [line.split()[0] for line in lines[5:9]]
    assert rows == ["120-127", "496-503", "768-775", "40-47"]
    assert "stragglers: rank 770 (3.0x)" in lines[2]
    assert any(line.startswith("and ") and "more that do better" in line for line in lines)
    shown = sum(1 for line in lines if "digits-worker-" in line)
    assert f"and {125 - shown} more" in "\n".join(lines)


def test_one_pod_with_more_ranks_than_rows_shows_the_worst_of_them() -> None:
    ranks = [a_rank(rank, pod_of=64, state=RankActivity.DOWN if rank == 33 else RankActivity.UP) for rank in range(64)]
    rows, missing = rows_of(ranks, {}, 10)
    assert rows[0].ranks[0].rank == 33
    assert len(rows) + missing == 64


@pytest.mark.parametrize("width", [10, 40, 80, 200])
@pytest.mark.parametrize("height", [1, 3, 8, 30])
@pytest.mark.parametrize("color", [False, True])
def test_no_line_is_wider_and_no_picture_higher_than_the_terminal(width: int, height: int, *, color: bool) -> None:
    ranks = [a_rank(rank, busy=0.5 if rank == 3 else 0.1) for rank in range(40)]
    lines = drawn(ranks, width=width, height=height, color=color)
    assert len(lines) <= height
    assert max(len(COLORS.sub("", line)) for line in lines) <= width


def test_without_colour_there_is_no_escape_code_and_without_unicode_nothing_but_ascii() -> None:
    ranks = [a_rank(rank, busy=0.5 if rank == 3 else 0.1) for rank in range(9)]
    rates = sparkline([1, 2], 8, unicode=False)
    picture = TopView(state=a_state(ranks), now=NOW, slow=slowdown_by_rank(ranks), throughput=rates)
    text = "\n".join(picture.lines(Style(width=50, unicode=False), 20))
    assert text.isascii()
    assert "\x1b" not in text
    colored = "\n".join(picture.lines(Style(color=True, width=120, unicode=False), 20))
    assert "\x1b[30;46m" in colored
    assert COLORS.sub("", colored) == "\n".join(picture.lines(Style(width=120, unicode=False), 20))


def test_values_of_the_script_have_a_line() -> None:
    ranks = [a_rank(0), a_rank(1)]
    state = replace(a_state(ranks), values={"val_accuracy": 0.93, "val/top5": 0.99})
    lines = TopView(state=state, now=NOW).lines(Style(width=120), 20)
    assert lines[2] == "values: val_accuracy 0.93, val/top5 0.99"


def test_the_loss_curve_has_the_whole_watch_and_a_gap_where_no_rank_answered() -> None:
    losses = [8.0 - at / 10 for at in range(40)] + [None] * 20 + [4.0 - at / 20 for at in range(60)]
    text = curve(losses, 12)
    assert len(text) == 12
    assert text[0] == "█"
    assert text[4:6] == "  "
    assert text[-1] == "▁"
    assert "  " not in text[6:]


@pytest.mark.parametrize("values", [[], [None, None], [float("nan"), None], [2.0, 2.0], [float("inf"), 1.0]])
def test_a_curve_without_a_range_is_flat_or_empty(values: list[float | None]) -> None:
    assert set(curve(values, 8)) <= {" ", "▁"}
    assert curve(values, 0) == ""


@pytest.mark.parametrize("width", [3, 6, 20, 120])
def test_the_loss_curve_fits_and_is_absent_before_two_values(width: int) -> None:
    style = Style(width=width, unicode=False)
    state = a_state([a_rank(0), a_rank(1)])
    lines = TopView(state=state, now=NOW, losses=[3.0, None, 2.0, 1.0]).lines(style, 20)
    assert max(map(len, lines)) <= width
    if width >= len("loss: # ~_"):
        assert lines[2] == "loss: # ~_"
    assert not any(line.startswith("loss:") for line in TopView(state=state, now=NOW, losses=[3.0]).lines(style, 20))


def test_a_job_without_ranks_says_why() -> None:
    shown = snapshot(job("Created"))
    assert TopView(state=job_state(shown, {}), now=NOW).lines(Style())[-1] == "Its pods are not running yet."


def test_a_cut_line_ends_its_colour() -> None:
    assert cut("a\033[31mbcd\033[0mef", 2) == "a\033[31mb\033[0m"
    assert Cell("abcdef", spans=(Cell("abc", "red"), Cell("def", "green"))).styled(Style(color=True), 4) == "abc…"


def told(samples: float, seconds: float, busy: float) -> str:
    """Return the metrics of four ranks after some training, of which rank 3 is busy for longer."""
    text = pod_metrics(world=4)
    for rank in range(4):
        label = f'{{ddp_job="digits",rank="{rank}"}}'
        text += rank_metrics(rank, local_rank=rank, step=int(samples), samples=int(samples), seconds=seconds)
        text += f"ddp_sampled_steps_total{label} {samples}\n"
        text += f"ddp_sampled_busy_seconds_total{label} {busy if rank == 3 else samples * 0.1}\n"
    return text


def test_rates_are_over_the_last_seconds_and_stragglers_over_the_last_minute() -> None:
    course, shown = RateWindow(), snapshot(job("Created", "Running"), pod(0))
    state, slow = course.frame(shown, {"digits-worker-0": parse(told(100, 100.0, 10.0))}, "local", 0.0)
    assert (state.throughput, slow[3]) == (4.0, 1.0)
    # For a minute it goes twice as fast, and rank 3 is three times as busy.
    for second in range(1, int(JUDGED_SECONDS) + 1):
        page = told(100 + 2 * second, 100.0 + second, 10.0 + 0.6 * second)
        state, slow = course.frame(shown, {"digits-worker-0": parse(page)}, "local", float(second))
    assert state.throughput == pytest.approx(8.0)
    assert slow[3] == pytest.approx(3.0)
    assert stragglers(slow) == (3,)
    assert list(course.throughput)[-1] == pytest.approx(8.0)


def test_the_share_that_counts_is_that_of_the_longest_account_without_what_was_lost() -> None:
    def spent(state: str, seconds: int) -> str:
        return f'ddp_job_time_seconds_total{{ddp_job="digits",state="{state}"}} {seconds}\n'

    lost = 'ddp_lost_progress_seconds_total{ddp_job="digits"} 5\n'
    page, old = spent("productive", 80) + spent("restart", 20) + lost, spent("productive", 10)
    shown = snapshot(job("Created", "Running"), pod(0), pod(1))
    state = job_state(shown, {"digits-worker-0": parse(page), "digits-worker-1": parse(old)})
    assert state.goodput == pytest.approx(0.75)
