"""Ranks that save and load one state under several layouts, one after the other, without training.

Prints, as JSON lines, the digest of what each layout loads of what each has saved, and what becomes of damage.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ddp_trainer.common.parallel_dims import LayoutRange
from ddp_trainer.process.recorder import NoopRankRecorder
from ddp_trainer.train.api import make_progress
from ddp_trainer.train.checkpoint.checkpoint_broadcast import broadcast_latest_checkpoint
from ddp_trainer.train.checkpoint.checkpoint_factory import make_saver
from ddp_trainer.train.checkpoint.checkpoint_manager import CheckpointManager
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.option_values import KernelName
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.data.batch_reader import sha256
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.distributed.stop_signals import StopRequest, exit_immediately
from ddp_trainer.train.loop.goodput_tracker import GoodputTracker
from ddp_trainer.train.loop.group_components import build_state
from ddp_trainer.train.loop.run_context import ProcessContext, build_context
from ddp_trainer.train.loop.train_state import TrainState
from tests.local.workloads.train_layouts import Numbers

LAYOUTS = ("replicate=2", "shard=2", "tp=2", "pp=2")
FIRST, LATER, LAST = 3, 4, 5


class OddNumbers(Numbers):
    """A table with an odd number of rows, so that shards differ in size."""

    window = 9


@dataclass(frozen=True, slots=True)
class Stand:
    """A run under a layout that has built what it keeps, and takes no step."""

    state: TrainState
    config: Config
    around: ProcessContext

    @classmethod
    def under(cls, layout: str, around: ProcessContext, path: Path, *, loads: bool = False) -> Stand:
        """Build a state after one step; or an empty one, to load into."""
        config = Config(
            checkpoint_dir=path,
            parallel=LayoutRange.parse(layout),
            optimizer_kernel=KernelName.LOOP,
            global_batch=8,
            device="cpu",
        )
        root = build_context(config, OddNumbers(), around)
        state = build_state(root, GoodputTracker(root.timer), None, loads=loads)
        optimizer = state.optimizer.optimizer
        if not loads:
            for group in optimizer.param_groups:
                for weight in group["params"]:
                    if not weight.is_meta:  # of another stage
                        weight.grad = weight.detach().clone()
            optimizer.step()
        return cls(state, config, around)

    def save(self, step: int) -> int | None:
        """The step that became durable, as this rank knows."""
        saver = self._saver()
        saver.open()
        self.state.step = step
        self.state.save(saver, None, None)
        saver.wait_for_save()
        self.around.group.gather(0)  # until all are through
        return saver.durable_step

    def load(self) -> int:
        """Load the newest checkpoint; return its step."""
        found = broadcast_latest_checkpoint(
            self._saver().latest_checkpoint(self.around.group), self.around.group, lambda _: None
        )
        assert found is not None
        self.state.load_checkpoint(found)
        return self.state.step

    def digest(self) -> str:
        """Digest of the whole state, on the ranks that gather it."""
        undisturbed = self.state.state_dict(keeps=self.around.group.rank == 0)
        return sha256(list(tensors(undisturbed["model"]))) + sha256(list(tensors(undisturbed["optimizer"]["state"])))

    def _saver(self) -> CheckpointManager:
        around = self.around
        return make_saver(self.config, around.env, around.group, around.recorder, around.progress)


def tensors(tree: Mapping[Any, Any]) -> Any:
    """Yield tensors in the order of their names."""
    for name in sorted(tree):
        value = tree[name]
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Mapping):
            yield from tensors(value)


def tell(**what: object) -> None:
    if os.environ["RANK"] == "0":
        print(json.dumps(what), flush=True)


def main(arguments: Sequence[str]) -> None:
    torch.set_num_threads(1)
    path = Path(arguments[-1])
    env = Environment.from_env(os.environ)
    around = ProcessContext(
        env=env,
        group=Group.join(env, torch.device("cpu"), 60.0),
        recorder=NoopRankRecorder(),
        progress=make_progress(Config(), env),
        stop=StopRequest(grace_seconds=30.0, leave=exit_immediately),
        began=time.time(),
    )
    for layout in LAYOUTS:
        fixture = Stand.under(layout, around, path / layout)
        tell(saved=layout, digest=fixture.digest(), durable=fixture.save(FIRST))
    for before in LAYOUTS:
        for after in LAYOUTS:
            fixture = Stand.under(after, around, path / before, loads=True)
            fixture.load()
            tell(saved=before, loaded=after, digest=fixture.digest())
    meet_damage(Stand.under("shard=2", around, path / "shard=2"), path / "shard=2")
    around.group.close()


def meet_damage(stand: Stand, path: Path) -> None:
    """Flip one bit of the other rank's file; then limit the free space of its disk."""
    rank = stand.around.group.rank
    tell(durable=stand.save(LATER))
    if rank == 1:
        flip_a_bit(path / f"step-{LATER:08d}" / "pieces-00001.pt")
    stand.around.group.gather(0)
    tell(loaded=stand.load())
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    tell(durable=stand.save(LAST))


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


if __name__ == "__main__":
    main(sys.argv)
