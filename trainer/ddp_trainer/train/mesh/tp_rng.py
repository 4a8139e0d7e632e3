"""Random draws inside of a tensor-parallel model: equal for replicated tensors, different for different parts.

All ranks of a tensor-parallel group enter the same random stream. :func:`shared_rng` changes dropout layers for
``DTensor`` inputs, sharded or not: every rank draws the mask of the whole tensor and uses its part. The mask is that of
one process for any ``tp``. A dropout layer treats a plain tensor as whole. A module with different plain tensors on
each rank, such as attention over a part of the heads, must use :class:`PerRankRng`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle

from ddp_trainer.train.data.keyed_rng import mix
from ddp_trainer.train.utils.errors import BadConfig

_ADDS: Final = (nn.AlphaDropout, nn.FeatureAlphaDropout)
"""Dropout layers that do more than multiply by a mask."""
_DROPS: Final[tuple[type[nn.Module], ...]] = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, *_ADDS)
_SEEDS: Final = 1 << 62


class PerRankRng(ParallelStyle):
    """Parallel style of a module that draws different random numbers on each rank in training.

    The common stream continues after the module.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        rank, forward = device_mesh.get_local_rank(), module.forward

        def run(*args: Any, **options: Any) -> Any:
            if not module.training:
                return forward(*args, **options)
            with _fork_rank_rng(rank):
                return forward(*args, **options)

        module.forward = run
        return module


@contextmanager
def _fork_rank_rng(rank: int) -> Iterator[None]:
    """Use a stream that is seeded with the next number of the common stream and this rank."""
    key = mix(int(torch.randint(_SEEDS, ())), rank)
    on_gpu = torch.cuda.is_available()
    with torch.random.fork_rng([torch.cuda.current_device()] if on_gpu else []):
        torch.default_generator.manual_seed(key)
        if on_gpu:
            torch.cuda.manual_seed(key)
        yield


def shared_rng(model: nn.Module, what: str) -> None:
    """Make dropout layers draw the mask of the whole tensor for sharded inputs. Changes the model in place.

    Args:
        model: Tensor-parallel model.
        what: Part of ``--parallel`` that requires it, for the error message.

    Raises:
        BadConfig: The model has a kind of dropout that cannot be sharded.
    """
    for name, module in model.named_modules():
        if not isinstance(module, _DROPS) or not module.p:
            continue
        if isinstance(module, _ADDS):
            raise BadConfig(
                f"--parallel has {what}, and {name} of the model is {type(module).__name__}, which ranks cannot share.",
                hint="Use nn.Dropout in the model instead.",
            )
        module.forward = _with_full_mask(module, module.forward)


def _with_full_mask(module: nn.Module, forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def run(inputs: Tensor) -> Tensor:
        if not module.training or not isinstance(inputs, DTensor):
            return forward(inputs)
        # Draw the mask with the kernel that a single process uses, so that both masks are equal.
        mask = forward(torch.ones(inputs.shape, dtype=inputs.dtype, device=inputs.device))
        placements = [Replicate() if isinstance(each, Partial) else each for each in inputs.placements]
        return inputs * distribute_tensor(mask, inputs.device_mesh, placements, src_data_rank=None)

    return run
