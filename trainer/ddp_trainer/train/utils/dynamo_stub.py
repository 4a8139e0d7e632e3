"""Stub of ``torch._dynamo`` that avoids importing torch's compiler in runs that do not compile.

Optimizers, DDP and what fills weights on meta call ``torch._dynamo`` to exclude themselves from compilation. The first
call imports it, with sympy and 800 more modules. The import costs 0.9 to 1.2 s of CPU time and 70 MiB per rank. The
time is about half of that from the restart of a worker to its next step. While :class:`uncompiled` is active and the
real module is not loaded, torch does not import it, and the stub handles these calls with the defaults of the real
module. Any other attribute access loads the real module and uses it. A task that calls ``torch.compile`` loads the real
module, which replaces the stub.

Other threads may import the compiler at any time: the stub is never in ``sys.modules``. The import statement of two
modules of torch is skipped instead, and what they use is looked up on ``torch``.

``torch._dynamo`` is private API. A test runs a training process and fails if a new version of torch imports the module
despite the stub.
"""

from __future__ import annotations

import builtins
import importlib
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from types import ModuleType
from typing import Any, Final, ParamSpec, TypeVar

import torch

_NAME: Final = "torch._dynamo"
_IMPORTERS: Final = {"torch.optim.optimizer", "torch._compile"}
"""Modules that execute ``import torch._dynamo`` for optimizers, DDP and weights on meta."""
_P = ParamSpec("_P")
_R = TypeVar("_R")


class _Stub(ModuleType):
    """A module of which some attributes are known, and the others those of the real one."""

    def __init__(self, name: str, known: Mapping[str, object]) -> None:
        super().__init__(name)
        vars(self).update(known)

    def __getattr__(self, name: str) -> object:
        """Return an attribute of the real module."""
        return getattr(importlib.import_module(self.__name__), name)

    def __setattr__(self, name: str, value: object) -> None:
        """Set the attribute of the real module."""
        setattr(importlib.import_module(self.__name__), name, value)


_STUB: Final = _Stub(
    _NAME,
    {
        "disable": lambda function=None, *_, **__: function or (lambda decorated: decorated),
        "graph_break": lambda: None,
        "utils": _Stub(f"{_NAME}.utils", {"get_optimize_ddp_mode": lambda: "ddp_optimizer"}),
        # Activation checkpointing reads this; it only affects compiled graphs.
        "config": _Stub(f"{_NAME}.config", {"error_on_nested_fx_trace": True}),
    },
)

_import: Final = builtins.__import__


def _import_without_compiler(
    name: str,
    globals: Mapping[str, object] | None = None,  # noqa: A002 - the name of __import__
    locals: Mapping[str, object] | None = None,  # noqa: A002 - as above
    fromlist: Any = (),
    level: int = 0,
) -> ModuleType:
    if name == _NAME and globals and globals.get("__name__") in _IMPORTERS and _NAME not in sys.modules:
        return torch
    return _import(name, globals, locals, fromlist, level)


class uncompiled:  # noqa: N801 - used like a function; a class costs a quarter of a generator, every step
    """Context in which optimizers, DDP and models on meta are built and called without importing torch's compiler."""

    __slots__ = ("_is_outermost",)

    def __enter__(self) -> None:
        # Another override, as of a debugger, is left alone; the compiler is imported then.
        self._is_outermost = _NAME not in sys.modules and builtins.__import__ is _import
        if self._is_outermost:
            builtins.__import__ = _import_without_compiler
            torch._dynamo = _STUB  # type: ignore[assignment,unused-ignore]  # noqa: SLF001 - see the module's docstring

    def __exit__(self, *_: object) -> None:
        if self._is_outermost:
            builtins.__import__ = _import
            if vars(torch).get("_dynamo") is _STUB:  # else another thread has imported the real one
                del torch._dynamo  # noqa: SLF001 - set by this class


def without_compiler(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return a wrapper that calls the function inside :class:`uncompiled`."""

    @wraps(function)
    def run(*args: _P.args, **options: _P.kwargs) -> _R:
        with uncompiled():
            return function(*args, **options)

    return run
