"""A real Prometheus over history that a test has written.

Prometheus takes no samples of the past from a scrape, so ``promtool`` makes blocks of them: first of what was written,
then of what the recording rules make of it. All queries use the time of the end of the history, so that a slow machine
sees the same as a fast one.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.rule_files import metrics_of, promtool, written

STEP_SECONDS: Final = 15
"""Between samples; the chart's PodMonitor scrapes as often."""
RECORDED_SECONDS: Final = 3600
"""Range over which recording rules are evaluated."""
_LISTENS: Final = re.compile(r'msg="Listening on".* address=(\S+)')
_READY: Final = "Server is ready to receive web requests"


class Refused(Exception):
    """Prometheus answered with an error."""


@dataclass(frozen=True)
class Found:
    """One series of an answer."""

    labels: Mapping[str, str]
    values: Sequence[float]
    """One, where the question was about one moment."""


@dataclass(frozen=True)
class Prometheus:
    """One that runs."""

    address: str
    end: float
    """Unix time of the last sample."""

    def now(self, expression: str) -> list[Found]:
        """Return the value of the expression at the end of the history. Raises :class:`Refused`."""
        report = self._asked("query", query=expression, time=self.end)
        if report["resultType"] == "scalar":
            return [Found({}, [float(report["result"][1])])]
        return [Found(item["metric"], [float(item["value"][1])]) for item in report["result"]]

    def over(self, expression: str, seconds: int) -> list[Found]:
        """Return its values over the last ``seconds``. Raises :class:`Refused`."""
        report = self._asked("query_range", query=expression, start=self.end - seconds, end=self.end, step=STEP_SECONDS)
        return [Found(item["metric"], [float(value) for _, value in item["values"]]) for item in report["result"]]

    def values_of(self, label: str, selector: str) -> list[str]:
        """The values of a label among the series that the selector chooses. Raises :class:`Refused`."""
        report: list[str] = self._asked(f"label/{label}/values", **{"match[]": selector})
        return report

    def _asked(self, path: str, **words: object) -> Any:
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(words)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as refusal:
            raise Refused(json.load(refusal)["error"]) from refusal


@contextmanager
def remembering(directory: Path, lines: Iterable[str], records: Mapping[str, str], end: int) -> Iterator[Prometheus]:
    """A Prometheus that remembers samples up to ``end``.

    Args:
        directory: An empty one.
        lines: The history as OpenMetrics, without its last line.
        records: Recording rules, by name, whose results belong to the history, too.
        end: Unix time of the last sample.
    """
    if shutil.which("prometheus") is None:
        pytest.skip("Prometheus is not installed, so the queries cannot be tried.")
    history, data = directory / "history.om", directory / "data"
    with history.open("w", encoding="utf-8") as out:
        out.writelines(f"{line}\n" for line in lines)
        out.write("# EOF\n")
    promtool("tsdb", "create-blocks-from", "openmetrics", "--quiet", history, data).ok()
    for level in levels(records):
        rules = [{"record": name, "expr": records[name]} for name in level]
        path = written(directory, "records.json", {"groups": [{"name": "records", "rules": rules}]})
        with _running(directory, end) as before:
            requests = [f"--url=http://{before.address}", f"--output-dir={data}", f"--eval-interval={STEP_SECONDS}s"]
            requests += [f"--start={end - RECORDED_SECONDS}", f"--end={end}"]
            promtool("tsdb", "create-blocks-from", "rules", *requests, path).ok()
    with _running(directory, end) as complete:
        yield complete


def levels(records: Mapping[str, str]) -> Iterator[list[str]]:
    """The names of rules, those first that read no other: Prometheus reads new blocks when it starts.

    >>> list(levels({"a:b:c": "rate(x[5m])", "g:h:i": "d:e:f", "d:e:f": "a:b:c / 2"}))
    [['a:b:c'], ['d:e:f'], ['g:h:i']]
    """
    left = {name: metrics_of(expression) & records.keys() for name, expression in records.items()}
    while left:
        level = [name for name, read in left.items() if not read & left.keys()]
        assert level, f"these read one another: {sorted(left)}"
        yield level
        left = {name: read for name, read in left.items() if name not in level}


@contextmanager
def _running(directory: Path, end: int) -> Iterator[Prometheus]:
    """Run Prometheus on a free port, and stop it at the end."""
    config = written(directory, "prometheus.yml", {"global": {"evaluation_interval": "1h"}})
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={directory / 'data'}"]
    command += ["--web.listen-address=127.0.0.1:0", "--storage.tsdb.retention.time=10y"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield Prometheus(_address(process), end)
        finally:
            process.terminate()
            process.communicate(timeout=60)


def _address(process: subprocess.Popen[str]) -> str:
    """Return its address as soon as it listens."""
    assert process.stderr is not None
    report, address, ready = [], "", False
    for line in process.stderr:  # the two come in either order
        report.append(line)
        found = _LISTENS.search(line)
        address, ready = found[1] if found else address, ready or _READY in line
        if address and ready:
            return address
    raise AssertionError(f"Prometheus ended: {''.join(report)}")
