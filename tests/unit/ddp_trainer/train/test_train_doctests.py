"""Examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import ddp_trainer.train

MODULES = [module.name for module in pkgutil.walk_packages(ddp_trainer.train.__path__, "ddp_trainer.train.")]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_hold(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name), raise_on_error=False).failed == 0
