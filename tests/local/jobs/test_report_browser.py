"""The page of a real local job, in a real browser and from a real Prometheus. Pictures are left in build/report."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ddp_trainer.common.constants import Port
from ddp_trainer.common.metric_names import Metric
from kubectl_ddp.observe.waiting import parse_wait_condition, wait_for
from kubectl_ddp.status import metrics_parser, termination_message
from kubectl_ddp.status.metrics_parser import parse
from tests.support.browser import Tab, browser, program
from tests.support.local_place import Place, Typed, a_place
from tests.support.prometheus_server import answers, prometheus

pytestmark = pytest.mark.timeout(600)
PICTURES = Path(__file__).resolve().parents[3] / "build" / "report"
PACED = Path(__file__).parents[2] / "scripts" / "paced.py"
TRAIN = [str(PACED), "--", "--global-batch", "64", "--epochs", "200", "--max-steps", "2000", "--early-stop", "clock:1"]
PACE = "0.004"
"""Seconds that a row takes: all steps take two minutes and more, and the job ends once all was asked of it."""
SCRAPED = "count_over_time(ddp_steps_total[5m]) > 1"
"""Ranks that were scraped twice; also when the job is over already."""


@dataclass
class Made:
    """Pages of one job, and what was said while they were made."""

    place: Place
    running: Path
    ended: Path
    asked: Path | None
    """From a Prometheus, where there is one."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """A job that trains, loses a worker, goes on, and ends well."""
    folder = tmp_path_factory.mktemp("pages")
    with a_place(folder / "state", HOME=str(folder), OMP_NUM_THREADS="1") as place:
        place.environ.pop("KUBECONFIG", None)
        typed, hurry = Typed(place), folder / "hurry"
        shape = [
            "--name",
            "digits",
            "--nnodes",
            "1:2",
            "--nproc",
            "2",
            "--env",
            f"HURRY={hurry}",
            "--env",
            f"PACE={PACE}",
        ]
        done = typed("submit", "--local", *shape, *TRAIN)
        assert done.returncode == 0, done.stderr
        wait_for(place, "digits", parse_wait_condition("step=20"), timeout=120)
        targets = [
            f"{pod['status']['podIP']}:{Port.METRICS.value}"
            for pod in termination_message.workers(place.job("digits").pods)
        ]
        prometheus_page = None
        if _has_prometheus():
            with prometheus(folder, targets) as server:
                answers(server, SCRAPED, count=4)
                _lose_a_worker(place)
                answers(server, SCRAPED.replace("> 1", "> 3"), count=4)
                prometheus_page = folder / "asked.html"
                url = server.url.partition("/api")[0]
                done = typed("report", "digits", "-o", str(prometheus_page), "--from", "prometheus", url)
                assert done.returncode == 0, done.stderr
        else:
            _lose_a_worker(place)
        running, ended = folder / "running.html", folder / "ended.html"
        assert typed("report", "digits", "-o", str(running)).stdout == f"{running}\n"
        hurry.touch()
        wait_for(place, "digits", parse_wait_condition("complete"), timeout=240)
        done = typed("report", "digits", "-o", str(ended))
        assert done.returncode == 0, done.stderr
        yield Made(place, running, ended, prometheus_page)


def _has_prometheus() -> bool:
    return any(Path(folder, "prometheus").is_file() for folder in os.environ["PATH"].split(os.pathsep))


def _lose_a_worker(place: Place) -> None:
    pod = termination_message.workers(place.job("digits").pods)[1]
    report = parse(place.metrics(pod))
    pid = next(int(value) for _, value in report.all(Metric.RANK_PID))
    before = max(value for _, value in report.all(Metric.STEP))
    os.kill(pid, signal.SIGKILL)
    wait_for(place, "digits", parse_wait_condition(f"step={int(before) + 60}"), timeout=120)


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    if program() is None:
        pytest.skip("No Chromium is installed, so no browser can show the page.")
    PICTURES.mkdir(parents=True, exist_ok=True)
    with browser() as found:
        yield found


def test_the_log_of_a_pod_that_has_ended_shows_nobody_its_history(made: Made) -> None:
    done = Typed(made.place)("logs", "digits", "--rank", "all")
    assert done.returncode == 0
    assert "ddp-history" not in done.stdout
    pods = termination_message.workers(made.place.job("digits").pods)
    assert pods
    assert [pod["metadata"]["name"] for pod in pods if made.place.metrics_history(pod) is None] == []
    assert metrics_parser.is_part(
        made.place.files().log("digits-worker-0").read_text().splitlines()[-1].split(" ", 3)[3]
    )


@pytest.mark.parametrize("which", ["running", "ended", "asked"])
@pytest.mark.parametrize("width", [360, 1280])
def test_a_page_shows_the_whole_job_in_a_browser(made: Made, tab: Tab, which: str, width: int) -> None:
    page = getattr(made, which)
    if page is None:
        pytest.skip("prometheus is not installed, so nothing real can be asked.")
    tab.said.clear()
    tab.open(page, width=width)
    (PICTURES / f"{which}-{width}.png").write_bytes(tab.picture())
    assert tab.said == []
    assert tab.value("document.documentElement.scrollWidth") <= width
    wide = "[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll, .skip, pre, svg'))"
    assert (
        tab.value(f"{wide}.filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML)") == []
    )
    titles = tab.value("[...document.querySelectorAll('figure h3')].map(e => e.textContent)")
    assert titles == [
        *("Throughput", "Training loss", "World size", "Step time by rank", "Phases of a step", "Time breakdown"),
    ]
    assert "restart: failure" in tab.value("document.querySelector('.changes').textContent")
    # Where the survivors end the group first, no pod counts the failure, and the story has the restart instead.
    story = tab.value("document.querySelector('.story').textContent")
    assert re.match(r"(Rank [0-3] was killed|The worker group restarted) at ", story)
    cells = "[...e.children].slice(0, 2).map(cell => cell.textContent).join(' on ')"
    rows = tab.value(f"[...document.querySelectorAll('.ranks tbody tr')].map(e => {cells})")
    assert {f"{rank} on digits-worker-{rank // 2}" for rank in range(4)} == {*rows}
    assert tab.value("[...document.querySelectorAll('svg .curve')].every(e => e.getBoundingClientRect().width > 40)")
    assert tab.value("[...document.images].every(e => e.complete && e.naturalHeight >= 4)")


def test_dark_is_dark_and_both_can_be_read(made: Made, tab: Tab) -> None:
    found = {}
    for dark in (False, True):
        tab.open(made.running, width=1280, dark=dark)
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
"""Contrast as WCAG 2 reckons it; 4.5 is what it asks of text."""


def test_a_pointer_is_told_the_values_of_the_moment_it_points_at(made: Made, tab: Tab) -> None:
    tab.open(made.running, width=1280, height=1200)
    assert tab.value("document.getElementById('pointer').hidden")
    tab.value("document.querySelector('.plot.phases').scrollIntoView({block: 'center'})")
    area = "(({x, y, width, height}) => [x, y, width, height])(SELECTED.getBoundingClientRect())"
    box = tab.value(area.replace("SELECTED", "document.querySelector('.plot.phases')"))
    tab.move(box[0] + 0.9 * box[2], box[1] + box[3] / 2)
    words = tab.value("document.getElementById('pointer').innerText")
    assert re.search(r"UTC\n(.*\n)*backward: \d+%", words), words
    tab.move(5, 5)
    assert tab.value("document.getElementById('pointer').hidden")


def test_it_is_whole_without_javascript_and_on_paper(made: Made, tab: Tab) -> None:
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    tab.open(made.ended, width=794, media="print")
    (PICTURES / "paper.png").write_bytes(tab.picture())
    paper = tab.paper()
    tab.call("Emulation.setScriptExecutionDisabled", value=False)
    (PICTURES / "paper.pdf").write_bytes(paper)
    pages = len(re.findall(rb"/Type\s*/Page\b", paper))
    assert 2 <= pages <= 8
    width, height = (float(item) for item in re.findall(rb"/MediaBox\s*\[0 0 ([\d.]+) ([\d.]+)\]", paper)[0])
    assert (round(width), round(height)) == (595, 842)
