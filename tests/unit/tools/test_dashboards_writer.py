"""How rows of panels become a page of Grafana's, and files."""

from __future__ import annotations

import pytest

from tools.dashboards.grafana import as_json
from tools.dashboards.panel import Dashboard, Panel, Query, Row
from tools.dashboards.panel_types import lines, stat


def panel(title: str, width: int) -> Panel:
    return stat(title, "What?", Query("up{<job>}"), unit="none", width=width)


def page(*rows: Row) -> list[dict[str, object]]:
    made = as_json(Dashboard(uid="u", title="T", description="D.", rows=rows, variables=()))
    panels: list[dict[str, object]] = made["panels"]
    return panels


def places(panels: list[dict[str, object]]) -> dict[str, tuple[int, int]]:
    return {str(each["title"]): (each["gridPos"]["x"], each["gridPos"]["y"]) for each in panels}  # type: ignore[index]


def test_panels_go_from_the_left_to_the_right_and_then_below() -> None:
    row = Row("First?", (panel("a", 12), panel("b", 12), panel("c", 8)))
    assert places(page(row, Row("Second?", (panel("d", 4),)))) == {
        "First?": (0, 0),
        "a": (0, 1),
        "b": (12, 1),
        "c": (0, 5),
        "Second?": (0, 9),
        "d": (0, 10),
    }


def test_a_closed_row_keeps_its_panels_in_itself() -> None:
    [row] = page(Row("Closed?", (panel("a", 12),), collapsed=True))
    assert row["collapsed"]
    assert [each["title"] for each in row["panels"]] == ["a"]  # type: ignore[attr-defined]


def test_a_query_is_of_the_job_that_is_chosen() -> None:
    assert Query("a{<rank>} / b{<job>}").promql == (
        'a{namespace="$namespace", ddp_job="$ddp_job", rank=~"$rank"} / b{namespace="$namespace", ddp_job="$ddp_job"}'
    )


def test_a_word_that_no_panel_knows_is_refused() -> None:
    with pytest.raises(TypeError, match="A panel takes no colors"):
        lines("Title", "What?", Query("up"), unit="none", colors={"a": "red"})  # type: ignore[call-arg]
