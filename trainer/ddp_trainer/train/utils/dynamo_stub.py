"""Train without paying for torch's compiler where nothing is compiled.

Optimizers and DDP ask ``torch._dynamo`` to leave them alone, and the asking imports it, with sympy and 800 more
modules: 1.0 to 1.2 s of processor time per rank, about half of what a restarted worker needs to its next step. While
:func:`uncompiled` is active and the real module is not loaded, a stand-in answers those questions as the real one
does by default. Whatever else is asked of it, it gives way to the real module at once. A task that calls
``torch.compile`` has loaded the real one, and then nothing here happens.

``torch._dynamo`` is private: a test starts a process that fails when a new version of torch imports it all the same.
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


class _StandIn(ModuleType):
    """Answers what optimizers and DDP ask of ``torch._dynamo``, as it would by default."""

    def __init__(self) -> None:
        super().__init__(_NAME)
        self.utils = SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer")
        # Activation checkpointing asks; it matters to graphs alone.
        self.config = SimpleNamespace(error_on_nested_fx_trace=True)

    @staticmethod
    def disable(function: _F, *_args: object, **_options: object) -> _F:
        """Nothing is compiled, so the function is already not compiled."""
        return function

    @staticmethod
    def graph_break() -> None:
        """There is no graph."""

    def __getattr__(self, name: str) -> object:
        """Anything else is the real module's business."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_load(self), name)


_STAND_IN: Final = _StandIn()


def _load(stand_in: ModuleType) -> ModuleType:
    _remove(stand_in)
    return importlib.import_module(_NAME)


def _remove(stand_in: ModuleType) -> None:
    if sys.modules.get(_NAME) is stand_in:
        del sys.modules[_NAME]
    if vars(torch).get("_dynamo") is stand_in:
        del torch._dynamo  # noqa: SLF001 - we put it there


class uncompiled:  # noqa: N801 - reads as a function; a class enters at a quarter of a generator's cost, each step
    """Build or step an optimizer, or build or call DDP, without importing torch's compiler."""

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
    """The function, called while :class:`uncompiled` is active."""

    @wraps(function)
    def run(*args: _P.args, **options: _P.kwargs) -> _R:
        with uncompiled():
            return function(*args, **options)

    return run
