"""The rules of charts/ddp-platform as Prometheus gets them, the output of promtool, and the metrics that they read."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from ddp_trainer.metrics.families.pod_families import FAMILIES
from tests.support.helm import PLATFORM, Done, Helm, Object
from tests.support.programs import captured

FAMILY_OF: Final = {sample.sample: family for family in FAMILIES for sample in family.series()} | {
    family.name: family for family in FAMILIES
}
"""The family of each metric, and of each sample, of the catalog."""
SERVES: Final = ("monitoring.coreos.com/v1/PodMonitor", "monitoring.coreos.com/v1/PrometheusRule")
_WORDS: Final = frozenset({"and", "or", "unless", "bool", "offset", "inf", "nan"})
_GROUPING: Final = re.compile(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)")
_SELECTOR: Final = re.compile(r"([a-zA-Z_:][\w:]*)\{([^}]*)\}")
_MATCHER: Final = re.compile(r'(\w+)\s*(=~|=|!=|!~)\s*"([^"]*)"')


@dataclass(frozen=True)
class Matcher:
    """One condition on a label of one metric."""

    metric: str
    label: str
    values: frozenset[str]
    """The alternatives, of a regular expression too."""


def groups(helm: Helm, values: Mapping[str, Any] | None = None) -> list[Object]:
    """Every group of rules that the chart delivers with these values of ``monitoring.rules``."""
    given = {"monitoring": {"rules": dict(values or {})}}
    objects = helm.template(PLATFORM, given, serves=SERVES)
    return [group for item in objects if item["kind"] == "PrometheusRule" for group in item["spec"]["groups"]]


def rules(found: list[Object]) -> Iterator[Object]:
    """The rules of these groups."""
    for group in found:
        yield from group["rules"]


def alone(found: list[Object], alert: str) -> list[Object]:
    """These groups with all that they record and one alert: promtool evaluates every rule at every simulated minute."""
    return [
        {**group, "rules": [rule for rule in group["rules"] if rule.get("alert", alert) == alert]} for group in found
    ]


def records() -> dict[str, str]:
    """The expressions of the recording rules, by name, as they stand in the files."""
    files = (yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(PLATFORM.glob("files/rules/*.yaml")))
    found = (rule for file in files for rule in rules(file["groups"]) if "record" in rule)
    return {rule["record"]: rule["expr"] for rule in found}


def exported(expression: str, recorded: Mapping[str, str]) -> set[str]:
    """The metrics that an expression reads, by way of recording rules, too.

    >>> sorted(exported("rate(a_total[5m]) / b:c:d", {"b:c:d": "e / 2"}))
    ['a_total', 'e']
    """
    read = metrics_of(expression)
    return read.difference(recorded).union(*(exported(recorded[name], recorded) for name in read & recorded.keys()))


def promtool(*words: str | Path) -> Done:
    """Call promtool; skips where there is none."""
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed, so the rules cannot be tried.")
    done = captured(["promtool", *map(str, words)], timeout=300)
    return Done(done.returncode, done.stdout, done.stderr)


def written(directory: Path, name: str, content: Mapping[str, Any]) -> Path:
    """A file for promtool; JSON is YAML, too."""
    path = directory / name
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def metrics_of(expression: str) -> set[str]:
    """Names of the metrics that an expression reads; what it says is checked by promtool.

    >>> sorted(metrics_of('sum by (job) (rate(a_total{x="b_total"}[5m] offset 1h)) / on (job) group_left () c:d > 0.5'))
    ['a_total', 'c:d']
    """
    bare = re.sub(r'"(\\.|[^"\\])*"', " ", expression)
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", bare)
    bare = _GROUPING.sub(" ", bare)
    names = re.findall(r"(?<![\w:.$])[a-zA-Z_:][\w:]*(?![\w:]|\s*\()", bare)
    return {name for name in names if name.lower() not in _WORDS and not _GROUPING.fullmatch(f"{name} ()")}


def matchers_of(expression: str) -> Iterator[Matcher]:
    """Conditions on labels, of metrics that are named.

    >>> [each] = matchers_of('a_total{reason=~"b|c"} > 1')
    >>> each.metric, each.label, sorted(each.values)
    ('a_total', 'reason', ['b', 'c'])
    """
    for metric, inside in _SELECTOR.findall(expression):
        for label, _, value in _MATCHER.findall(inside):
            yield Matcher(metric, label, frozenset(value.split("|")))
