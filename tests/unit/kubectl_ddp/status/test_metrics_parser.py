"""Reading the text format."""

from __future__ import annotations

import ast
import collections
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Gauge
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import CollectorRegistry

import kubectl_ddp
from ddp_trainer.common.metric_names import Metric
from kubectl_ddp.status.metrics_parser import (
    GROUPS_JOINED,
    LIVE,
    MOST_LABEL_CHARACTERS,
    RANK_STOPPED,
    iter_samples,
    parse,
)


@given(st.text(), st.floats())
def test_what_the_client_library_writes_is_read_back(rank: str, value: float) -> None:
    registry = CollectorRegistry()
    Gauge("ddp_step", 'A "help" text.', ["rank"], registry=registry).labels(rank).set(value)
    read = parse(generate_latest(registry).decode())
    assert read.by("rank", "ddp_step")[rank] == pytest.approx(value, nan_ok=True)


@given(st.text())
def test_no_text_makes_it_fail(text: str) -> None:
    parse("ddp_step" + text)


def test_families_of_others_are_left_out() -> None:
    assert parse('python_info{version="3"} 1\nddp_unheard_of 2\nddp_loss 3').families.keys() == {"ddp_loss"}


def test_sums_are_over_the_samples_that_match() -> None:
    read = parse('ddp_steps_total{rank="0"} 1\nddp_steps_total{rank="1"} 2\n')
    assert (read.total("ddp_steps_total"), read.total("ddp_steps_total", rank="1"), read.value("ddp_loss")) == (
        3,
        2,
        None,
    )


def test_what_was_said_of_each_rank_is_told_apart() -> None:
    read = parse('ddp_loss 3\nddp_step{rank="0"} 1\nddp_step{rank="1"} 2\nddp_rank_up{rank="1"} 0\n')
    split = read.split("rank")
    assert {rank: (part.value("ddp_step"), part.value("ddp_rank_up")) for rank, part in split.items()} == {
        "0": (1, None),
        "1": (2, 0),
    }
    assert parse("ddp_loss 3").split("rank") == {}


def test_the_families_that_pods_are_asked_for_are_those_that_commands_read() -> None:
    """A report reads its own: a pod's history, or a Prometheus."""
    package = Path(kubectl_ddp.__file__).parent
    read = {
        Metric[node.attr]
        for path in package.rglob("*.py")
        if not path.is_relative_to(package / "report")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Metric"
        if path.name != "exposition.py"
    }
    assert read | {RANK_STOPPED, GROUPS_JOINED} == set(LIVE)


HOSTILE = {
    "a name without an end": "ddp_step{" + "a" * 1_000_000 + "} 1",
    "names in a row": "ddp_step{" + "a," * 500_000 + "} 1",
    "a text without an end": 'ddp_step{a="' + "\\\\" * 500_000 + "} 1",
    "texts that begin": "ddp_step{" + 'a="' * 330_000 + "} 1",
    "braces": "ddp_step" + "{" * 1_000_000,
    "closed braces": "ddp_step{" + "}" * 1_000_000,
    "spaces": "ddp_step{," + " " * 1_000_000 + "} 1",
    "a name": "ddp_" + "a" * 1_000_000,
    "many lines": "ddp_step{a\n" * 90_000,
    "short labels": 'ddp_step{r="1"} 1\n' * 55_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_pod_serves_costs_processor_time_in_proportion_to_its_length(name: str) -> None:
    """A megabyte takes milliseconds. The bar is far above that, and far below what a square would take."""
    text = HOSTILE[name]
    begun = time.process_time()
    parse(text)
    collections.deque(iter_samples(text), maxlen=0)
    assert time.process_time() - begun < 2.0


def test_labels_that_are_too_long_are_left_out() -> None:
    long = "x" * MOST_LABEL_CHARACTERS
    assert parse(f'ddp_step{{rank="{long}"}} 1\nddp_loss{{rank="0"}} 3').families.keys() == {"ddp_loss"}
