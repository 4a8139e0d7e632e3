"""Cost of the rules of charts/ddp-platform for a real Prometheus that scrapes a job of a thousand ranks.

It scrapes 125 pods of eight ranks each, with every series of the catalogue, every 15 s, and finds what came before in
its store: five minutes of everything, and of what rules read over hours as much as they read. In a round every group is
evaluated once, those of a longer interval too. Its time is the sum over the groups, as Prometheus itself reports it,
and holds what else the machine does. Its processor time is that of the whole process with the rules, less that of the
same time without, and holds what the collector of garbage does beside the rules. Both have limits. The ratios are the
share of a second that this takes at the intervals of the chart.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.drivers.simulated_ranks import PODS, RANKS_OF_EACH, lines, owner_of, serve_metrics, write_history
from bench.harness import CannotMeasure, Options, Report
from tests.support.helm import Object, helms
from tests.support.rule_files import groups

SUMMARY = "what rules and alerts over 1,000 ranks cost a real Prometheus"
SCRAPE_SECONDS: Final = 15
HISTORY_SECONDS: Final = 300
BAR_SECONDS: Final = 0.3
INTERVAL_SECONDS: Final = 5
USUAL_INTERVAL_SECONDS: Final = 30
"""Interval of a group without one, by the defaults of the Prometheus operator."""
SLOWEST: Final = 6
"""Rules that are named."""
_RANGE: Final = re.compile(r"(ddp_\w+)(?:\{[^}]*\})?\[(\d+)([mh])\]")


def measure(options: Options) -> Report:
    """Time the rules, round by round."""
    if missing := [name for name in ("prometheus", "promtool") if shutil.which(name) is None]:
        raise CannotMeasure(f"{' and '.join(missing)} of Debian's package prometheus is not installed.")
    if not helms():
        raise CannotMeasure("Helm renders the rules; install it, or run 'make tools'.")
    report = Report()
    rules = groups(next(iter(helms().values())))
    start = int(time.time()) - HISTORY_SECONDS
    lasting = _metric_ranges(rules)
    with (
        tempfile.TemporaryDirectory() as room,
        serve_metrics(start=start, step=SCRAPE_SECONDS, lasting=lasting) as port,
    ):
        where = Path(room)
        count = sum(1 for _ in lines())
        options.progress(f"{count} series of {PODS * RANKS_OF_EACH} ranks in {PODS} pods")
        report.figure("series_count", count)
        _store(where, lasting, start)
        with _prometheus(where, port) as process:
            _measure_rules(_Server(process.pid, where), rules, report, options)
    return report


def _store(where: Path, lasting: dict[str, int], start: int) -> None:
    """Write what was before."""
    text = where / "history.om"
    with text.open("w", encoding="utf-8") as out:
        write_history(out, start=start, end=int(time.time()), step=SCRAPE_SECONDS, lasting=lasting)
    made = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "--quiet", str(text), str(where / "data")]
    subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
    text.unlink()


def _metric_ranges(rules: list[Object]) -> dict[str, int]:
    """Over how many seconds which metric is read, at most."""
    found: dict[str, int] = {}
    for rule in (rule for group in rules for rule in group["rules"]):
        for name, number, unit in _RANGE.findall(rule["expr"]):
            found[name] = max(found.get(name, 0), int(number) * {"m": 60, "h": 3600}[unit])
    return found


def _prometheus(where: Path, port: int) -> subprocess.Popen[bytes]:
    """A Prometheus that scrapes all pods and has no rules yet, in a ``with`` statement."""
    _write_rules(where, [])
    labels = [{"source_labels": ["pod"], "regex": ".*-(.*)", "target_label": "__metrics_path__", "replacement": "/$1"}]
    targets = [{"targets": [f"127.0.0.1:{port}"], "labels": owner_of(number)} for number in range(PODS)]
    scrape = {"job_name": "training/ddp-workers", "static_configs": targets, "relabel_configs": labels}
    config = {
        "global": {"evaluation_interval": f"{INTERVAL_SECONDS}s", "scrape_interval": f"{SCRAPE_SECONDS}s"},
        "rule_files": [str(where / "rules.json")],
        "scrape_configs": [scrape],
    }
    (where / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    (where / "address").write_text(address, encoding="utf-8")
    command = ["prometheus", f"--config.file={where / 'prometheus.yml'}", f"--storage.tsdb.path={where / 'data'}"]
    command += [f"--web.listen-address={address}", "--log.level=error"]
    return _ManagedProcess(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class _ManagedProcess(subprocess.Popen[bytes]):
    """A process that ends with its ``with`` statement."""

    def __exit__(self, *error: object) -> None:
        self.terminate()
        self.wait()


def _write_rules(where: Path, rules: list[Object]) -> None:
    """Write the rules, with the same interval for all groups, so that every round evaluates all of them."""
    every = [{**group, "interval": f"{INTERVAL_SECONDS}s"} for group in rules]
    (where / "rules.json").write_text(json.dumps({"groups": every}), encoding="utf-8")


@dataclass(frozen=True, slots=True)
class _Server:
    """A running Prometheus."""

    pid: int
    where: Path

    def query_api(self, path: str) -> Any:
        """Return the data of the response; None until the server responds."""
        address = (self.where / "address").read_text(encoding="utf-8")
        try:
            with urllib.request.urlopen(f"http://{address}/api/v1/{path}", timeout=10) as answer:
                return json.load(answer)["data"]
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None

    def number(self, expression: str) -> float:
        """Return the value of an expression; 0 if it has none."""
        found = (self.query_api(f"query?{urllib.parse.urlencode({'query': expression})}") or {"result": []})["result"]
        return float(found[0]["value"][1]) if found else 0.0

    @property
    def processor_seconds(self) -> float:
        """Processor time of the process."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def resident_bytes(self) -> int:
        """Resident memory of the process."""
        return int(Path(f"/proc/{self.pid}/statm").read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _measure_rules(server: _Server, rules: list[Object], report: Report, options: Options) -> None:
    """Let it scrape for a while, then with the rules, and compare."""
    rounds = 3 if options.quick else 10
    _until("every pod scraped twice", lambda: server.number("sum(count_over_time(up[5m]) >= bool 2)") == PODS, 120)
    seconds = rounds * INTERVAL_SECONDS
    before = server.processor_seconds
    time.sleep(seconds)
    idle = server.processor_seconds - before
    _write_rules(server.where, rules)
    os.kill(server.pid, signal.SIGHUP)
    _until("a first round", lambda: _round(server), 20 * INTERVAL_SECONDS)  # it opens its store
    before = server.processor_seconds
    begun = time.monotonic()
    times = _wait_for_rounds(server, rounds, options)
    spent = server.processor_seconds - before - idle * (time.monotonic() - begun) / seconds
    clock = report.figure("rules_round_seconds", [sum(groups.values()) for groups in times.values()]).median
    _groups(rules, list(times.values()), report, options)
    processor = max(spent, 0.0) / len(times)
    report.figure("rules_round_processor_seconds", processor)
    for name, rule_seconds in _slowest_rules(server):
        options.progress(f"{rule_seconds:.3f} s of a round is {name}")
    report.figure("scrapes_processor_ratio", idle / seconds)
    report.figure("head_series_count", _head(server))
    report.figure("prometheus_resident_bytes", server.resident_bytes)
    report.figure("alerts_count", server.number("count(ALERTS)"))
    report.at_most("seconds for a round of all rules over 1,000 ranks, the sum over groups", clock, BAR_SECONDS)
    report.at_most("processor seconds for a round of all rules over 1,000 ranks", processor, BAR_SECONDS)


def _groups(rules: list[Object], rounds: list[dict[str, float]], report: Report, options: Options) -> None:
    """Report the time of each group, and the share of a second that all of them take at their intervals."""
    medians = {group["name"]: statistics.median(seconds[group["name"]] for seconds in rounds) for group in rules}
    for name, seconds in sorted(medians.items(), key=lambda item: -item[1]):
        options.progress(f"{seconds:.3f} s of a round is group {name}")
    report.figure("rules_dearest_group_seconds", max(medians.values()))
    shares = (medians[group["name"]] / _seconds(group.get("interval")) for group in rules)
    report.figure("rules_clock_ratio", sum(shares))


def _seconds(interval: str | None) -> int:
    """Return the seconds of a group's interval."""
    return int(interval[:-1]) * {"s": 1, "m": 60}[interval[-1]] if interval else USUAL_INTERVAL_SECONDS


def _slowest_rules(server: _Server) -> list[tuple[str, float]]:
    """The rules that take longest, and how long each took in its last round."""
    rules = [rule for group in server.query_api("rules")["groups"] for rule in group["rules"]]
    taken = [(str(rule["name"]), float(rule["evaluationTime"])) for rule in rules]
    return sorted(taken, key=lambda item: -item[1])[:SLOWEST]


def _head(server: _Server) -> float:
    return float((server.query_api("status/tsdb") or {"headStats": {"numSeries": 0}})["headStats"]["numSeries"])


def _round(server: _Server) -> dict[str, dict[str, float]]:
    """Return the last evaluation times of all groups → seconds of each; empty until every group was evaluated."""
    groups = (server.query_api("rules") or {"groups": []})["groups"]
    if not groups or any(group["evaluationTime"] == 0 for group in groups):
        return {}
    if errors := [rule["lastError"] for group in groups for rule in group["rules"] if rule.get("lastError")]:
        raise CannotMeasure(f"A rule could not be evaluated: {errors[0]}")
    moments = "".join(sorted(group["lastEvaluation"] for group in groups))
    return {moments: {group["name"]: group["evaluationTime"] for group in groups}}


def _wait_for_rounds(server: _Server, rounds: int, options: Options) -> dict[str, dict[str, float]]:
    """Wait for so many rounds."""
    found = _round(server)
    deadline = time.monotonic() + (rounds + 20) * INTERVAL_SECONDS
    while len(found) <= rounds:
        if time.monotonic() > deadline:
            raise CannotMeasure("Prometheus did not evaluate its rules in time.")
        time.sleep(INTERVAL_SECONDS)
        for moments, seconds in _round(server).items():
            if moments not in found:
                found[moments] = seconds
                options.progress(f"a round took {sum(seconds.values()):.3f} s")
    return dict(list(found.items())[1:])


def _until(what: str, check: Any, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        if time.monotonic() > deadline:
            raise CannotMeasure(f"Prometheus has not come to this within {seconds:.0f} s: {what}.")
        time.sleep(0.5)
