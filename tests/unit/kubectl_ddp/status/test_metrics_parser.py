"""Reading the text format."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Gauge
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import CollectorRegistry

from kubectl_ddp.status.metrics_parser import MOST_LABEL_CHARACTERS, parse


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
    assert (read.total("ddp_steps_total"), read.total("ddp_steps_total", rank="1")) == (3, 2)
    assert read.value("ddp_loss") is None


def test_what_was_said_of_each_rank_is_told_apart() -> None:
    read = parse('ddp_loss 3\nddp_step{rank="0"} 1\nddp_step{rank="1"} 2\nddp_rank_up{rank="1"} 0\n')
    found = {rank: (of.value("ddp_step"), of.value("ddp_rank_up")) for rank, of in read.split("rank").items()}
    assert found == {"0": (1, None), "1": (2, 0)}
    assert parse("ddp_loss 3").split("rank") == {}


def test_labels_that_are_too_long_are_left_out() -> None:
    long = "x" * MOST_LABEL_CHARACTERS
    assert parse(f'ddp_step{{rank="{long}"}} 1\nddp_loss{{rank="0"}} 3').families.keys() == {"ddp_loss"}
