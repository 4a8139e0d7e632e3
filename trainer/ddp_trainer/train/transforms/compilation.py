"""``--compile``: torch.compile around the model or each of its blocks, and a sentence where it fails.

Blocks that are alike are compiled once, and what lies between them (the gathering of a sharded block's weights, the
way from stage to stage) stays as it is: so that is how a model in pieces is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ddp_trainer.train.data.task import Batch
from ddp_trainer.train.utils.errors import BadConfig

Losses = Callable[[nn.Module, Batch], Tensor]
Alarm = Callable[[str], None]


class CompiledLosses:
    """Losses through a compiled model. The first call compiles, and is where compiling fails."""

    def __init__(self, model: nn.Module, losses: Losses, *, backend: str, alarm: Alarm | None) -> None:
        """With an ``alarm``, a model that cannot be compiled is trained as it is, and the alarm says so.

        Raises:
            BadConfig: there is no such backend.
        """
        self._failures = _failures(backend)
        model.compile(backend=backend)
        self._losses = losses
        self._alarm = alarm

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        """As the task's.

        Raises:
            BadConfig: the model cannot be compiled, and there is no falling back.
        """
        try:
            return self._losses(model, batch)
        except self._failures as err:
            _give_up("The model", err, self._alarm)
            model._compiled_call_impl = None  # noqa: SLF001 - what Module.compile() sets; there is no way back in public
            self._failures = ()
        return self._losses(model, batch)


def compile_blocks(found: Sequence[nn.Module], *, backend: str, alarm: Alarm | None) -> None:
    """Let each of these modules compile what it computes, in place; hooks on it stay outside of that.

    Raises:
        BadConfig: there is no such backend.
    """
    failures = _failures(backend)
    for block in found:
        block.forward = _CompiledForward(block.forward, backend, failures, alarm)


class _CompiledForward:
    """In place of a module's forward."""

    def __init__(
        self, forward: Callable[..., Any], backend: str, failures: tuple[type[Exception], ...], alarm: Alarm | None
    ) -> None:
        self._plain = forward
        self._compiled = torch.compile(forward, backend=backend)
        self._failures = failures
        self._alarm = alarm

    def __call__(self, *args: Any, **options: Any) -> Any:
        """As the module would.

        Raises:
            BadConfig: it cannot be compiled, and there is no falling back.
        """
        if args and isinstance(args[0], Tensor) and args[0].is_meta:
            return self._plain(*args, **options)  # somebody asks for shapes
        try:
            return self._compiled(*args, **options)
        except self._failures as err:
            _give_up("A block of the model", err, self._alarm)
            self._compiled, self._failures = self._plain, ()
        return self._plain(*args, **options)


def _failures(backend: str) -> tuple[type[Exception], ...]:
    from torch import _dynamo  # noqa: PLC0415 - a second; asked for

    if backend not in (backends := torch.compiler.list_backends(exclude_tags=())):
        known = ", ".join(sorted(backends))
        raise BadConfig(f"There is no compiler backend {backend!r}.", hint=f"Give one of {known}.")
    return (_dynamo.exc.TorchDynamoException,)


def _give_up(what: str, err: Exception, alarm: Alarm | None) -> None:
    reason = _first_sentence(err)
    if alarm is None:
        raise BadConfig(
            f"{what} could not be compiled: {reason}.",
            hint="Leave --compile out, or add --compile-fallback to train uncompiled where that happens.",
        ) from err
    alarm(f"{what} could not be compiled, and is trained uncompiled: {reason}.")


def _first_sentence(err: Exception) -> str:
    lines = [line.strip() for line in str(err).splitlines() if line.strip()]
    return f"{type(err).__name__}: {lines[0] if lines else 'no reason was given'}".rstrip(".: ")
