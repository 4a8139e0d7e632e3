"""Who waits for a module hears of it when it is imported, and of no other."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from ddp_trainer.launch.in_worker.import_hook import call_after_import

PACKAGE = "package_of_a_test"


def file_of(name: str, folder: Path) -> Path:
    """Where the module of this name is looked for."""
    return folder.joinpath(*name.split(".")).with_suffix(".py")


@pytest.fixture(params=["awaited_by_a_test", f"{PACKAGE}.inner"])
def awaited(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = str(request.param)
    (tmp_path / PACKAGE).mkdir()
    (tmp_path / PACKAGE / "__init__.py").touch()
    file_of(name, tmp_path).write_text("VALUE = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield name
    for module in (name, PACKAGE):
        sys.modules.pop(module, None)


def test_a_module_is_told_of_once_it_is_executed_and_all_others_are_left_alone(awaited: str) -> None:
    imported: list[ModuleType] = []
    before = list(sys.meta_path)
    call_after_import(awaited, imported.append)
    (finder,) = (hook for hook in sys.meta_path if hook not in before)
    assert finder.find_spec("json", None) is None
    assert not imported
    module = importlib.import_module(awaited)
    assert imported == [module]
    assert module.VALUE == 7
    assert sys.meta_path == before, "it leaves"


def test_a_module_that_is_there_is_told_of_at_once(awaited: str) -> None:
    module = importlib.import_module(awaited)
    before, imported = list(sys.meta_path), []
    call_after_import(awaited, imported.append)
    assert imported == [module]
    assert sys.meta_path == before


def test_a_module_that_fails_is_not_told_of(awaited: str, tmp_path: Path) -> None:
    file_of(awaited, tmp_path).write_text("raise ValueError('broken')\n")
    imported: list[ModuleType] = []
    call_after_import(awaited, imported.append)
    with pytest.raises(ValueError, match="broken"):
        importlib.import_module(awaited)
    assert not imported
