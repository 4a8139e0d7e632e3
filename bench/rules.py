"""How long Prometheus takes for the rules of charts/ddp-platform over a job of a thousand ranks.

A real Prometheus over five minutes of generated history: every series that 125 pods of eight ranks would have by the
catalogue, scraped every 15 s. The time of a round is the sum over the groups, as Prometheus itself reports it.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bench.harness import CannotMeasure, Options, Report
from ddp_trainer.metrics.catalogue import FAMILIES, Family, Kind, Scope
from tests.helm import helms
from tests.rule_files import groups

SUMMARY = "what rules and alerts over 1,000 ranks cost a real Prometheus"
PODS: Final = 125
RANKS_OF_EACH: Final = 8
STEP_SECONDS: Final = 15
HISTORY_SECONDS: Final = 300
BAR_SECONDS: Final = 0.3
INTERVAL_SECONDS: Final = 5


def measure(options: Options) -> Report:
    """Time the rules, round by round."""
    if missing := [name for name in ("prometheus", "promtool") if shutil.which(name) is None]:
        raise CannotMeasure(f"{' and '.join(missing)} of Debian's package prometheus is not installed.")
    if not helms():
        raise CannotMeasure("Helm renders the rules; install it, or run 'make tools'.")
    report = Report()
    with tempfile.TemporaryDirectory() as room:
        where = Path(room)
        series = _history(where, options)
        seconds = _rounds(where, 3 if options.quick else 10, options)
    report.figure("series_count", series)
    spread = report.figure("rules_round_seconds", seconds)
    report.at_most("seconds for a round of all rules over 1,000 ranks", spread.median, BAR_SECONDS)
    return report


def _history(where: Path, options: Options) -> int:
    """Write blocks of samples; how many series they hold."""
    start = int(time.time()) - HISTORY_SECONDS
    moments = range(start, start + HISTORY_SECONDS, STEP_SECONDS)  # none to come: records are refused before the last
    count = 0
    text = where / "history.om"
    with text.open("w", encoding="utf-8") as out:
        for family in FAMILIES:
            kind = "counter" if family.kind is Kind.COUNTER else "gauge"
            if family.kind not in {Kind.SUMMARY, Kind.HISTOGRAM}:
                out.write(f"# TYPE {family.name.removesuffix('_total')} {kind}\n")
            for name in _series(family):
                count += 1
                grows = family.kind in {Kind.COUNTER, Kind.SUMMARY, Kind.HISTOGRAM}
                out.writelines(f"{name} {_value(family, moment, start, grows)} {moment}\n" for moment in moments)
        out.write("# EOF\n")
    options.progress(f"{count} series, {len(moments)} samples each")
    made = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "--quiet", str(text), str(where / "data")]
    subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
    text.unlink()
    return count


def _value(family: Family, moment: int, start: int, grows: bool) -> int:
    if grows:
        return moment - start
    return moment if family.name.endswith("timestamp_seconds") else 1


def _series(family: Family) -> Iterator[str]:
    """Every series that the job has of this family."""
    owners = {Scope.JOB: 1, Scope.POD: PODS, Scope.RANK: PODS * RANKS_OF_EACH}[family.scope]
    own = [(each.sample, each.labels) for each in family.series()] or [(family.name, dict.fromkeys(family.labels, "x"))]
    for owner in range(owners):
        is_rank = family.scope is Scope.RANK
        pod = owner // RANKS_OF_EACH if is_rank else owner
        told = {"namespace": "training", "ddp_job": "large", "pod": f"large-worker-{pod}"}
        told |= {"rank": str(owner)} if is_rank else {}
        for sample, labels in own:
            yield sample + "{" + ",".join(f'{name}="{value}"' for name, value in (told | labels).items()) + "}"


def _rounds(where: Path, rounds: int, options: Options) -> list[float]:
    """Seconds for all groups, round by round."""
    rules = where / "rules.json"
    rules.write_text(json.dumps({"groups": groups(next(iter(helms().values())))}), encoding="utf-8")
    told = {"global": {"evaluation_interval": f"{INTERVAL_SECONDS}s"}, "rule_files": [str(rules)]}
    (where / "prometheus.yml").write_text(json.dumps(told), encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = ["prometheus", f"--config.file={where / 'prometheus.yml'}", f"--storage.tsdb.path={where / 'data'}"]
    command += [f"--web.listen-address={address}", "--log.level=error"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            return _watched(f"http://{address}/api/v1/rules", rounds, options)
        finally:
            process.terminate()


def _watched(url: str, rounds: int, options: Options) -> list[float]:
    found: dict[str, float] = {}
    deadline = time.monotonic() + (rounds + 20) * INTERVAL_SECONDS
    while len(found) < rounds + 1:
        if time.monotonic() > deadline:
            raise CannotMeasure("Prometheus did not evaluate its rules in time.")
        time.sleep(INTERVAL_SECONDS / 5)
        told = _groups(url)
        moments = "".join(sorted(group["lastEvaluation"] for group in told))
        if told and all(group["evaluationTime"] > 0 for group in told) and moments not in found:
            if errors := [rule["lastError"] for group in told for rule in group["rules"] if "lastError" in rule]:
                raise CannotMeasure(f"A rule could not be evaluated: {errors[0]}")
            found[moments] = sum(group["evaluationTime"] for group in told)
            options.progress(f"a round took {found[moments]:.3f} s")
    return list(found.values())[1:]  # the first reads its blocks from the disk


def _groups(url: str) -> list[dict[str, Any]]:
    """What Prometheus says of its groups; nothing until it answers."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            told: list[dict[str, Any]] = json.load(answer)["data"]["groups"]
    except (urllib.error.URLError, ConnectionError):
        return []
    return told
