"""Catalogue of metrics: names, series, and their number."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddp_trainer.common.constants import Port
from ddp_trainer.common.metric_names import Metric
from ddp_trainer.metrics.families.family import Scope
from ddp_trainer.metrics.families.pod_families import FAMILIES
from ddp_trainer.metrics.storage.mmap_store import RANK, MetricsFile, read

ROOT = Path(__file__).parents[5]
BY_NAME = {family.name: family for family in FAMILIES}


def test_no_name_is_given_twice() -> None:
    assert len(BY_NAME) == len(FAMILIES)
    keys = [series.key for family in FAMILIES for series in family.series()]
    assert len(set(keys)) == len(keys)


def test_every_metric_of_the_contract_is_in_the_catalogue() -> None:
    assert {metric.value for metric in Metric} <= set(BY_NAME)


@pytest.mark.parametrize(
    ("scope", "most"), [(Scope.RANK, 60), (Scope.POD, 113), (Scope.JOB, 40)], ids=["rank", "pod", "job"]
)
def test_a_thousand_ranks_stay_affordable(scope: Scope, most: int) -> None:
    assert sum(max(1, len(family.series())) for family in FAMILIES if family.scope is scope) <= most


def test_a_rank_of_no_layout_has_no_series_of_layouts(tmp_path: Path) -> None:
    of_layouts = {series.key for series in BY_NAME[Metric.WAIT_SECONDS].series()}
    MetricsFile.open(tmp_path / "rank-0.board", RANK).close()
    assert of_layouts
    assert not of_layouts & read(tmp_path / "rank-0.board", RANK).values.keys()


def test_the_page_names_the_port() -> None:
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    assert f"http://<pod>:{Port.METRICS.value}/metrics" in page
    assert f"aggregate --port {Port.METRICS.value} &" in page
