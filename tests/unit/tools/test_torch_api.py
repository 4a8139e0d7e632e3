"""What trainer and bench use of torch exists in every version that pyproject.toml allows."""

from __future__ import annotations

import zipfile
from functools import cache
from pathlib import Path

import pytest

from tools.torch_api.private_names import REASONS
from tools.torch_api.table import Table, find_faults, is_private, read_layer, read_tables, table_of
from tools.torch_api.uses import Use, find_uses

VERSIONS = ("2.10", "2.11", "2.12", "2.13", "2.14", "2.15")
tables = cache(read_tables)
uses = cache(find_uses)  # reads all sources, 3 s, so not while tests are collected


def test_each_version_has_a_table() -> None:
    assert sorted(tables()) == sorted(VERSIONS)


@pytest.mark.parametrize("version", VERSIONS)
def test_no_name_and_no_keyword_is_missing(version: str) -> None:
    faults = find_faults(tables()[version], uses())
    assert not faults, f"torch {version}; after a new name: make torch-table TORCH={version}.0\n" + "\n".join(faults)


def test_the_tables_hold_nothing_that_is_not_used() -> None:
    used = {use.path for use in uses()}
    assert {name for table in tables().values() for name in table} - used == set()


def test_each_private_name_has_a_reason() -> None:
    private = {use.path for use in uses() if is_private(use.path)} - {"torch._C"}
    assert private == set(REASONS)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Table of a small torch."""
    wheel = tmp_path / "torch-9.9.0-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("torch/__init__.py", "from torch._C import *\nfrom .nn import Old as New\npi = 3.14\n")
        archive.writestr("torch/_C/__init__.pyi", "def ones(size: int, *, dtype: int) -> None: ...\n")
        archive.writestr(
            "torch/nn/__init__.py",
            "from dataclasses import dataclass\nclass Base:\n def __init__(self, width): ...\n"
            "class Old(Base):\n def grow(self, **kwargs): ...\n"
            "@dataclass\nclass Policy:\n reshard: bool = True\n",
        )
    names = ("torch.ones", "torch.pi", "torch.New", "torch.New.grow", "torch.nn.Policy", "torch.gone", "torch.New.gone")
    return table_of(read_layer(wheel), [Use(name, (), "") for name in names])


def test_names_are_found_through_imports_stubs_and_base_classes(table: Table) -> None:
    assert table == {
        "torch.New": ["width"],
        "torch.New.grow": ["**"],
        "torch.nn.Policy": ["reshard"],
        "torch.ones": ["dtype", "size"],
        "torch.pi": None,
    }


def test_a_missing_name_and_a_missing_keyword_are_faults_with_their_place(table: Table) -> None:
    found = [
        Use("torch.ones", ("dtype", "layout"), "a.py:1"),
        Use("torch.gone", (), "a.py:2"),
        Use("torch.New.grow", ("anything",), "a.py:3"),
        Use("torch.pi", ("unknown",), "a.py:4"),
    ]
    assert find_faults(table, found) == ["a.py:1: torch.ones has no 'layout'", "a.py:2: torch.gone does not exist"]
