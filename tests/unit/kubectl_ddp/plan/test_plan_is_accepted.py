"""What a plan offers is what the job's checks and the trainer accept."""

from __future__ import annotations

from typing import Final

import pytest
import torch

from ddp_trainer.common.layout_range import LayoutRange
from ddp_trainer.common.model_constraints import count_batch_slices, micro_batch_size, share
from ddp_trainer.common.parallel_dims import Layout
from ddp_trainer.train.cli import parse
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.models.gpt import Gpt
from ddp_trainer.train.models.registry import build
from ddp_trainer.train.parallel.pipeline_schedule import check_micro_batches
from ddp_trainer.train.tasks.text import VOCABULARY
from kubectl_ddp.plan.job_args import parse_job_args
from kubectl_ddp.plan.machine import GPUS, RESERVED_BYTES, Machine
from kubectl_ddp.plan.ranking import plan
from kubectl_ddp.values.quantity import Nodes
from tests.support.jobs import a_job

PROGRAMS: Final = {
    "small": "--model gpt:layers=6,heads=6,width=96 --global-batch 24",
    "large": "--model gpt:layers=48,heads=32,width=8192 --window 2048 --global-batch 32 --precision bf16",
    "odd batch": "--model gpt:layers=5,heads=4,width=64 --global-batch 10",
    "one sample a pass": "--model gpt:layers=4,heads=8,width=64 --global-batch 16 --micro-batch 1",
}


def a_machine(nodes: int, per_node: int) -> Machine:
    gpu = GPUS["H100"]
    return Machine(gpu=gpu, nodes=nodes, per_node=per_node, far_bytes=gpu.far_bytes, reserved_bytes=RESERVED_BYTES)


def demand_of_trainer(layout: Layout, words: list[str]) -> None:
    """All that the trainer asks of a layout before it cuts its model; raises BadConfig."""
    config: Config = parse([*words, "--data", "/data"])
    with torch.device("meta"):
        model = build(config.model or "gpt", vocabulary=VOCABULARY, window=config.window or 128)
    assert isinstance(model, Gpt)
    if layout.tp > 1:
        model.tp_plan(layout.tp)
    if layout.pp == 1:
        return
    for index in range(layout.pp):
        model.pipeline_stage(index, layout.pp)
    parts, batch = layout.data_size, config.global_batch
    batch_slices = count_batch_slices(config.batch_slices, max_ranks=layout.world, parts=parts, global_batch=batch)
    for part in range(parts):
        samples = share(part, parts=parts, batch_slices=batch_slices, global_batch=batch)
        size = micro_batch_size(samples, config.micro_batch, layout.pp)
        check_micro_batches(config.pipeline_schedule, -(-samples // size), layout.pp)


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 8), (2, 4), (3, 2), (1, 6)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_layout_that_a_plan_offers_is_accepted(name: str, nodes: int, per_node: int) -> None:
    words = ["--task", "text", *PROGRAMS[name].split()]
    found = plan(*parse_job_args(words), a_machine(nodes, per_node))
    for way in found.fitting:
        choice = way.choice
        program = ["train", *words, "--micro-batch", str(choice.micro_batch)]
        program += choice.recomputation.flags
        size = {"nnodes": Nodes(nodes, nodes), "nproc": per_node}
        a_job(parallel=LayoutRange.of(choice.layout), args=tuple(program), **size)
        demand_of_trainer(choice.layout, program[1:])


def test_plans_offer_layouts_of_every_kind() -> None:
    offered = [
        way.choice.layout
        for words in PROGRAMS.values()
        for way in plan(*parse_job_args(["--task", "text", *words.split()]), a_machine(1, 8)).fitting
    ]
    for dimension in ("replicate", "shard", "tp", "pp"):
        assert any(getattr(layout, dimension) > 1 for layout in offered)
