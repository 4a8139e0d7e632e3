"""Strategy ``ddp``: DistributedDataParallel all-reduces gradients in buckets, overlapped with the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from inspect import signature
from typing import Any, Final

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ddp_trainer.train.data.task import Batch
from ddp_trainer.train.parallel.rank_collectives import send_from_first
from ddp_trainer.train.parallel.strategy import Parts, Strategy
from ddp_trainer.train.utils.dynamo_stub import uncompiled
from ddp_trainer.train.utils.errors import BadConfig, BadTask


def buffer_argument(constructor: Callable[..., Any]) -> str:
    """Return the argument of DDP's constructor that, if False, keeps a forward pass from broadcasting buffers.

    Before torch 2.13 it is ``broadcast_buffers``, which keeps the constructor from broadcasting them too.
    """
    is_known = "forward_sync_buffers" in signature(constructor).parameters
    return "forward_sync_buffers" if is_known else "broadcast_buffers"


_BUFFER_ARGUMENT: Final = buffer_argument(DistributedDataParallel)


class Ddp(Strategy):
    """DistributedDataParallel; the default for more than one rank."""

    averages = True

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        if parts.config.static_graph:
            _require_single_pass(parts)
        self._exchanged = False
        with self._group.convert_errors(), uncompiled():
            self._ddp = DistributedDataParallel(
                parts.module(),
                device_ids=[self._group.device] if self._group.device.type == "cuda" else None,
                bucket_cap_mb=parts.config.bucket_mb,
                find_unused_parameters=parts.config.find_unused_parameters,
                static_graph=parts.config.static_graph,
                gradient_as_bucket_view=parts.config.gradient_as_bucket_view,
                init_sync=not self._group.has_agreed_state,
                # The step synchronizes buffers itself, in all modes: see ddp_trainer.train.exact.buffer_sync.
                **{_BUFFER_ARGUMENT: False},  # type: ignore[arg-type] # a name of a bool argument
            )
        if _BUFFER_ARGUMENT == "broadcast_buffers" and not self._group.has_agreed_state:
            send_from_first([*self.model.buffers()], self._group)

    def begin(self, step: int) -> None:  # noqa: ARG002 - the same for all
        """Start a step in which no gradient has been exchanged."""
        self._exchanged = False

    def no_sync(self) -> AbstractContextManager[None]:
        """Return DDP's ``no_sync()`` context, in which gradients stay on this rank."""
        return self._ddp.no_sync()

    def forward(self, batch: Batch | None) -> Tensor:
        """Return the losses of the samples, computed through DDP; None stands for no samples.

        The ranks agree on DDP's buckets after the first backward pass.
        """
        try:
            with uncompiled():
                return self._ddp(batch)  # type: ignore[no-any-return] # a Module's call is untyped
        except RuntimeError as err:
            self._group.raise_pass_error(err)

    def backward(self, losses: Tensor, samples: int) -> None:
        """Add the gradients; DDP exchanges them during the pass, except in :meth:`no_sync`.

        Args:
            losses: Losses of this pass, one per sample, float, shape ``(n,)``.
            samples: Number of samples of the whole global step.
        """
        try:
            super().backward(losses, samples)
        except RuntimeError as err:
            self._group.raise_pass_error(err)
        self._exchanged = self._ddp.require_backward_grad_sync

    def reduce(self, samples: int) -> None:
        """Check that the last backward pass exchanged all gradients.

        A rank that had no such pass exchanges zeros here, because the other ranks wait for it.
        """
        if not self._exchanged:
            self.backward(self.forward(None), samples)
        self._require_all_gradients()

    def _require_all_gradients(self) -> None:
        """Raise BadTask on a missing gradient now: DDP itself reports it one step later, after the incomplete step."""
        finalized = getattr(self._ddp, "_check_reducer_finalized", None)
        if finalized is None:
            return
        try:
            finalized()
        except RuntimeError as err:
            raise BadTask(
                f"Rank {self._group.rank} got no gradient for some weights {self._group.activity}, which DDP needs.",
                hint="Give --find-unused-parameters, or freeze weights that take no part (requires_grad = False).",
            ) from err


def _require_single_pass(parts: Parts) -> None:
    """Check what DDP needs for a static graph: exactly one pass on every rank in every step.

    Raises:
        BadConfig: Some rank would have several passes, or none, in some step.
    """
    plan, world = parts.plan, parts.group.world_size
    last = plan.samples % plan.global_batch
    if plan.batch_slices != world or parts.config.micro_batch is not None or 0 < last < world:
        raise BadConfig(
            f"--static-graph needs one pass per rank and step, and there are {plan.batch_slices} batch "
            f"slices for {world} ranks{', cut by --micro-batch' if parts.config.micro_batch is not None else ''}"
            f"{f', with {last} samples in the last step of an epoch' if last else ''}.",
            hint=f"Start the run with --batch-slices {world} and without --micro-batch, or leave --static-graph out.",
        )
