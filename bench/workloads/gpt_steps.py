"""Steps of the trainer's GPT, made of the trainer's own parts, and what ``kubectl ddp plan`` foretells of them."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from ddp_trainer.common.parallel_dims import Layout
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.option_values import parse_recompute
from ddp_trainer.train.models.gpt import Gpt
from ddp_trainer.train.optim.optimizer import OptimizerWrapper
from ddp_trainer.train.parallel.strategy import ScaledBackward
from ddp_trainer.train.tasks.text import Text
from ddp_trainer.train.transforms.activation_checkpointing import checkpoint_activations
from kubectl_ddp.plan.choice import Choice
from kubectl_ddp.plan.memory import Memory, memory
from kubectl_ddp.plan.recomputation import NOTHING, Recomputation
from kubectl_ddp.plan.shape import Shape
from kubectl_ddp.plan.work import Precision, Work

STEPS = 2
"""The optimizer's state is made at the end of the first one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A model, and what a step of it is."""

    layers: int
    width: int
    heads: int
    window: int
    samples: int
    """Number of samples of one pass."""
    vocabulary: int = 256
    passes: int = 1
    again: Recomputation = NOTHING


def estimate_memory(size: Size) -> Memory:
    """Return the plan's memory estimate for one process that computes in 32 bits."""
    shape = Shape(
        layers=size.layers, hidden=size.width, heads=size.heads, vocabulary=size.vocabulary, window=size.window
    )
    work = Work(sequence=size.window, global_batch=size.samples * size.passes, precision=Precision.FP32)
    return memory(shape, work, Choice(Layout(), size.samples, size.passes, size.again))


def train(size: Size, device: str = "cpu") -> None:
    """Make the model and train it for :data:`STEPS` steps with AdamW."""
    with torch.device(device):
        model = Gpt(
            vocabulary=size.vocabulary, window=size.window, layers=size.layers, heads=size.heads, width=size.width
        )
    if size.again.every:
        checkpoint_activations(model, parse_recompute(size.again.flag_value))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "any.txt").write_bytes(b"text " * size.window)
        task = Text(data=Path(folder), window=size.window)
    optimization = OptimizerWrapper.build(task, model, Config(), STEPS)
    differentiate = ScaledBackward()
    for step in range(STEPS):
        optimization.zero_grad()
        for _ in range(size.passes):
            tokens = torch.randint(size.vocabulary, (size.samples, size.window + 1), device=device)
            losses = task.losses(model, (tokens[:, :-1], tokens[:, 1:]))
            differentiate(losses, size.samples * size.passes)
            del losses
        optimization.check_grads()
        optimization.step(step)
