"""The rules read what is exported, and what is exported is read by somebody or marked as reference."""

from __future__ import annotations

import doctest
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ddp_trainer.metrics.families.family import Kind
from ddp_trainer.metrics.families.pod_families import FAMILIES
from tests.support import rule_files
from tests.support.helm import Helm
from tests.support.rule_files import PLATFORM, groups, matchers_of, metrics_of, rules

OF_OTHERS = {
    "up": "Prometheus' own: whether a target answered",
    "DCGM_FI_DEV_XID_ERRORS": "of NVIDIA's DCGM exporter: the last XID of a GPU",
    "DCGM_FI_DEV_THERMAL_VIOLATION": "of NVIDIA's DCGM exporter: time with lower clocks for want of cooling",
}
"""Metrics that are not in our catalogue, each with its source."""
REFERENCE = {
    **dict.fromkeys(
        ("ddp_samples_total", "ddp_tokens_total", "ddp_model_flops_total", "ddp_sampled_comm_exposed_seconds_total"),
        "who wants to know it by rank; rules read what each pod has added up",
    ),
    "ddp_rendezvous_refused_connections_total": "who follows docs/security.md",
    "ddp_outside_group_timestamp_seconds": "`kubectl ddp status`, `list` and `why`",
    **dict.fromkeys(("ddp_stalled_seconds", "ddp_stalled_by_rank"), "`kubectl ddp status`, `top` and `why`"),
    **dict.fromkeys(("ddp_last_failure_timestamp_seconds", "ddp_last_failed_rank"), "`kubectl ddp report`"),
    **dict.fromkeys(
        ("ddp_startup_seconds", "ddp_agent_start_time_seconds"), "`kubectl ddp status`, `top` and `report`"
    ),
    "ddp_user_value": "`kubectl ddp status`, `top` and `report`; panels are for who has named the values",
    "ddp_job_start_time_seconds": "the launcher, for its account of the job's time",
}
"""Metrics that neither a rule nor a panel reads, each with who does."""
IN_RUNBOOKS = {
    "ddp_collective_errors_total": "DdpCollectivesFailing",
    "ddp_collective_timeouts_total": "DdpCollectivesFailing",
    "ddp_rendezvous_failures_total": "DdpRendezvousSlow",
}
"""Metrics of panels that people also ask for when an alert has fired, each with the runbook that tells them to."""
RUNBOOKS = Path(__file__).parents[2] / "docs/runbooks"
FAMILY_OF = {series.sample: family for family in FAMILIES for series in family.series()} | {
    family.name: family for family in FAMILIES
}


def expressions(helm: Helm) -> list[str]:
    return [rule["expr"] for rule in rules(groups(helm))]


def of_dashboards() -> Iterator[str]:
    """Every expression in the dashboards."""
    for path in PLATFORM.glob("files/dashboards/*.json"):
        yield from _inside(json.loads(path.read_text()))


def _inside(node: Any) -> Iterator[str]:
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        if key == "expr":
            yield value
        elif isinstance(value, dict | list):
            yield from _inside(value)


def test_examples_in_docstrings_hold() -> None:
    assert doctest.testmod(rule_files).failed == 0


def test_a_rule_reads_what_the_catalogue_has(helm: Helm) -> None:
    recorded = {rule["record"] for rule in rules(groups(helm)) if "record" in rule}
    read = set().union(*map(metrics_of, expressions(helm)))
    assert read - FAMILY_OF.keys() - recorded == set(OF_OTHERS)


def test_a_rule_asks_for_labels_and_values_that_the_catalogue_has(helm: Helm) -> None:
    for expression in expressions(helm):
        for matcher in matchers_of(expression):
            if (family := FAMILY_OF.get(matcher.metric)) is not None:
                assert matcher.label in family.labels, expression
                assert matcher.values <= {*family.values, ""}, expression


def test_rules_keep_jobs_of_one_name_in_two_namespaces_apart(helm: Helm) -> None:
    for expression in expressions(helm):
        for clause, labels in re.findall(r"\b(by|on|ignoring|without) \(([^()]*)\)", expression):
            named = {label.strip() for label in labels.split(",")}
            assert clause in {"by", "on"}, expression
            assert "namespace" in named or not named & {"ddp_job", "pod"}, expression


def test_a_counter_is_read_by_its_growth(helm: Helm) -> None:
    growth = ("rate(", "increase(", "last_over_time(", "min_over_time(")
    for expression in expressions(helm):
        for name in metrics_of(expression):
            if name in FAMILY_OF and FAMILY_OF[name].kind is Kind.COUNTER and f"{name}{{" not in expression:
                assert any(f"{function}{name}" in expression for function in growth), expression


def test_every_metric_is_read_by_somebody(helm: Helm) -> None:
    read = set().union(*map(metrics_of, [*expressions(helm), *of_dashboards()]))
    known = {FAMILY_OF[name].name for name in read if name in FAMILY_OF} | set(REFERENCE)
    unread = {family.name for family in FAMILIES} - known
    assert unread == set(), "write a rule or a panel that reads these, or say in REFERENCE who needs them"


def test_a_runbook_asks_for_the_metrics_that_are_there_for_it() -> None:
    for metric, runbook in IN_RUNBOOKS.items():
        assert f"`{metric}`" in (RUNBOOKS / f"{runbook}.md").read_text(), metric
