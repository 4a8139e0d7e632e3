"""The page: whole with nothing to draw, small with a thousand ranks, and deaf to what hostile jobs say."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from html.parser import HTMLParser

import pytest

from ddp_report.draw import scale_of, ticks, time_ticks
from ddp_report.html_report import render_html
from ddp_report.plot_data import MOST_VALUE_PLOTS
from ddp_report.series import POD, Series
from ddp_trainer.common.metric_names import Metric
from tests.support.report_cases import HOSTILE, START, a_job, a_report, times


class Elements(HTMLParser):
    """Every element with its attributes, and whether each is closed."""

    VOID = frozenset({"meta", "link", "img", "line", "path", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def test_a_job_of_which_nothing_is_known_has_a_page_that_says_so() -> None:
    text = render_html(a_report([]))
    found = Elements(text)
    assert found.all("svg") == []
    assert "No pod of the job has reported metrics" in text


def test_the_page_asks_no_network_and_lets_no_script_run_but_its_own() -> None:
    text = render_html(a_report(a_job()))
    found = Elements(text)
    assert not re.search(r'(?:src|href)=(?!"(?:data:|#))', text)
    assert "@import" not in text
    assert "url(" not in text
    [policy] = [meta["content"] for meta in found.all("meta") if meta.get("http-equiv")]
    [script] = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert policy is not None
    assert f"script-src 'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in policy
    assert policy.startswith("default-src 'none'")


def test_what_a_hostile_job_says_stays_text() -> None:
    text = render_html(a_report(a_job(), error=HOSTILE, name=f"a{HOSTILE}", happened=HOSTILE))
    found = Elements(text)
    assert len(found.all("script")) == 2
    assert all(image["src"] is not None and image["src"].startswith("data:image/png;") for image in found.all("img"))
    assert "onerror=alert(1)>" not in text
    assert sum(HOSTILE in sentence for sentence in found.texts) >= 3


def test_every_picture_has_a_role_and_a_sentence_and_every_table_its_heads() -> None:
    found = Elements(render_html(a_report(a_job(slow=2))))
    pictures = found.all("svg")
    assert len(pictures) == 5
    assert all(picture["role"] == "img" and len(picture["aria-label"] or "") > 15 for picture in pictures)
    assert all("Rank 2 was slowest" in (image["alt"] or "") for image in found.all("img"))
    assert all(head.get("scope") in {"col", "row"} for head in found.all("th"))
    names = [attributes["id"] for _, attributes in found.found if "id" in attributes]
    assert len(names) == len(set(names))
    pointed = [attributes["aria-labelledby"] for _, attributes in found.found if "aria-labelledby" in attributes]
    assert {*pointed} <= {*names}


def test_a_thousand_ranks_of_a_week_are_less_than_two_megabytes() -> None:
    text = render_html(a_report(a_job(1000, readings=240, slow=777)))
    assert len(text.encode()) < 2_000_000
    assert "Rank 777 was slowest" in text
    assert text.count('<th scope="row" class="number">') == 1000


def test_a_loss_that_is_no_number_is_marked() -> None:
    losses: list[float | None] = [1.0, 0.5, math.nan, 0.4, 0.3]
    text = render_html(a_report([Series(Metric.LOSS, times(5), losses)]))
    assert 'title="no finite number"' in text
    assert "nan" not in text.lower().replace("finance", "")


def test_values_of_the_script_have_a_fact_each_and_the_first_of_them_a_curve() -> None:
    series = [
        Series(Metric.USER_VALUE, times(5), [0.5, 0.6, 0.7, 0.8, 0.9], {"name": name, "rank": "0", POD: "a"})
        for name in (HOSTILE, *(f"value_{number}" for number in range(1, 10)))
    ]
    text = render_html(a_report(series))
    found = Elements(text)
    assert len(found.all("svg")) == MOST_VALUE_PLOTS
    assert [attributes["id"] for attributes in found.all("h3") if str(attributes.get("id")).startswith("value-1")]
    [sentence] = [text for text in found.texts if text.startswith(f"{HOSTILE} 0.9, value_1 0.9, ")]
    assert "value_9 0.9" in sentence
    assert len(found.all("script")) == 2


@pytest.mark.parametrize(
    "values", [[0.0], [5.0], [-3.0, 4.0], [1e-9, 1e9], [1e-300, 2e-300], [7.0, 7.0], [1e15, 1.0000001e15], []], ids=str
)
@pytest.mark.parametrize("from_zero", [True, False])
def test_every_value_has_a_place_between_two_ticks(values: list[float], from_zero: bool) -> None:
    scale = scale_of(values, from_zero=from_zero)
    assert scale.low < scale.high
    assert all(0 <= scale.place(value) <= 1 for value in values)
    marks = ticks(scale)
    assert 2 <= len(marks) <= 7
    assert all(0 <= mark.place <= 1 for mark in marks)


@pytest.mark.parametrize("seconds", [0.5, 7, 60, 3599, 86_400, 604_800, 3e7])
def test_an_axis_of_any_length_has_few_marks_that_rise(seconds: float) -> None:
    marks = time_ticks(START, START + seconds)
    assert 1 <= len(marks) <= 8
    assert [mark.place for mark in marks] == sorted({mark.place for mark in marks})
    assert len({mark.text for mark in marks}) == len(marks)
