"""A small GPT that learns rows of numbers, for runs that cut it into slices and stages."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ddp_trainer.train.data.task import rowwise
from ddp_workloads.gpt import Gpt, ScaledDotProductAttention


class Rows:
    """Rows in which each number follows from the one before."""

    def __init__(self, count: int, *, vocabulary: int, window: int) -> None:
        self._count, self._vocabulary, self._window = count, vocabulary, window

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Tensor:
        return self.batch(torch.tensor([index]))[0]

    @rowwise
    def batch(self, ids: Tensor) -> Tensor:
        """Int64 ``(n, window + 1)``."""
        rows = [(ids + ids // self._vocabulary) % self._vocabulary]
        for _ in range(self._window):
            rows.append((rows[-1] * 5 + 3) % self._vocabulary)
        return torch.stack(rows, 1)


class DrawnWhole:
    """Foretell the next number, by a model that is built whole on every rank."""

    name = "numbers"
    vocabulary: ClassVar = 16
    window: ClassVar = 8
    heads: ClassVar = 2
    width: ClassVar = 16
    dropout: ClassVar = 0.0
    rows: ClassVar = 61
    """Not a multiple of the global batch: the last step of an epoch is a partial one."""

    def model(self) -> nn.Module:
        """Four layers, so that two ranks may have two stages each."""
        return Gpt(
            vocabulary=self.vocabulary,
            window=self.window,
            layers=4,
            heads=self.heads,
            width=self.width,
            dropout=self.dropout,
        )

    def train_samples(self) -> Rows:
        """Those to learn."""
        return Rows(self.rows, vocabulary=self.vocabulary, window=self.window)

    def test_samples(self) -> Rows:
        """A few."""
        return Rows(5, vocabulary=self.vocabulary, window=self.window)

    def losses(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Mean cross entropy of each row."""
        logits = model(batch[:, :-1])
        return nn.functional.cross_entropy(logits.transpose(1, 2), batch[:, 1:], reduction="none").mean(1)

    def metrics(self, model: nn.Module, batch: Tensor) -> Mapping[str, Tensor]:
        """The loss, and how many numbers were foretold."""
        found = model(batch[:, :-1]).argmax(2) == batch[:, 1:]
        return {"loss": self.losses(model, batch).sum(), "accuracy": found.double().mean(1).sum()}


class Numbers(DrawnWhole):
    """A GPT task whose model is cut before it has memory."""

    def init_weight(self, model: nn.Module, name: str, weight: Tensor) -> None:
        cast("Gpt", model).init_weight(name, weight)


class DroppedOutside(Numbers):
    """A GPT task with dropout on single tokens, and none in attention."""

    dropout = 0.2

    def model(self) -> nn.Module:
        """As ever."""
        model = super().model()
        for module in model.modules():
            if isinstance(module, ScaledDotProductAttention):
                module.share = 0.0
        return model


class Patched(Gpt):
    """A GPT with a convolution's weight and two buffers, which shift its logits."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Int64 ``(n, window)`` to float32 ``(n, window, vocabulary)``."""
        moved: Tensor = super().forward(tokens)
        return moved * self.patch.weight.exp().mean() + self.columns[0] + self.rows[2]


class LaidOut(DrawnWhole):
    """Weights and buffers are not row-major in memory; the buffers differ on each rank."""

    width = 64

    def model(self) -> nn.Module:
        """Transposed, expanded, and channels last."""
        model, rank = Patched(vocabulary=16, window=8, layers=2, heads=2, width=64), int(os.environ["RANK"])
        model.patch = nn.Conv2d(16, 16, 3, bias=False).to(memory_format=torch.channels_last)
        product = next(module for module in model.modules() if isinstance(module, nn.Linear))
        product.weight = nn.Parameter(product.weight.detach().t().contiguous().t())
        model.register_buffer("columns", (torch.arange(64.0).view(16, 4) / 9 + rank).t())
        model.register_buffer("rows", (torch.arange(32.0)[::2] / 9 + rank).expand(4, 16))
        return model


class Unseeded(DrawnWhole):
    """Weights differ on each rank; those of the second half of the layers on each two ranks."""

    def model(self) -> nn.Module:
        """Return the model with its weights shifted by rank."""
        model, rank = super().model(), int(os.environ["RANK"])
        for name, weight in model.named_parameters():
            is_late = name.startswith(("blocks.2", "blocks.3", "norm"))
            chance = torch.Generator().manual_seed(100 + rank // 2 if is_late else rank)
            weight.data += 0.1 * torch.randn(weight.shape, generator=chance)
        return model


class Dropped(Numbers):
    """A GPT task with dropout."""

    dropout = 0.2


class Frozen(Numbers):
    """The first of two stages is frozen."""

    def model(self) -> nn.Module:
        """As ever."""
        model = super().model()
        assert isinstance(model, Gpt)
        for part in (model.tokens, model.positions, *list(model.blocks)[:2]):
            part.requires_grad_(False)
        return model


class Grouped(Numbers):
    """An optimizer with groups: weights of several dimensions decay, and come after the others."""

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        learning = [weight for weight in parameters if weight.requires_grad]
        decaying = [weight for weight in learning if weight.dim() > 1]
        others = [weight for weight in learning if weight.dim() < 2]
        return torch.optim.AdamW(
            [{"params": others, "weight_decay": 0.0}, {"params": decaying, "weight_decay": 0.5}], lr=0.001
        )


class FrozenAndGrouped(Grouped, Frozen):
    """Both."""


class Between(nn.Module):
    """A stage outside the model, with dropout on its input."""

    def __init__(self, stage: nn.Module) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.9)
        for name, part in stage.named_children():
            setattr(self, name, part)
        self._stage = [stage]

    def forward(self, stream: Tensor) -> Tensor:
        return self._stage[0](self.dropout(stream))


class DroppedBetween(Numbers):
    """Customized stages, the second of which has dropout."""

    def pipeline_stage(self, model: nn.Module, index: int, count: int) -> nn.Module:
        stage = cast("Gpt", model).pipeline_stage(index, count)
        return Between(stage) if index else stage
