"""Stub of ``torch._dynamo`` that avoids importing torch's compiler in runs that do not compile.

Optimizers and DDP call ``torch._dynamo`` to exclude themselves from compilation. The first call imports it, with sympy
and 800 more modules. The import costs 1.0 to 1.2 s of CPU time per rank. That is about half of the time from the
restart of a worker to its next step. While :class:`uncompiled` is active and the real module is not loaded, the stub
handles these calls with the defaults of the real module. Any other attribute access loads the real module and uses it.
If a task calls ``torch.compile``, the real module is already loaded and the stub is not installed.

``torch._dynamo`` is private API. A test runs a training process and fails if a new version of torch imports the module
despite the stub.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import wraps
from types import ModuleType, SimpleNamespace
from typing import Final, ParamSpec, TypeVar

import torch

_NAME: Final = "torch._dynamo"
_F = TypeVar("_F", bound=Callable[..., object])
_P = ParamSpec("_P")
_R = TypeVar("_R")


class _DynamoStub(ModuleType):
    """The attributes of ``torch._dynamo`` that optimizers and DDP use, with their default behavior."""

    def __init__(self) -> None:
        super().__init__(_NAME)
        self.utils = SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer")
        # Activation checkpointing reads this; it only affects compiled graphs.
        self.config = SimpleNamespace(error_on_nested_fx_trace=True)

    @staticmethod
    def disable(function: _F, *_args: object, **_options: object) -> _F:
        """Return the function unchanged: without the compiler there is nothing to disable."""
        return function

    @staticmethod
    def graph_break() -> None:
        """Do nothing: without the compiler no graph exists."""

    def __getattr__(self, name: str) -> object:
        """Load the real module and return its attribute."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_load(self), name)


_STAND_IN: Final = _DynamoStub()


def _load(stand_in: ModuleType) -> ModuleType:
    _remove(stand_in)
    return importlib.import_module(_NAME)


def _remove(stand_in: ModuleType) -> None:
    if sys.modules.get(_NAME) is stand_in:
        del sys.modules[_NAME]
    if vars(torch).get("_dynamo") is stand_in:
        del torch._dynamo  # noqa: SLF001 - set by this module


class uncompiled:  # noqa: N801 - used like a function; a class costs a quarter of a generator, every step
    """Context in which optimizers and DDP can be built and called without importing torch's compiler."""

    __slots__ = ("_stands_in",)

    def __enter__(self) -> None:
        self._stands_in = _NAME not in sys.modules
        if self._stands_in:
            sys.modules[_NAME] = _STAND_IN
            torch._dynamo = _STAND_IN  # type: ignore[assignment,unused-ignore]  # noqa: SLF001 - see the module's docstring

    def __exit__(self, *_: object) -> None:
        if self._stands_in:
            _remove(_STAND_IN)


def without_compiler(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return a wrapper that calls the function inside :class:`uncompiled`."""

    @wraps(function)
    def run(*args: _P.args, **options: _P.kwargs) -> _R:
        with uncompiled():
            return function(*args, **options)

    return run
