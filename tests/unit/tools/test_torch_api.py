"""Names and keywords of torch that trainer and bench use exist in every version that pyproject.toml allows."""

from __future__ import annotations

from functools import cache

import pytest

from tools.torch_api.private_names import REASONS
from tools.torch_api.table import find_errors, is_private, read_tables
from tools.torch_api.uses import find_uses

VERSIONS = ("2.10", "2.11", "2.12", "2.13", "2.14", "2.15")
tables = cache(read_tables)
uses = cache(find_uses)  # reads all sources, 3 s, so not while tests are collected


def test_each_version_has_a_table() -> None:
    assert sorted(tables()) == sorted(VERSIONS)


@pytest.mark.parametrize("version", VERSIONS)
def test_no_name_and_no_keyword_is_missing(version: str) -> None:
    faults = find_errors(tables()[version], uses())
    assert not faults, f"torch {version}; after a new name: make torch-table TORCH={version}.0\n" + "\n".join(faults)


def test_the_tables_hold_nothing_that_is_not_used() -> None:
    assert {name for table in tables().values() for name in table} - {use.path for use in uses()} == set()


def test_each_private_name_has_a_reason() -> None:
    assert {use.path for use in uses() if is_private(use.path)} - {"torch._C"} == set(REASONS)
