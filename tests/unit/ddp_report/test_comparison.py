"""Two runs side by side: results, and what differs in their settings."""

from __future__ import annotations

from ddp_report.comparison import comparison_table
from kubectl_ddp.observe.job_results import JobRecord
from kubectl_ddp.util.text_table import Style

FLAGS = {"cpu": "1", "args": ["train", "--lr", "-0.1", "--fast"]}
ONE = JobRecord(
    uid="aaaaaaaa-1", run="aaaaaaaaaaaa", name="one", state="Succeeded", seconds=61.0, step=10, loss=0.5, nodes="2",
    throughput=100.0, values={"accuracy": 0.9}, restarts={"failure": 2}, settings=FLAGS,
)  # fmt: skip
OTHER = JobRecord(
    uid="bbbbbbbb-2",
    name="other",
    state="Failed",
    nodes="2",
    settings=FLAGS | {"gpus": 1, "args": ["train", "--lr=0.2"]},
)


def rows(one: JobRecord, other: JobRecord) -> dict[str, list[str]]:
    table = comparison_table(one, other)
    return {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}


def test_results_stand_side_by_side() -> None:
    results = {"status": ["Succeeded", "Failed"], "duration": ["61s", "-"], "loss": ["0.5", "-"]}
    results |= {"restarts": ["2", "0"], "accuracy": ["0.9", "-"]}
    assert results.items() <= rows(ONE, OTHER).items()


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
