"""One global step on one rank: fetch, compute shard by shard, vote, and only then commit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from ddp_trainer.contract import Phase
from ddp_trainer.train.batches import to_device
from ddp_trainer.train.buffers import SharedBuffers
from ddp_trainer.train.group import Group
from ddp_trainer.train.ledger import Ledger
from ddp_trainer.train.optimization import Optimization
from ddp_trainer.train.phases import Phases
from ddp_trainer.train.plan import Plan, cut, digest, owned
from ddp_trainer.train.randomness import KeyedRandom, Stream
from ddp_trainer.train.strategies import Strategy
from ddp_trainer.train.task import Batch
from ddp_trainer.train.vote import Ballot, Verdict, check, vote


@dataclass(slots=True)
class Share:
    """What this rank has computed of the step under way."""

    loss: Tensor
    """Sum over its samples, float64 scalar on the device."""
    ids: list[Tensor]
    """Sample ids that went through a backward pass, shard by shard."""
    error: Exception | None = None
    """Why its samples could not be fetched."""

    @property
    def samples(self) -> int:
        """How many samples those were."""
        return sum(len(ids) for ids in self.ids)


class Stepper:
    """Takes global steps; each one is committed by all ranks or by none."""

    def __init__(
        self,
        *,
        plan: Plan,
        group: Group,
        strategy: Strategy,
        optimization: Optimization,
        fetch: Callable[[Tensor], Batch],
        ledger: Ledger,
        phases: Phases,
    ) -> None:
        self._plan = plan
        self._group = group
        self._strategy = strategy
        self._optimization = optimization
        self._fetch = fetch
        self._ledger = ledger
        self._phases = phases
        self._shards = owned(plan.shards, group.world_size, group.rank)
        self._random = KeyedRandom(plan.seed, group.device)
        self._buffers = SharedBuffers(strategy.model, group)
        self.samples = 0
        """This rank's samples of the last step."""

    def take(self, step: int, *, stop: bool, save: bool) -> Verdict:
        """Compute and commit one global step; what the ranks agreed on.

        Raises:
            PeerLost: a peer went away or could not do its part; nothing was committed.
            WrongSamples: the ranks disagree about the step; nothing was committed.
            NotFinite: the loss is not a number; nothing was committed.
        """
        self._group.activity = f"in step {step}"
        batch = self._plan.batch(step)
        share = self._compute(step, batch)
        ballot = Ballot(
            samples=share.samples,
            digest=sum(digest(ids) for ids in share.ids),
            loss=share.loss,
            failed=share.error is not None,
            stop=stop,
            save=save,
        )
        verdict = vote(ballot, self._group)
        self._phases.lap(Phase.COMM_EXPOSED)
        if share.error is not None:
            raise share.error
        check(verdict, step=step, samples=len(batch), digest=digest(batch))
        self._commit(step, batch)
        self.samples = share.samples
        return verdict

    def _compute(self, step: int, batch: Tensor) -> Share:
        """Forward and backward of the shards that this rank owns and that are not empty."""
        self._optimization.forget()
        self._strategy.begin(step)
        share = Share(torch.zeros((), dtype=torch.float64, device=self._group.device), [])
        cuts = [(shard, batch[cut(len(batch), self._plan.shards, shard)]) for shard in self._shards]
        work = [(shard, ids) for shard, ids in cuts if len(ids)]
        for position, (shard, ids) in enumerate(work, start=1):
            try:
                samples = self._fetched(step, shard, ids)
            except Exception as err:  # noqa: BLE001 - the user's dataset may raise anything; raised again after the vote
                share.error = err
                break
            self._random.enter(Stream.MODEL, step, shard)
            with nullcontext() if position == len(work) else self._strategy.alone():
                share.loss += self._pass(samples, len(batch))
            self._strategy.shard_done(shard)
            self._buffers.shard_done()
            share.ids.append(ids)
        # The other ranks wait for this one's gradients, also where it has none to give.
        self._strategy.reduce(len(batch))
        return share

    def _fetched(self, step: int, shard: int, ids: Tensor) -> Batch:
        self._random.enter(Stream.FETCH, step, shard)
        samples = self._fetch(ids)
        self._phases.lap(Phase.DATA_WAIT)
        samples = to_device(samples, self._group.device)
        self._phases.lap(Phase.HOST_TO_DEVICE)
        return samples

    def _pass(self, samples: Batch, count: int) -> Tensor:
        loss = self._strategy.forward(samples)
        self._phases.lap(Phase.FORWARD)
        self._strategy.backward(loss, count)
        self._phases.lap(Phase.BACKWARD)
        return loss.detach()

    def _commit(self, step: int, batch: Tensor) -> None:
        self._buffers.commit()
        self._optimization.step(step)
        self._strategy.moved(step, self._optimization.optimizer)
        self._phases.lap(Phase.OPTIMIZER)
        self._ledger.commit(batch)
        if self._plan.ends_epoch(step):
            self._ledger.close_epoch()

    def restart(self) -> None:
        """Weights and buffers were loaded from elsewhere."""
        self._buffers.restart()
