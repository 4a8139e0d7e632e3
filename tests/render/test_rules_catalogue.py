"""The rules read only exported metrics, with labels and values of the catalog."""

from __future__ import annotations

import re

from ddp_trainer.metrics.families.family import Kind
from tests.support.helm import Helm
from tests.support.rule_files import FAMILY_OF, groups, matchers_of, metrics_of, rules

OF_OTHERS = {
    "up": "Prometheus' own: whether a target answered",
    "DCGM_FI_DEV_XID_ERRORS": "of NVIDIA's DCGM exporter: the last XID of a GPU",
    "DCGM_FI_DEV_THERMAL_VIOLATION": "of NVIDIA's DCGM exporter: time with lower clocks for want of cooling",
}
"""Metrics that are not in our catalogue, each with its source."""


def expressions(helm: Helm) -> list[str]:
    return [rule["expr"] for rule in rules(groups(helm))]


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
