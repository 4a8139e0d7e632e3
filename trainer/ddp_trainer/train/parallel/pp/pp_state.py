"""State of a model in pipeline stages.

:class:`PipelineState` gathers weights and optimizer state from the ranks that hold them, and distributes them again. It
is used by checkpoints and recovery, through :class:`~ddp_trainer.train.mesh.sharded_state.ShardedState`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from ddp_trainer.train.data.task import Task
from ddp_trainer.train.mesh.sharded_state import ShardedState, local_shard
from ddp_trainer.train.parallel.pp.pipeline_split import Stages
from ddp_trainer.train.utils.errors import BadTask

_TENSOR: Final = "tensor"
_VALUE: Final = "value"


class PipelineState(ShardedState):
    """Sharded state over pipeline stages.

    Weights have the numbers and names of the whole model; weights of other stages are on the meta device. Weights of
    this rank may be sliced and sharded; the ranks of the same stage gather them first.
    """

    def __init__(self, model: nn.Module, stages: Stages) -> None:
        super().__init__(stages.mesh, stages.group)
        self.stages = stages
        self._names = {id(weight): name for name, weight in model.named_parameters()}
        own = dict(model.named_parameters())
        me = stages.mesh.place.pp
        self._again = [own[name] for name, holders in stages.weights.items() if me in holders[1:]]
        """Weights of this rank that an earlier stage holds as well."""

    def gather_state(self, state: Any, *, keep: bool) -> Any:
        """Return the whole state; each weight and its moments come from the first rank that holds it.

        Ranks first exchange which optimizer state they hold, because frozen weights have no moments on any rank.
        """
        weights = {
            name: self._sent(self.first_stage_of(name), weight, keep=keep) for name, weight in state["model"].items()
        }
        optimizer = state["optimizer"]
        forms = [
            json.loads(packed) for packed in self._all_gather_bytes(json.dumps(_forms(optimizer["state"])).encode())
        ]
        states: dict[int, dict[str, Any]] = {}
        for number in sorted({int(number) for of_rank in forms for number in of_rank}):
            source = next(rank for rank, of_rank in enumerate(forms) if str(number) in of_rank)
            here, form = optimizer["state"].get(number, {}), forms[source][str(number)]
            states[number] = {key: self._entry(source, here.get(key), form[key], keep=keep) for key in form}
        return {"model": weights, "optimizer": {**optimizer, "state": states}}

    def first_stage_of(self, name: str) -> int:
        """Return the first rank of ``pp`` that holds the weight of this name."""
        return self.stages.weights[name][0]

    def check_param_order(self, optimizer: Optimizer, task: Task) -> None:
        """Check that the optimizer numbers weights in the same way on all ranks; every rank must call it.

        Raises:
            BadTask: Its groups hold different weights on some ranks.
        """
        names = [[self._names.get(id(weight), "") for weight in group["params"]] for group in optimizer.param_groups]
        digests = self.stages.group.gather(zlib.crc32(json.dumps(names).encode()))
        if len(set(digests)) > 1:
            raise BadTask(
                f"The optimizer of the task {task.name!r} has other weights in its groups on some ranks.",
                hint="Pass the weights of all stages to the groups of optimizer(), also those on torch's meta device; "
                "select them by shape or requires_grad.",
            )

    def break_off(self) -> None:
        """Restore the state between steps after an aborted step, in which stages had whole weights; no collective."""
        if self.stages.pieces is not None:
            self.stages.pieces.reshard()

    def _entry(self, source: int, here: Any, form: Any, *, keep: bool) -> Any:
        """Return one value of a weight's optimizer state, of the form that it has on the source rank."""
        if _TENSOR not in form:
            return form[_VALUE]
        size, kind = form[_TENSOR]
        value = here if here is not None else torch.empty(size, dtype=getattr(torch, kind))
        return self._sent(source, value, keep=keep)

    def _sent(self, source: int, value: Tensor, *, keep: bool) -> Tensor | None:
        device = self.stages.group.device
        value = value.detach()
        if self.stages.mesh.place.pp != source:
            sent = torch.empty(value.shape, dtype=value.dtype, device=device)
        else:
            here: Tensor = value.to(device)
            sent = here.full_tensor().contiguous() if isinstance(here, DTensor) else here
        with self.stages.group.convert_errors():
            dist.broadcast(sent, self.stages.rank(source), self.stages.process_group)
            return sent.cpu() if keep else None

    def _all_gather_bytes(self, own: bytes) -> list[bytes]:
        """Gather bytes of different lengths from each rank of ``pp``."""
        device, line, ranks = self.stages.group.device, self.stages.process_group, range(self.mesh.layout.pp)
        length = torch.tensor([len(own)], device=device)
        lengths = [torch.empty_like(length) for _ in ranks]
        with self.stages.group.convert_errors():
            dist.all_gather(lengths, length, group=line)
            padded = torch.zeros(int(max(lengths)), dtype=torch.uint8, device=device)
            padded[: len(own)] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
            every = [torch.empty_like(padded) for _ in ranks]
            dist.all_gather(every, padded, group=line)
            return [bytes(row[:size].tolist()) for row, size in zip(every, map(int, lengths), strict=True)]

    def load_weights(self, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
        """Load this rank's stages from the whole weights."""
        with torch.no_grad():
            for name, own in model.named_parameters():
                if not own.is_meta:
                    local_shard(own).copy_(local_shard(self.cut(weights[name], own)))

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """Return the norm of the whole gradient; a weight that several stages share counts once."""
        counted = {id(weight.grad) for weight in self._again}
        return super().norm([gradient for gradient in gradients if id(gradient) not in counted])


def _forms(state: Mapping[int, Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """Describe the optimizer state of this rank's weights: shape and dtype of tensors, other values themselves.

    Weights of other stages are left out: some optimizers, such as Adagrad, create state for them at construction.

    >>> _forms({3: {"step": torch.zeros(()), "mean": 0.5}, 4: {"sum": torch.zeros(2, device="meta")}})
    {3: {'step': {'tensor': ([], 'float32')}, 'mean': {'value': 0.5}}}
    """
    return {
        number: {key: _form(value) for key, value in of_weight.items()}
        for number, of_weight in state.items()
        if not any(isinstance(value, Tensor) and value.is_meta for value in of_weight.values())
    }


def _form(value: Any) -> dict[str, Any]:
    if isinstance(value, Tensor):
        return {_TENSOR: (list(value.shape), str(value.dtype).removeprefix("torch."))}
    if value is None or isinstance(value, bool | int | float | str):
        return {_VALUE: value}
    raise BadTask(
        f"The optimizer keeps a {type(value).__name__} of a weight, which ranks of a pipeline cannot tell each other.",
        hint="Choose one that keeps tensors and numbers, or leave pp out of --parallel.",
    )
