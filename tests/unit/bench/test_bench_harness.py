"""The frame that measurements stand in: names, spreads, bars, fair turns, one line of JSON, exit codes."""

from __future__ import annotations

import json
import math

import pytest

import bench.__main__ as command
from bench.harness import Options, Report, interleaved


def quiet(seed: int = 0) -> Options:
    return Options(seed=seed, progress=lambda _: None)


def test_many_values_become_median_minimum_maximum_and_count() -> None:
    report = Report()
    assert report.figure("restart_seconds", [5.0, 1.0, 3.0]).median == 3.0
    seconds = {f"restart_{name}_seconds": value for name, value in (("p50", 3.0), ("min", 1.0), ("max", 5.0))}
    assert report.figures == seconds | {"restart_count": 3}


@pytest.mark.parametrize(
    ("figure", "at_most", "at_least"),
    [(1.0, True, False), (2.0, True, True), (3.0, False, True), (math.nan, False, False)],
)
def test_a_bar_holds_up_to_its_value_and_never_for_nan(figure: float, at_most: bool, at_least: bool) -> None:
    report = Report()
    report.at_most("at most two", figure, 2.0)
    report.at_least("at least two", figure, 2.0)
    assert [bar.holds for bar in report.bars] == [at_most, at_least]
    assert report.holds == (at_most and at_least)


def test_every_round_measures_every_arm_once_in_a_drawn_order() -> None:
    turns: list[str] = []

    def arm(name: str) -> float:
        turns.append(name)
        return float(len(turns))

    values = interleaved({"a": lambda: arm("a"), "b": lambda: arm("b")}, rounds=20, options=quiet())
    rounds = [turns[i : i + 2] for i in range(0, len(turns), 2)]
    assert {"ab", "ba"} == {"".join(pair) for pair in rounds}
    assert [len(taken) for taken in values.values()] == [20, 20]


def test_the_line_is_json_even_where_a_figure_is_not_finite() -> None:
    report = Report()
    report.figure("share_ratio", math.inf)
    report.at_most("a share", math.nan, 1.0)
    line = command.as_json("name", report, quiet(seed=7), 1.0)
    document = json.loads(line)
    assert document["figures"] == {"share_ratio": None}
    assert document["bars"] == [{"what": "a share", "figure": None, "bar": 1.0, "holds": False, "relation": "<="}]
    assert document["seed"] == 7
    assert document["machine"]["cores"] >= 1
    assert "\n" not in line


@pytest.mark.parametrize(
    ("measurement", "sentence"),
    [("storm", "There is no part ourz; there are ours, stock."), ("cli", "There is no part ourz; there are none.")],
)
def test_an_unknown_part_is_refused_at_the_start(
    measurement: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([measurement, "--only", "ours, ourz" if measurement == "storm" else "ourz"]) == 2
    assert sentence in capsys.readouterr().err
