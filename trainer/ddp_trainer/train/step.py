"""One global step on one rank: fetch, compute shard by shard, vote, and only then commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from ddp_trainer.contract import Phase
from ddp_trainer.train.balance import Balance
from ddp_trainer.train.batches import to_device
from ddp_trainer.train.buffers import make_buffers
from ddp_trainer.train.config import Config
from ddp_trainer.train.digests import Digests
from ddp_trainer.train.feeds import Feed, Fetched, Request
from ddp_trainer.train.group import Group
from ddp_trainer.train.guards import Guard
from ddp_trainer.train.lazy_dynamo import uncompiled
from ddp_trainer.train.ledger import Ledger
from ddp_trainer.train.merging import merge
from ddp_trainer.train.micro_batches import micro_batches
from ddp_trainer.train.optimization import Optimization
from ddp_trainer.train.options import Level
from ddp_trainer.train.phases import Phases
from ddp_trainer.train.plan import Plan, cut, owned
from ddp_trainer.train.randomness import KeyedRandom, Stream
from ddp_trainer.train.strategies import Strategy
from ddp_trainer.train.task import Batch
from ddp_trainer.train.vote import Ballot, Verdict, check, vote


@dataclass(slots=True)
class Share:
    """What this rank has computed of the step under way."""

    loss: Tensor
    """Sum over its samples, float64 scalar on the device."""
    samples: int = 0
    """How many went through a backward pass."""
    digest: int = 0
    """Of their ids."""
    error: Exception | None = None
    """Why its samples could not be fetched."""
    skipped: int = 0
    """Samples that could not be read; they have weight 0."""


class Stepper:
    """Takes global steps; each one is committed by all ranks or by none."""

    def __init__(
        self,
        *,
        plan: Plan,
        group: Group,
        strategy: Strategy,
        optimization: Optimization,
        feed: Feed,
        ledger: Ledger,
        phases: Phases,
        guard: Guard,
        config: Config,
        balance: Balance | None = None,
        told: Callable[[str], None],
    ) -> None:
        """``told`` gets the sentence of each sample that is skipped."""
        self._plan = plan
        self._digests = Digests(plan)
        self._no_loss = torch.zeros((), dtype=torch.float64, device=group.device)
        self._group = group
        self._strategy = strategy
        self._optimization = optimization
        self._feed = feed
        self._guard = guard
        self._micro_batch = config.micro_batch
        # Computing activations again asks for the compiler, as optimizers do.
        self._recomputes = uncompiled if config.activation_checkpointing else nullcontext
        self._balance = balance
        self._told = told
        self._ledger = ledger
        self._phases = phases
        self._shards = owned(plan.shards, group.world_size, group.rank)
        self._random = KeyedRandom(plan.seed, group.device)
        self._merges = config.level is Level.FAST
        self._buffers = make_buffers(strategy.model, group, plan.shards, config)
        self.samples = 0
        """This rank's samples of the last step."""

    def take(self, step: int, *, stop: bool, save: bool) -> Verdict:
        """Compute and commit one global step; what the ranks agreed on.

        Raises:
            PeerLost: a peer went away or could not do its part; nothing was committed.
            WrongSamples: the ranks disagree about the step; nothing was committed.
            NotFinite: the loss or a gradient is not finite, and the run is to stop; nothing was committed.
            RollBack: as above, and the run is to go back to its last checkpoint.
        """
        self._group.activity = f"in step {step}"
        batch = self._plan.batch(step)
        share = self._compute(step, batch)
        ballot = Ballot(
            samples=share.samples,
            digest=share.digest,
            loss=self._strategy.loss_for_vote(share.loss),
            failed=share.error is not None,
            stop=stop,
            save=save,
            skipped=share.skipped,
            flaw=self._optimization.examine(),
            busy=() if self._balance is None else self._balance.ballot(share.samples),
        )
        verdict = vote(ballot, self._group)
        self._phases.lap(Phase.COMM_EXPOSED)
        if share.error is not None:
            raise share.error
        check(verdict, step=step, samples=len(batch), digest=self._digests.batch(step))
        self._move(step, verdict)
        self._commit(step, batch, verdict)
        self.samples = share.samples
        return verdict

    def _compute(self, step: int, batch: Tensor) -> Share:
        """Forward and backward of the shards that this rank owns and that are not empty."""
        self._optimization.forget()
        self._strategy.begin(step)
        share = Share(self._no_loss)
        cuts = [(shard, batch[cut(len(batch), self._plan.shards, shard)]) for shard in self._shards]
        work = [(shard, ids) for shard, ids in cuts if len(ids)]
        last = None if not work else work[0][0] if self._merges else work[-1][0]
        for shard, samples, whole in self._read(step, work, share):
            self._random.enter(Stream.MODEL, step, shard)
            pieces = list(micro_batches(whole, samples, self._micro_batch))
            for number, piece in enumerate(pieces, start=1):
                is_last = (shard, number) == (last, len(pieces))
                with nullcontext() if is_last else self._strategy.alone():
                    share.loss = share.loss + self._pass(piece, len(batch))
                self._buffers.shard_done()
            self._buffers.close_shard(shard)
            self._strategy.shard_done(shard)
        # The other ranks wait for this one's gradients, also where it has none to give.
        self._strategy.reduce(len(batch))
        return share

    def _read(self, step: int, work: Sequence[tuple[int, Tensor]], share: Share) -> Iterator[tuple[int, int, Batch]]:
        """What is computed at once: shard, number of samples and batch; with ``fast`` all shards as their first."""
        parts = self._read_shards(step, work, share)
        if not self._merges:
            yield from parts
        elif read := list(parts):
            shards, counts, batches = zip(*read, strict=True)
            yield shards[0], sum(counts), merge(batches)

    def _read_shards(
        self, step: int, work: Sequence[tuple[int, Tensor]], share: Share
    ) -> Iterator[tuple[int, int, Batch]]:
        for shard, ids in work:
            try:
                fetched = self._fetched(step, shard, ids)
            except Exception as err:  # noqa: BLE001 - the user's dataset may raise anything; raised again after the vote
                share.error = err
                break
            share.samples += len(ids)
            share.digest += self._digests.shard(step, shard)
            share.skipped += len(fetched.skipped)
            if fetched.batch is None:
                continue
            yield shard, len(ids) - len(fetched.skipped), fetched.batch

    def _fetched(self, step: int, shard: int, ids: Tensor) -> Fetched:
        fetched = self._feed.fetch(Request(step, self._plan.epoch_of(step), shard, ids))
        for sentence in fetched.skipped:
            self._told(sentence)
        self._phases.lap(Phase.DATA_WAIT)
        fetched = Fetched(to_device(fetched.batch, self._group.device), fetched.skipped)
        self._phases.lap(Phase.HOST_TO_DEVICE)
        return fetched

    def _pass(self, samples: Batch, count: int) -> Tensor:
        with nullcontext() if self._balance is None else self._balance.forward():
            loss = self._strategy.forward(samples)
        self._phases.lap(Phase.FORWARD)
        with self._recomputes():
            self._strategy.backward(self._optimization.scaled(loss), count)
        self._phases.lap(Phase.BACKWARD)
        return loss.detach()

    def _move(self, step: int, verdict: Verdict) -> None:
        """Weights and buffers take the step, unless a guard decides that they do not."""
        if verdict.is_finite:
            self._buffers.commit()
            self._optimization.step(step)
            self._guard.passed()
        else:
            self._buffers.discard()
            self._guard.refuse(step, verdict, self._optimization)

    def _commit(self, step: int, batch: Tensor, verdict: Verdict) -> None:
        self._strategy.committed(step, self._optimization.optimizer)
        self._phases.lap(Phase.OPTIMIZER)
        self._ledger.commit(batch, verdict.skipped)
        if self._plan.ends_epoch(step):
            self._ledger.close_epoch()
        shards = None if self._balance is None else self._balance.settle(verdict.busy)
        if shards is not None:
            self._shards = shards
            self._feed.reassign(shards)
            self._strategy.reassign(shards)
            self._buffers.reassign(shards)

    def restart(self) -> None:
        """Weights and buffers were loaded from elsewhere."""
        self._buffers.restart()
        # What was read ahead belongs to steps after the one to go on with.
        self._feed.reassign(self._shards)
