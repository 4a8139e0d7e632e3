"""One global step on one rank: fetch, compute shard by shard, vote, and only then commit.

What does not change from step to step is decided when the parts are built, and what follows from the plan is worked out
ahead: ``bench overhead`` measures what is left over a loop written by hand.
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
    """What this rank has computed of the step under way."""

    loss: Tensor | None = None
    """Sum over its samples, float64 scalar on the device; None of no samples."""
    skipped: int = 0
    """Samples that could not be read; they have weight 0."""
    error: Exception | None = None
    """Why its samples could not be fetched."""


class Stepper:
    """Takes global steps; each one is committed by all ranks or by none."""

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
        """``told`` gets the sentence of each sample that is skipped."""
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
        # Computing activations again asks for the compiler, as optimizers do.
        again = config.activation_checkpointing
        self._backward = without_compiler(strategy.backward) if again else strategy.backward
        self.samples = 0
        """This rank's samples of the last step."""
        self.in_doubt = False
        """This rank has cast its vote for the step under way, and does not know yet whether it counts."""

    def _passes_of(self, config: Config) -> Callable[[Portion, ShardResult], None]:
        if self._strategy.takes_whole_steps:
            return self._whole_step
        return self._one_pass if config.level is Level.FAST else self._pass_by_shard

    def take(self, step: int, *, stop: bool, save: bool, word: Callable[[], Sequence[float]]) -> StepDecision:
        """Compute and commit one global step; what the ranks agreed on. ``word`` is what to say of the time.

        Raises:
            PeerLost: a peer went away or could not do its part; nothing was committed.
            WrongSamples: the ranks disagree about the step; nothing was committed.
            NotFinite: the loss or a gradient is not finite, and the run is to stop; nothing was committed.
            RollBack: as above, and the run is to go back to its last checkpoint.
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
        """Forward and backward of the shards that this rank owns and that are not empty."""
        self._group.begin_step()
        self._optimization.forget()
        self._strategy.begin(portion.step)
        share = ShardResult()
        self._passes(portion, share)
        # The other ranks wait for this one's gradients, also where it has none to give.
        self._strategy.reduce(portion.samples)
        return share

    def _pass_by_shard(self, portion: Portion, share: ShardResult) -> None:
        """Every shard by itself, as it would be on any other rank."""
        own = portion.own
        for number, request in enumerate(own, start=1):
            batch, samples = self._fetch(request, share)
            if share.error is not None:
                return
            if samples:
                self._shard(portion, request.shard, batch, samples, share, is_last=number == len(own))

    def _one_pass(self, portion: Portion, share: ShardResult) -> None:
        """All shards of the rank together, as if they were the first of them."""
        batch, total = self._merged(portion, share)
        if total:
            self._shard(portion, portion.own[0].shard, batch, total, share, is_last=True)

    def _whole_step(self, portion: Portion, share: ShardResult) -> None:
        """As one pass, forward and backward of which the strategy interleaves; all of it counts as backward."""
        batch, total = self._merged(portion, share)
        if total:
            self._random.enter(Stream.MODEL, portion.step, portion.own[0].shard)
            share.loss = self._strategy.whole(batch, total, portion.samples, self._optimization.scaled)
            self._phases.lap(Phase.BACKWARD)

    def _merged(self, portion: Portion, share: ShardResult) -> tuple[Batch, int]:
        """All samples of the rank, and how many they are; none where some cannot be fetched."""
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
        """The samples on the device, and how many could be read."""
        try:
            batch, skipped = self._feed.fetch(request)
        except Exception as err:  # the user's dataset may raise anything; raised again after the vote
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
        """Compute a shard, in several passes where it does not fit into memory; gradients travel with the last."""
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
        """Forward and backward; the sum of the losses."""
        losses = self._forward(batch)
        total = losses.detach().sum(dtype=torch.float64)
        self._phases.lap(Phase.FORWARD)
        self._backward(self._optimization.scaled(losses), samples)
        self._phases.lap(Phase.BACKWARD)
        return total

    def _move(self, step: int, verdict: StepDecision) -> None:
        """Weights and buffers take the step, unless a guard decides that they do not."""
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
        """Give every rank its shards from the next step on.

        No rank waits for another here: the weights have moved, and the caller does not count the step yet.
        """
        self._shards = shards[self._group.rank]
        for part in (self._portions, self._feed):
            part.reassign(self._shards)
        for part_of_all in (self._strategy, self._buffers):
            part_of_all.reassign(shards)

    def abandon(self, *, keeps_gradients: bool = False) -> None:
        """The step under way ends here, wherever it is: its gradients, and what it did to buffers, are dropped.

        ``keeps_gradients``: for whoever takes the step yet, should it turn out to count.
        """
        self._buffers.discard()
        if not keeps_gradients:
            self._optimization.abandon()

    def restart(self) -> None:
        """Weights and buffers were loaded from elsewhere."""
        self._buffers.restart()
        # What was read ahead belongs to steps after the one to go on with.
        self._feed.reassign(self._shards)
