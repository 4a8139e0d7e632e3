"""``ddp``: gradients are added up by DistributedDataParallel, in buckets, while the backward pass still runs."""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ddp_trainer.train.data.task import Batch
from ddp_trainer.train.parallel.strategy import Parts, Strategy
from ddp_trainer.train.utils.dynamo_stub import uncompiled
from ddp_trainer.train.utils.errors import BadConfig, BadTask


class Ddp(Strategy):
    """The default for more than one rank."""

    averages = True

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        if parts.config.static_graph:
            _demand_one_pass(parts)
        self._exchanged = False
        with self._group.watched(), uncompiled():
            self._ddp = DistributedDataParallel(
                parts.module(),
                device_ids=[self._group.device] if self._group.device.type == "cuda" else None,
                # The step shares buffers itself, also where rank 0's are wanted: see
                # ddp_trainer.train.exact.buffer_sync.
                forward_sync_buffers=False,
                bucket_cap_mb=parts.config.bucket_mb,
                find_unused_parameters=parts.config.find_unused_parameters,
                static_graph=parts.config.static_graph,
                gradient_as_bucket_view=parts.config.gradient_as_bucket_view,
            )

    def begin(self, step: int) -> None:  # noqa: ARG002 - the same for all
        """Nothing is exchanged yet."""
        self._exchanged = False

    def alone(self) -> AbstractContextManager[None]:
        """DDP's own."""
        return self._ddp.no_sync()

    def forward(self, batch: Batch | None) -> Tensor:
        """Through DDP, whose ranks agree on buckets after the first backward pass; None stands for no samples."""
        with self._group.watched_pass(), uncompiled():
            return self._ddp(batch)  # type: ignore[no-any-return] # a Module's call is untyped

    def backward(self, losses: Tensor, samples: int) -> None:
        """DDP exchanges gradients meanwhile, unless it is told to leave them alone."""
        with self._group.watched_pass():
            super().backward(losses, samples)
        self._exchanged = self._ddp.require_backward_grad_sync

    def reduce(self, samples: int) -> None:
        """The last backward pass did it; a rank that had none takes part with zeros, for which the others wait."""
        if not self._exchanged:
            self.backward(self.forward(None), samples)
        self._demand_all_gradients()

    def _demand_all_gradients(self) -> None:
        """DDP finds out in the next step, when this one's gradients, of which some were not added up, are applied."""
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


def _demand_one_pass(parts: Parts) -> None:
    """What DDP needs for a static graph: the same one pass on every rank in every step.

    Raises:
        BadConfig: some step would have several passes, or none, on some rank.
    """
    plan, world = parts.plan, parts.group.world_size
    last = plan.samples % plan.global_batch
    if plan.shards != world or parts.config.micro_batch is not None or 0 < last < world:
        raise BadConfig(
            f"--static-graph needs one pass per rank and step, and there are {plan.shards} shards for {world} ranks"
            f"{', cut by --micro-batch' if parts.config.micro_batch is not None else ''}"
            f"{f', with {last} samples in the last step of an epoch' if last else ''}.",
            hint=f"Start the run with --shards {world} and without --micro-batch, or leave --static-graph out.",
        )
