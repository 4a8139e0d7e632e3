"""Two runs side by side: results, and what differs in their settings."""

from __future__ import annotations

from kubectl_ddp.observe.job_results import JobRecord
from kubectl_ddp.report.comparison import comparison_table
from kubectl_ddp.util.text_table import Style

ONE = JobRecord(
    uid="aaaaaaaa-1", run="aaaaaaaaaaaa", name="one",
    state="Succeeded", seconds=61.0, step=10, loss=0.5, throughput=100.0, nodes="2",
    values={"accuracy": 0.9}, restarts={"failure": 2},
    settings={"cpu": "1", "args": ["train", "--lr", "-0.1", "--fast"]},
)  # fmt: skip
OTHER = JobRecord(
    uid="bbbbbbbb-2",
    name="other",
    state="Failed",
    nodes="2",
    settings={"cpu": "1", "gpus": 1, "args": ["train", "--lr=0.2"]},
)


def rows(one: JobRecord, other: JobRecord) -> dict[str, list[str]]:
    table = comparison_table(one, other)
    return {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}


def test_results_stand_side_by_side() -> None:
    found = rows(ONE, OTHER)
    assert found["status"] == ["Succeeded", "Failed"]
    assert found["duration"] == ["61s", "-"]
    assert found["loss"] == ["0.5", "-"]
    assert found["restarts"] == ["2", "0"]
    assert found["accuracy"] == ["0.9", "-"]


def test_only_settings_and_flags_that_differ_are_shown() -> None:
    found = rows(ONE, OTHER)
    assert found["gpus"] == ["-", "1"]
    assert found["--lr"] == ["-0.1", "0.2"]
    assert found["--fast"] == ["given", "-"]
    assert {"cpu", "args"} & found.keys() == set()


def test_runs_of_one_name_are_told_apart_by_their_runs() -> None:
    text = comparison_table(ONE, JobRecord(uid="cccccccc-3", run="cccccccccccc", name="one")).render(Style())
    assert text.splitlines()[0].split() == ["one", "aaaaaaaaaaaa", "one", "cccccccccccc"]


def test_every_value_of_a_repeated_flag_counts() -> None:
    one = JobRecord(uid="u1", name="a", settings={"args": ["--set", "x=1", "--set", "y=2"]})
    other = JobRecord(uid="u2", name="b", settings={"args": ["--set", "x=9", "--set", "y=2"]})
    assert rows(one, other)["--set"] == ["x=1 y=2", "x=9 y=2"]
