"""``--compile``: apply torch.compile to the model or to each of its blocks.

:class:`CompiledLosses` compiles the model, :func:`compile_blocks` the blocks. Equal blocks are compiled once, and the
code between them stays uncompiled, for example the all-gather of FSDP or the transfer between stages. Sharded models
are therefore compiled by block.

:func:`reuse_isa_probes` keeps the results of Inductor's probes of the processor in the compile cache. For each
instruction set, Inductor loads a small library in a subprocess that imports torch. On a CPU that is most of the time of
a warm start. The launcher's directory belongs to one kind of machine, so a probe that has passed there passes again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from ddp_trainer.train.data.task import Batch
from ddp_trainer.train.utils.errors import BadConfig

Losses = Callable[[nn.Module, Batch], Tensor]
Alarm = Callable[[str], None]


class CompiledLosses:
    """Losses through a compiled model. The first call compiles, so compile errors appear there."""

    def __init__(self, model: nn.Module, losses: Losses, *, backend: str, alarm: Alarm | None) -> None:
        """Compile the model at the first call.

        Args:
            model: Changed in place.
            losses: Losses of the samples of a batch.
            backend: Backend of torch.compile.
            alarm: Receives the message if compilation fails, and the model trains uncompiled. None to raise an error
                instead.

        Raises:
            BadConfig: The backend does not exist.
        """
        self._failures = _failures(backend)
        model.compile(backend=backend)
        self._losses = losses
        self._alarm = alarm

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the losses of the task.

        Raises:
            BadConfig: The model cannot be compiled, and fallback is off.
        """
        try:
            return self._losses(model, batch)
        except self._failures as err:
            _report_compile_error("The model", err, self._alarm)
            model._compiled_call_impl = None  # noqa: SLF001 - set by Module.compile(); torch has no public way to undo it
            self._failures = ()
        return self._losses(model, batch)


def compile_blocks(found: Sequence[nn.Module], *, backend: str, alarm: Alarm | None) -> None:
    """Compile the forward method of each module, in place; hooks on the modules stay uncompiled.

    Args:
        found: Blocks to compile.
        backend: Backend of torch.compile.
        alarm: Receives the message if compilation fails, and the block trains uncompiled. None to raise an error
            instead.

    Raises:
        BadConfig: The backend does not exist.
    """
    failures = _failures(backend)
    for block in found:
        block.forward = _CompiledForward(block.forward, backend, failures, alarm)


class _CompiledForward:
    """Compiled replacement of a module's forward method."""

    def __init__(
        self, forward: Callable[..., Any], backend: str, failures: tuple[type[Exception], ...], alarm: Alarm | None
    ) -> None:
        self._plain = forward
        self._compiled = torch.compile(forward, backend=backend)
        self._failures = failures
        self._alarm = alarm

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Return the result of the module's forward method.

        Raises:
            BadConfig: The module cannot be compiled, and fallback is off.
        """
        if args and isinstance(args[0], Tensor) and args[0].is_meta:
            return self._plain(*args, **options)  # only the shapes are computed
        try:
            return self._compiled(*args, **options)
        except self._failures as err:
            _report_compile_error("A block of the model", err, self._alarm)
            self._compiled, self._failures = self._plain, ()
        return self._plain(*args, **options)


def _failures(backend: str) -> tuple[type[Exception], ...]:
    from torch import _dynamo  # noqa: PLC0415 - takes a second to import, needed only on request

    if backend not in (backends := torch.compiler.list_backends(exclude_tags=())):
        known = ", ".join(sorted(backends))
        raise BadConfig(f"There is no compiler backend {backend!r}.", hint=f"Give one of {known}.")
    return (_dynamo.exc.TorchDynamoException,)


def _report_compile_error(what: str, err: Exception, alarm: Alarm | None) -> None:
    reason = _error_summary(err)
    if alarm is None:
        raise BadConfig(
            f"{what} could not be compiled: {reason}.",
            hint="Leave --compile out, or add --compile-fallback to train uncompiled where that happens.",
        ) from err
    alarm(f"{what} could not be compiled, and is trained uncompiled: {reason}.")


def _error_summary(err: Exception) -> str:
    lines = [line.strip() for line in str(err).splitlines() if line.strip()]
    return f"{type(err).__name__}: {lines[0] if lines else 'no reason was given'}".rstrip(".: ")


PROBES: Final = "isa-probes"
"""Directory of empty files, one for each probe that has passed."""


def reuse_isa_probes(cache: Path) -> None:
    """Make Inductor skip the probes that have passed with this cache; a failed probe is repeated by each process.

    Without effect where torch has no such probe: Inductor then does as it likes.

    Args:
        cache: Inductor's cache directory, of this kind of machine only.
    """
    try:
        from torch._inductor.cpu_vec_isa import VecISA  # noqa: PLC0415 - takes a second, and only --compile needs it

        probe, build_arch_flags = VecISA.check_build, VecISA.build_arch_flags
    except (ImportError, AttributeError):
        return
    if probe.__module__ == __name__:
        return  # done for an earlier group of this process

    def check_build(self: Any, code: str) -> bool:
        flags = getattr(self, build_arch_flags.__name__)()
        passed = cache / PROBES / hashlib.sha256(f"{flags}\n{code}".encode()).hexdigest()
        if passed.exists():
            return True
        answer = probe(self, code)
        if answer:
            with suppress(OSError):
                passed.parent.mkdir(parents=True, exist_ok=True)
                passed.touch()
        return answer

    VecISA.check_build = check_build  # type: ignore[method-assign] # torch has no setting that covers all probes
