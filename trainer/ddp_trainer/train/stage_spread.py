"""The state of a model whose stages lie on several ranks: gathered from whoever has a weight, and dealt out again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from ddp_trainer.train.spread import Spread, piece
from ddp_trainer.train.stages import Stages


class StageSpread(Spread):
    """Weights are numbered and named as in the whole model, of which the others' are on the meta device here.

    Those that are here may be in slices and in pieces, which ranks of the same stage put together first.
    """

    def __init__(self, model: nn.Module, stages: Stages) -> None:
        super().__init__(stages.mesh, stages.group)
        self.stages = stages
        self._names = [name for name, _ in model.named_parameters()]
        self._like = dict(model.named_parameters())
        self._own = [number for number, name in enumerate(self._names) if not self._like[name].is_meta]
        me = stages.mesh.place.pp
        self._again = [self._like[name] for name, holders in stages.weights.items() if me in holders[1:]]
        """Weights of this rank that an earlier stage has, too."""

    def whole(self, state: Any, *, keep: bool) -> Any:
        """As ever; each weight and its moments come from the first rank that has it."""
        model = {name: self._sent(name, state["model"][name], keep=keep) for name in self._names}
        optimizer = state["optimizer"]
        numbers = self.numbers(optimizer["param_groups"])
        own = {numbers[number]: state for number, state in optimizer["state"].items()}
        example: Mapping[str, Any] = next(iter(own.values()), {})
        states = {}
        if example:
            for number, name in enumerate(self._names):
                here = own.get(number)
                states[number] = {key: self._entry(name, key, here, example, keep=keep) for key in example}
        groups = self.whole_groups(optimizer["param_groups"])
        return {"model": model, "optimizer": {**optimizer, "state": states, "param_groups": groups}}

    def whole_groups(self, groups: Sequence[Mapping[str, Any]]) -> list[Any]:
        """As ever; an optimizer of this rank's weights alone is one of the flags', which has one group."""
        if len(self.numbers(groups)) == len(self._names):
            return list(groups)
        return [{**group, "params": list(range(len(self._names)))} for group in groups]

    def first_stage_of(self, name: str) -> int:
        """As ever."""
        return self.stages.weights[name][0]

    def numbers(self, groups: Sequence[Mapping[str, Any]]) -> Sequence[int]:
        """In the whole model, of the weights of an optimizer: ours has those that are here, a task's own has all."""
        count = sum(len(group["params"]) for group in groups)
        return self._own if count == len(self._own) else range(count)

    def _entry(
        self, name: str, key: str, here: Mapping[str, Any] | None, example: Mapping[str, Any], *, keep: bool
    ) -> Any:
        """One value of a weight's state: of its shape, or a single number."""
        template = example[key]
        if not isinstance(template, Tensor):
            return template
        shape = self._like[name].shape if template.dim() else template.shape
        value = here[key] if here is not None else torch.empty(shape, dtype=template.dtype, device=template.device)
        return self._sent(name, value, keep=keep)

    def _sent(self, name: str, value: Tensor, *, keep: bool) -> Tensor | None:
        source, device = self.stages.weights[name][0], self.stages.group.device
        value = value.detach()
        if self.stages.mesh.place.pp != source:
            sent = torch.empty(value.shape, dtype=value.dtype, device=device)
        else:
            here: Tensor = value.to(device)
            sent = here.full_tensor().contiguous() if isinstance(here, DTensor) else here
        with self.stages.group.watched():
            dist.broadcast(sent, self.stages.rank(source), self.stages.process_group)
        return sent.cpu() if keep else None

    def load_weights(self, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
        """Of whole weights, those of this rank's stages."""
        with torch.no_grad():
            for name, own in model.named_parameters():
                if not own.is_meta:
                    piece(own).copy_(piece(self.cut(weights[name], own)))

    def optimizer_state(self, optimizer: Optimizer, state: Mapping[str, Any]) -> dict[str, Any]:
        """Of a whole state, what belongs to these weights, under their numbers here."""
        groups = optimizer.state_dict()["param_groups"]
        numbers = {number: here for here, number in enumerate(self.numbers(groups))}
        own = {
            numbers[number]: self._cut_all(each, self._like[self._names[number]])
            for number, each in state["state"].items()
            if number in self._own
        }
        groups = [
            {**stored, "params": group["params"]} for stored, group in zip(state["param_groups"], groups, strict=True)
        ]
        return {**state, "state": own, "param_groups": groups}

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """A weight that several stages have counts once."""
        counted = {id(weight.grad) for weight in self._again}
        return super().norm([gradient for gradient in gradients if id(gradient) not in counted])
