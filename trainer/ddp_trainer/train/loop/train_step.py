"""One global step on one rank: fetch, compute shard by shard, vote, and only then commit.

:class:`Stepper` is built once per worker group. Everything that is constant over steps is decided at construction, and
everything that follows from the plan is computed ahead. ``bench overhead`` measures the remaining overhead over a loop
written by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ddp_trainer.common.constants import Phase
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.options import Level
from ddp_trainer.train.data.batch_plan import BatchPlan, owned
from ddp_trainer.train.data.batch_reader import to_device
from ddp_trainer.train.data.concat_batches import merge
from ddp_trainer.train.data.keyed_rng import KeyedRandom, Stream
from ddp_trainer.train.data.loaders.base import Feed
from ddp_trainer.train.data.loaders.request import Request
from ddp_trainer.train.data.loaders.step_batches import Portion, StepBatches
from ddp_trainer.train.data.micro_batches import micro_batches
from ddp_trainer.train.data.sample_tracker import SampleTracker
from ddp_trainer.train.data.task import Batch
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.exact.buffer_factory import make_buffers
from ddp_trainer.train.loop.nonfinite_policy import Guard
from ddp_trainer.train.loop.step_consensus import StepDecision, StepReport, check, vote
from ddp_trainer.train.observability.step_timer import StepTimer
from ddp_trainer.train.optim.optimizer import OptimizerWrapper
from ddp_trainer.train.parallel.load_balancer import LoadBalancer
from ddp_trainer.train.parallel.strategy import Strategy
from ddp_trainer.train.utils.dynamo_stub import without_compiler


@dataclass(slots=True)
class ShardResult:
    """Result of this rank's part of the current step."""

    loss: Tensor | None = None
    """Sum of the losses of its samples, a float64 scalar on the device; None without samples."""
    skipped: int = 0
    """Number of samples that could not be read; they have weight 0."""
    error: Exception | None = None
    """Error while its samples were fetched; raised after the vote."""


class Stepper:
    """Executor of global steps; each step is committed by all ranks or by none."""

    def __init__(
        self,
        *,
        plan: BatchPlan,
        group: Group,
        strategy: Strategy,
        optimization: OptimizerWrapper,
        feed: Feed,
        ledger: SampleTracker,
        phases: StepTimer,
        guard: Guard,
        config: Config,
        balance: LoadBalancer | None = None,
        told: Callable[[str], None],
    ) -> None:
        """Bind the components; ``told`` is called with a message for each skipped sample."""
        self._plan = plan
        self._group = group
        self._strategy = strategy
        self._optimization = optimization
        self._feed = feed
        self._ledger = ledger
        self._phases = phases
        self._guard = guard
        self._balance = balance
        self._told = told
        self._shards = owned(plan.shards, group.data_size, group.data_rank)
        self._portions = StepBatches(plan, self._shards)
        self._random = KeyedRandom(plan.seed, group.device)
        self._buffers = make_buffers(strategy.model, group, plan.shards, config)
        self._no_loss = torch.zeros((), dtype=torch.float64, device=group.device)
        self._moves = group.device.type != "cpu"
        self._micro_batch = config.micro_batch
        self._passes = self._passes_of(config)
        self._forward = strategy.forward if balance is None else balance.timed(strategy.forward)
        # Activation checkpointing would import the compiler in the backward pass, as optimizers do.
        again = config.activation_checkpointing
        self._backward = without_compiler(strategy.backward) if again else strategy.backward
        self.samples = 0
        """Number of this rank's samples in the last step."""
        self.in_doubt = False
        """True between this rank's vote and the commit: the step may have been committed by other ranks."""

    def _passes_of(self, config: Config) -> Callable[[Portion, ShardResult], None]:
        if self._strategy.takes_whole_steps:
            return self._whole_step
        return self._one_pass if config.level is Level.FAST else self._pass_by_shard

    def take(self, step: int, *, stop: bool, save: bool, word: Callable[[], Sequence[float]]) -> StepDecision:
        """Compute and commit one global step, and return the decision of the vote.

        Args:
            step: Number of the step, counted from 0.
            stop: This rank wants to stop after the step.
            save: This rank wants to save a checkpoint after the step.
            word: Returns this rank's times for the vote; see :meth:`.goodput_tracker.GoodputTracker.word`.

        Raises:
            PeerLost: A peer was lost or failed; nothing was committed.
            WrongSamples: The ranks disagree about the step; nothing was committed.
            NotFinite: The loss or a gradient is not finite, and the run must stop; nothing was committed.
            RollBack: The loss or a gradient is not finite, and the run must roll back; nothing was committed.
        """
        self._group.activity = f"in step {step}"
        portion = self._portions.of(step)
        share = self._compute(portion)
        ballot = StepReport(
            samples=portion.own_samples,
            digest=portion.own_digest,
            loss=self._strategy.loss_for_vote(self._no_loss if share.loss is None else share.loss),
            failed=share.error is not None,
            stop=stop,
            save=save,
            skipped=share.skipped,
            flaw=self._optimization.examine(),
            busy=() if self._balance is None else self._balance.ballot(portion.own_samples),
            time=word(),
        )
        if not self._group.counts:
            ballot = ballot._replace(samples=0, digest=0, loss=self._no_loss, skipped=0)
        self._buffers.gather()
        self._group.mark_reduced()
        self.in_doubt = True
        verdict = vote(ballot, self._group)
        self.in_doubt = verdict.is_finite and not verdict.failed
        self._phases.lap(Phase.COMM_EXPOSED)
        if share.error is not None:
            raise share.error
        check(verdict, step=step, samples=portion.samples, digest=portion.digest)
        self._move(step, verdict)
        self._commit(portion, verdict)
        self.in_doubt = False
        return verdict

    def _compute(self, portion: Portion) -> ShardResult:
        """Run forward and backward of this rank's non-empty shards, and reduce the gradients."""
        self._group.begin_step()
        self._optimization.forget()
        self._strategy.begin(portion.step)
        share = ShardResult()
        self._passes(portion, share)
        # The other ranks wait for this collective, even if this rank has no gradients.
        self._strategy.reduce(portion.samples)
        return share

    def _pass_by_shard(self, portion: Portion, share: ShardResult) -> None:
        """Compute each shard separately, so that its result does not depend on the rank."""
        own = portion.own
        for number, request in enumerate(own, start=1):
            batch, samples = self._fetch(request, share)
            if share.error is not None:
                return
            if samples:
                self._shard(portion, request.shard, batch, samples, share, is_last=number == len(own))

    def _one_pass(self, portion: Portion, share: ShardResult) -> None:
        """Compute all shards of the rank in one pass, with the random stream of the first shard."""
        batch, total = self._merged(portion, share)
        if total:
            self._shard(portion, portion.own[0].shard, batch, total, share, is_last=True)

    def _whole_step(self, portion: Portion, share: ShardResult) -> None:
        """Let the strategy interleave forward and backward of all samples; all of it counts as backward time."""
        batch, total = self._merged(portion, share)
        if total:
            self._random.enter(Stream.MODEL, portion.step, portion.own[0].shard)
            share.loss = self._strategy.whole(batch, total, portion.samples, self._optimization.scaled)
            self._phases.lap(Phase.BACKWARD)

    def _merged(self, portion: Portion, share: ShardResult) -> tuple[Batch, int]:
        """Return all samples of the rank as one batch, and their number; none if a fetch fails."""
        batches: list[Batch] = []
        total = 0
        for request in portion.own:
            batch, samples = self._fetch(request, share)
            if share.error is not None:
                return None, 0
            if samples:
                batches.append(batch)
                total += samples
        return (merge(batches) if total else None), total

    def _fetch(self, request: Request, share: ShardResult) -> tuple[Batch, int]:
        """Return the samples on the device, and the number of readable ones."""
        try:
            batch, skipped = self._feed.fetch(request)
        except Exception as err:  # the user's data set may raise anything; raised again after the vote
            if self._strategy.computes_together:
                raise
            share.error = err
            return None, 0
        for sentence in skipped:
            self._told(sentence)
        share.skipped += len(skipped)
        self._phases.lap(Phase.DATA_WAIT)
        if self._moves:
            batch = to_device(batch, self._group.device)
            self._phases.lap(Phase.HOST_TO_DEVICE)
        return batch, request.ids.numel() - len(skipped)

    def _shard(
        self, portion: Portion, shard: int, batch: Batch, samples: int, share: ShardResult, *, is_last: bool
    ) -> None:
        """Compute a shard in passes of a micro-batch; gradients are exchanged in the last pass of the step."""
        self._random.enter(Stream.MODEL, portion.step, shard)
        pieces: Sequence[Batch] = micro_batches(batch, samples, self._micro_batch)
        for number, piece in enumerate(pieces, start=1):
            if is_last and number == len(pieces):
                loss = self._pass(piece, portion.samples)
            else:
                with self._strategy.alone():
                    loss = self._pass(piece, portion.samples)
            share.loss = loss if share.loss is None else share.loss + loss
            self._buffers.shard_done()
        self._buffers.close_shard(shard)
        self._strategy.shard_done(shard)

    def _pass(self, batch: Batch, samples: int) -> Tensor:
        """Run forward and backward of one pass, and return the sum of the losses."""
        losses = self._forward(batch)
        total = losses.detach().sum(dtype=torch.float64)
        self._phases.lap(Phase.FORWARD)
        self._backward(self._optimization.scaled(losses), samples)
        self._phases.lap(Phase.BACKWARD)
        return total

    def _move(self, step: int, verdict: StepDecision) -> None:
        """Step weights and buffers, or let the guard decide about a step that is not finite."""
        if verdict.is_finite:
            self._buffers.commit()
            self._optimization.step(step)
            self._guard.passed()
        else:
            self._buffers.discard()
            self._guard.refuse(step, verdict, self._optimization)

    def _commit(self, portion: Portion, verdict: StepDecision) -> None:
        self._strategy.committed(portion.step, self._optimization.optimizer)
        self._phases.lap(Phase.OPTIMIZER)
        self._ledger.commit(portion.ids, verdict.skipped)
        if self._plan.ends_epoch(portion.step):
            self._ledger.close_epoch()
        self.samples = portion.own_samples if self._group.counts else 0
        shards = None if self._balance is None else self._balance.settle(verdict.busy)
        if shards is not None:
            self._reassign(shards)

    def _reassign(self, shards: Sequence[range]) -> None:
        """Assign the shards of every rank from the next step on.

        No collective may run here: the weights have moved, and the caller has not counted the step yet.
        """
        self._shards = shards[self._group.rank]
        for part in (self._portions, self._feed):
            part.reassign(self._shards)
        for part_of_all in (self._strategy, self._buffers):
            part_of_all.reassign(shards)

    def abandon(self, *, keeps_gradients: bool = False) -> None:
        """Drop the current step at any point: its gradients and its changes to buffers.

        Args:
            keeps_gradients: Keep the gradients, for a caller that applies the step if it turns out to be committed.
        """
        self._buffers.discard()
        if not keeps_gradients:
            self._optimization.abandon()

    def restart(self) -> None:
        """Resume after weights and buffers were loaded from a checkpoint in the same group."""
        self._buffers.restart()
        # Prefetched samples belong to later steps than the next one, so the feed must drop them.
        self._feed.reassign(self._shards)
