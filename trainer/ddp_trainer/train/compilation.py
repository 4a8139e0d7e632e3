"""``--compile``: torch.compile around the model, and a sentence where it fails."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from ddp_trainer.train.errors import BadConfig
from ddp_trainer.train.task import Batch

Losses = Callable[[nn.Module, Batch], Tensor]


class CompiledLosses:
    """Losses through a compiled model. The first call compiles, and is where compiling fails."""

    def __init__(self, model: nn.Module, losses: Losses, *, backend: str, alarm: Callable[[str], None] | None) -> None:
        """With an ``alarm``, a model that cannot be compiled is trained as it is, and the alarm says so.

        Raises:
            BadConfig: there is no such backend.
        """
        from torch import _dynamo  # noqa: PLC0415 - a second; asked for

        self._failures: tuple[type[Exception], ...] = (_dynamo.exc.TorchDynamoException,)
        if backend not in _dynamo.list_backends(exclude_tags=()):
            known = ", ".join(sorted(_dynamo.list_backends(exclude_tags=())))
            raise BadConfig(f"There is no compiler backend {backend!r}.", hint=f"Give one of {known}.")
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
            reason = _first_sentence(err)
            if self._alarm is None:
                raise BadConfig(
                    f"The model could not be compiled: {reason}.",
                    hint="Leave --compile out, or add --compile-fallback to train uncompiled where that happens.",
                ) from err
            self._alarm(f"The model could not be compiled, and is trained uncompiled: {reason}.")
            model._compiled_call_impl = None  # noqa: SLF001 - what Module.compile() sets; there is no way back in public
            self._failures = ()
        return self._losses(model, batch)


def _first_sentence(err: Exception) -> str:
    lines = [line.strip() for line in str(err).splitlines() if line.strip()]
    return f"{type(err).__name__}: {lines[0] if lines else 'no reason was given'}".rstrip(".: ")
