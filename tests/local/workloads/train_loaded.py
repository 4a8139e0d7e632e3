"""Models spread under many layouts that are about to be loaded, and then are: from a checkpoint, and from a slot.

Each rank begins a model, takes its state, and has another model of the same kind, which it then fills from that state.
How often weights were made is counted; what ranks would draw apart shows what was sent. Weights that are drawn are the
same as in one process. A line for each layout says that all was right.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ddp_trainer.common.parallel_dims import LayoutRange
from ddp_trainer.process.recorder import NoopRankRecorder
from ddp_trainer.train.api import make_progress
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.option_values import KernelName
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.data.keyed_rng import KeyedRng, Stream
from ddp_trainer.train.deferred_init.skip_init import init_weights, materialize
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.distributed.stop_signals import StopRequest, exit_immediately
from ddp_trainer.train.evaluation import evaluate  # noqa: F401 - once, before ranks fork
from ddp_trainer.train.loop.goodput_tracker import GoodputTracker
from ddp_trainer.train.loop.group_components import build_state
from ddp_trainer.train.loop.run_context import ProcessContext, RunContext, build_context
from ddp_trainer.train.loop.train_state import RestoreResult, TrainState
from ddp_trainer.train.mesh.sharded_state import local_shard
from ddp_trainer.train.models.gpt import Gpt
from ddp_trainer.train.observability.step_timer import CommWaits
from ddp_trainer.train.parallel.pp import pp_state
from ddp_trainer.train.recovery.peer_recovery import LocalState, capture_state, recover_state, restore_state
from kubectl_ddp.backends.local.process import set_parent_death_signal
from tests.local.workloads import train_made
from tests.local.workloads.train_layouts import DrawnWhole, Numbers
from tests.support.ports import free_port
from tests.support.process_memory import PeakResidentMemory

STEP = 3
SIDE = 40
RANKS_OWN = ("norm.weight", "table.rows", "held", "unheld")
"""Weights and buffers that each rank would begin with by itself."""


def own_rank() -> int:
    """Which a model would not ask that is the same everywhere."""
    return int(os.environ["RANK"])


class Counted(Numbers):
    """Whose weights are counted."""

    def init_weight(self, model: nn.Module, name: str, weight: Tensor) -> None:
        """As ever, except of one weight, of which the first rank's counts."""
        if name in RANKS_OWN:
            nn.init.constant_(weight, own_rank())
        else:
            train_made.count()
            super().init_weight(model, name, weight)


class Large(Numbers):
    """Of which two ranks have no room for all."""

    def model(self) -> nn.Module:
        """96 MiB, at most 4 MiB in one weight."""
        return Gpt(vocabulary=self.vocabulary, window=self.window, layers=8, heads=self.heads, width=512)


class Summed(Counted):
    """Whose optimizer keeps something of every weight from the beginning."""

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """As a person would write it."""
        return torch.optim.Adagrad(parameters, lr=0.1)


class Whole(DrawnWhole):
    """Without an ``init_weight``."""

    def model(self) -> nn.Module:
        """As ever, with a weight that each rank has drawn by itself, of which the first one's counts."""
        model = super().model()
        nn.init.constant_(model.get_parameter("norm.weight"), own_rank())
        return model


class Table(nn.Module):
    """Numbers that no state holds."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.empty(SIDE, SIDE), requires_grad=False)

    def _save_to_state_dict(self, *_: Any) -> None:
        pass

    def _load_from_state_dict(self, *_: Any) -> None:
        pass


class WithMore(Counted):
    """With what a state holds beside weights that learn, and with what it does not hold."""

    def model(self) -> nn.Module:
        """As ever."""
        model = super().model()
        model.register_module("table", Table())
        model.register_buffer("held", torch.empty(SIDE, SIDE))
        model.register_buffer("unheld", torch.empty(SIDE, SIDE), persistent=False)
        model.get_parameter("positions.weight").requires_grad_(False)
        return model


CASES = (
    (WithMore, "replicate=1,shard=1:2", 1),
    (WithMore, "shard=2", 2),
    (WithMore, "tp=2", 2),
    (Summed, "pp=2", 2),
    (WithMore, "replicate=2,shard=2", 4),
    (WithMore, "shard=2,tp=2", 4),
    (Counted, "shard=2,pp=2", 4),
    (Counted, "tp=2,pp=2", 4),
    (Whole, "shard=2", 2),
    (Whole, "tp=2", 2),
    (Whole, "pp=2", 2),
    (Large, "shard=2", 2),
    (Large, "tp=2", 2),
    (Large, "pp=2", 2),
)
"""Of each task a layout, and the ranks that take it."""


@dataclass(frozen=True, slots=True)
class Stand:
    """A run that has built what it keeps, and takes no step."""

    ground: RunContext
    state: TrainState
    deferred: Sequence[str]
    """Weights that had no memory yet."""

    @classmethod
    def of(cls, task: DrawnWhole, layout: str, around: ProcessContext, *, loads: bool) -> Stand:
        """Begin with a model that is drawn, or with one that is about to be loaded."""
        config = Config(
            parallel=LayoutRange.parse(layout), optimizer_kernel=KernelName.LOOP, global_batch=8, device="cpu"
        )
        root = build_context(config, task, around)
        deferred = [name for name, parameter in root.model.named_parameters() if parameter.is_meta]
        train_made.runs, drawn_next = 0, torch.get_rng_state()
        state = build_state(root, GoodputTracker(root.timer), None, loads=loads)
        assert torch.equal(torch.get_rng_state(), drawn_next)
        state.step = 0 if loads else STEP
        return cls(root, state, deferred)

    def tensors(self) -> dict[str, Tensor]:
        """A copy of all that the model has on this rank."""
        model = self.ground.model
        named = [*model.named_parameters(), *model.named_buffers()]
        return {name: local_shard(item.detach()).clone() for name, item in named if not item.is_meta}

    def demand_open(self) -> None:
        """Refuse weights with numbers of which a state has others, and without numbers where it has none."""
        stated, own = self.ground.model.state_dict().keys(), self.tensors()
        for name in self.deferred:
            assert name not in own or own[name].isnan().all() == (name in stated), name

    def demand_as_in_one_process(self) -> None:
        """Refuse weights other than those that a rank draws which has the whole model."""
        task, seed, model = self.ground.task, self.ground.config.seed, self.ground.model
        if self.deferred:
            with torch.device("meta"):
                wanted = task.model()
            materialize(wanted, torch.device("cpu"))
            init_weights(wanted, task, seed, RANKS_OWN)
        else:
            KeyedRng(seed, torch.device("cpu")).enter(Stream.WEIGHTS)
            wanted = task.model()
        total = {"model": model.state_dict(), "optimizer": {"state": {}}}
        if self.state.sharded is not None:
            total = self.state.sharded.gather_state(total, keep=True)
        assert total["model"].keys() == wanted.state_dict().keys()
        for name, tensor in wanted.state_dict().items():
            assert name in RANKS_OWN or torch.equal(total["model"][name], tensor), name

    def unpacked(self, luggage: LocalState) -> RestoreResult:
        """Go on from what the ranks have taken along."""
        taken = recover_state(self.ground, luggage, lambda _: None)
        assert taken is not None
        return restore_state(taken, self.state)


def begin_step(state: TrainState) -> None:
    """One that will never end: stages in pieces have their weights whole in it."""
    if isinstance(state.sharded, pp_state.PipelineState) and state.sharded.stages.pieces is not None:
        state.sharded.stages.pieces.gather(CommWaits())


def demand_loaded(task: DrawnWhole, layout: str, around: ProcessContext) -> None:
    """Fill models from the state of another one; nothing is made for what is filled, and nothing of it is left."""
    drawn = Stand.of(task, layout, around, loads=False)
    wanted = drawn.tensors()
    assert all(item.isfinite().all() for item in wanted.values())
    assert bool(sum(around.group.gather(train_made.runs))) is isinstance(task, Counted)
    drawn.demand_as_in_one_process()
    checkpoint = drawn.state.to_checkpoint()
    begin_step(drawn.state)
    luggage = capture_state(drawn.state, in_doubt=False)
    for is_slot in (False, True):
        fixture = Stand.of(task, layout, around, loads=True)
        assert train_made.runs == 0, "weights were made"
        fixture.demand_open()
        _ = fixture.unpacked(luggage) if is_slot else fixture.state.load_checkpoint(checkpoint)
        assert fixture.state.step == STEP
        filled = fixture.tensors()
        assert filled.keys() == wanted.keys()
        for name, tensor in wanted.items():
            assert torch.equal(filled[name], tensor), name


def demand_room_for_half(layout: str, around: ProcessContext) -> None:
    """Begin with a large model; at no time does a rank have most of it."""
    Stand.of(Numbers(), layout, around, loads=False)  # code is loaded
    watched = PeakResidentMemory()
    model = Stand.of(Large(), layout, around, loads=False).ground.model
    total = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    assert total > 90 << 20
    assert watched.peak() < 0.75 * total


def be(rank: int, world: int, port: int, task: DrawnWhole, layout: str) -> None:
    """Rank ``rank`` of a group."""
    os.environ["RANK"] = str(rank)
    env = Environment(rank=rank, local_rank=rank, world_size=world, local_world_size=world, master_port=port)
    around = ProcessContext(
        env=env,
        group=Group.join(env, torch.device("cpu"), 60.0),
        recorder=NoopRankRecorder(),
        progress=make_progress(Config(), env),
        stop=StopRequest(grace_seconds=30.0, leave=exit_immediately),
        began=time.time(),
    )
    if isinstance(task, Large):
        demand_room_for_half(layout, around)
    else:
        demand_loaded(task, layout, around)
    around.group.gather(0)  # until all are through
    around.group.close()


def fork(world: int, task: DrawnWhole, layout: str) -> int:
    """The highest exit code of a group of ranks."""
    port, parent, ranks = free_port(), os.getpid(), []
    for rank in range(world):
        if child := os.fork():
            ranks.append(child)
            continue
        set_parent_death_signal(parent)
        try:
            be(rank, world, port, task, layout)
        except BaseException:  # noqa: BLE001 - a fork must not go on as its parent
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in ranks)


def main() -> int:
    """0 where all was right."""
    torch.set_num_threads(1)
    for task, layout, world in CASES:
        if fork(world, task(), layout):
            return 1
        print(task.__name__, layout, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
