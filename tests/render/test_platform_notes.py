"""The notes of ``charts/ddp-platform``: the next commands, and settings that are weaker than the defaults."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.helm import PLATFORM, Helm

NOWHERE = {"KUBECONFIG": "/nonexistent"}
UNWATCHED = "the cluster serves no PodMonitor and PrometheusRule"


@pytest.fixture
def notes(helm: Helm) -> Callable[..., str]:
    def read(**values: Any) -> str:
        words = ("install", "mine", str(PLATFORM), "-nsystem", "--dry-run=client", "--values=-")
        text = helm.run(*words, stdin=json.dumps(values), environ=NOWHERE).ok().out
        return text.partition("\nNOTES:\n")[2]

    if helm.major < 4:
        pytest.skip("Helm 3 asks a cluster before it prints notes.")
    return read


def test_the_next_commands_are_named(notes: Callable[..., str]) -> None:
    message = notes(image={"registry": "example.com", "tag": "2"})
    assert "  helm test mine --namespace system\n" in message
    assert "  kubectl ddp submit train.py --namespace training --image example.com/ddp-trainer:2\n" in message
    assert "helm test" not in notes(test={"enabled": False})


def test_what_is_weaker_than_the_defaults_is_said(notes: Callable[..., str]) -> None:
    assert notes(monitoring={"enabled": False}).count("\n- ") == 0
    message = notes(
        namespaces=[{"name": "a", "podSecurity": "baseline", "quota": {"pods": 1}}, {"name": "b", "keep": False}],
        networkPolicy={"enabled": False},
        priorityClasses=[{"name": "c", "value": 1, "globalDefault": True}],
    )
    for sentence in (
        'namespace a admits pods beyond Pod Security "restricted" (podSecurity: baseline).',
        "namespace b and every job and checkpoint in it are deleted when this release is uninstalled (keep: false).",
        "the quota of namespace a is not enforced (quota.enabled: false).",
        "pods without a policy of their own can be reached by every pod of the cluster (networkPolicy.enabled: false).",
        "every pod of the cluster that names no PriorityClass gets c (globalDefault: true).",
        UNWATCHED,
    ):
        assert f"- {sentence}" in message


def test_monitoring_that_is_not_there_is_said_with_the_value_that_ends_it(notes: Callable[..., str]) -> None:
    assert f"- {UNWATCHED}" in notes()
    assert "set monitoring.enabled to false to hide this warning" in " ".join(notes().split())
    assert UNWATCHED not in notes(monitoring={"enabled": False})
