"""The page of a job in a real browser. Pictures are left in build/report."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_report.html_report import render_html
from tests.support.browser import Tab, browser, program
from tests.support.report_cases import a_job, a_killed_worker, a_report

PICTURES = Path(__file__).resolve().parents[3] / "build" / "report"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reports of a job that has lost a worker: while it runs, and at its end."""
    killed = a_killed_worker()
    known = {item.name for item in killed}
    series = [*killed, *(item for item in a_job(4, of_pod=2) if item.name not in known)]
    found = {name: tmp_path_factory.mktemp("pages") / f"{name}.html" for name in ("running", "ended")}
    found["running"].write_text(render_html(a_report(series)))
    found["ended"].write_text(render_html(a_report(series, summary={"result": "succeeded", "steps": 500})))
    return found


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    if program() is None:
        pytest.skip("No Chromium is installed, so no browser can show the page.")
    PICTURES.mkdir(parents=True, exist_ok=True)
    with browser() as found:
        yield found


@pytest.mark.parametrize("which", ["running", "ended"])
@pytest.mark.parametrize("width", [360, 1280])
def test_a_page_shows_the_whole_job_in_a_browser(pages: dict[str, Path], tab: Tab, which: str, width: int) -> None:
    tab.said.clear()
    tab.open(pages[which], width=width)
    (PICTURES / f"{which}-{width}.png").write_bytes(tab.picture())
    assert tab.said == []
    assert tab.value("document.documentElement.scrollWidth") <= width
    wide = "[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll, .skip, pre, svg'))"
    assert (
        tab.value(f"{wide}.filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML)") == []
    )
    titles = tab.value("[...document.querySelectorAll('figure h3')].map(e => e.textContent)")
    assert titles == [
        *("Throughput", "Training loss", "World size", "Step time by rank", "Phases of a step", "Time breakdown")
    ]
    assert "was killed (sigkill)" in tab.value("document.querySelector('.changes').textContent")
    assert tab.value("document.querySelector('.story').textContent").startswith("Rank 3 was killed at ")
    cells = "[...e.children].slice(0, 2).map(cell => cell.textContent).join(' on ')"
    rows = tab.value(f"[...document.querySelectorAll('.ranks tbody tr')].map(e => {cells})")
    assert {f"{rank} on digits-worker-{rank // 2}" for rank in range(4)} == {*rows}
    assert tab.value("[...document.querySelectorAll('svg .curve')].every(e => e.getBoundingClientRect().width > 40)")
    assert tab.value("[...document.images].every(e => e.complete && e.naturalHeight >= 4)")


def test_dark_is_dark_and_both_can_be_read(pages: dict[str, Path], tab: Tab) -> None:
    found = {}
    for dark in (False, True):
        tab.open(pages["running"], width=1280, dark=dark)
        (PICTURES / f"running-{'dark' if dark else 'light'}.png").write_bytes(tab.picture(height=900))
        found[dark] = [tab.value(CONTRAST.replace("SELECTOR", name)) for name in ("body", ".card", ".muted", ".chip")]
        assert min(found[dark]) >= 4.5, found
    assert tab.value("getComputedStyle(document.body).backgroundColor") == "rgb(15, 18, 21)"
    assert found[False] != found[True]


CONTRAST = """(() => {
  const light = (color) => {
    const parts = color.match(/[\\d.]+/g).slice(0, 3).map((each) => each / 255)
      .map((each) => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const behind = (element) => {
    const color = getComputedStyle(element).backgroundColor;
    return color === "rgba(0, 0, 0, 0)" && element.parentElement ? behind(element.parentElement) : color;
  };
  const element = document.querySelector("SELECTOR");
  const [one, other] = [light(getComputedStyle(element).color), light(behind(element))].sort((a, b) => b - a);
  return (one + 0.05) / (other + 0.05);
})()"""
"""Contrast as WCAG 2 computes it; text needs 4.5."""


def test_a_pointer_is_told_the_values_of_the_moment_it_points_at(pages: dict[str, Path], tab: Tab) -> None:
    tab.open(pages["running"], width=1280, height=1200)
    assert tab.value("document.getElementById('pointer').hidden")
    tab.value("document.querySelector('.plot.phases').scrollIntoView({block: 'center'})")
    area = "(({x, y, width, height}) => [x, y, width, height])(SELECTED.getBoundingClientRect())"
    box = tab.value(area.replace("SELECTED", "document.querySelector('.plot.phases')"))
    tab.move(box[0] + 0.9 * box[2], box[1] + box[3] / 2)
    words = tab.value("document.getElementById('pointer').innerText")
    assert re.search(r"UTC\n(.*\n)*backward: \d+%", words), words
    tab.move(5, 5)
    assert tab.value("document.getElementById('pointer').hidden")


def test_it_is_whole_without_javascript_and_on_paper(pages: dict[str, Path], tab: Tab) -> None:
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    tab.open(pages["ended"], width=794, media="print")
    (PICTURES / "paper.png").write_bytes(tab.picture())
    paper = tab.paper()
    tab.call("Emulation.setScriptExecutionDisabled", value=False)
    (PICTURES / "paper.pdf").write_bytes(paper)
    sheets = len(re.findall(rb"/Type\s*/Page\b", paper))
    assert 2 <= sheets <= 8
    width, height = (float(item) for item in re.findall(rb"/MediaBox\s*\[0 0 ([\d.]+) ([\d.]+)\]", paper)[0])
    assert (round(width), round(height)) == (595, 842)
