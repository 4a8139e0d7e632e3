"""Random draws inside of a model in slices: the same where ranks hold the same, and apart where they hold parts.

All ranks of a slice group enter the same random stream. What a dropout layer gets as a ``DTensor``, cut or whole, it
drops by its part of a mask that every rank draws for the whole: that is the mask of one process, whatever ``tp`` is.
What it gets as a plain tensor it takes for whole. A module that computes with plain tensors of which each rank has
others, as attention over a part of the heads, is to draw from a stream of each rank's own, :class:`PerRankRng`.
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

from ddp_trainer.train.utils.errors import BadConfig
from ddp_trainer.train.utils.splitmix import mix

_ADDS: Final = (nn.AlphaDropout, nn.FeatureAlphaDropout)
"""Those that do not only multiply."""
_DROPS: Final[tuple[type[nn.Module], ...]] = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, *_ADDS)
_SEEDS: Final = 1 << 62


class PerRankRng(ParallelStyle):
    """Of a module: what it draws while it trains is another draw on each rank. The stream of all goes on after it."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        rank, forward = device_mesh.get_local_rank(), module.forward

        def run(*args: Any, **options: Any) -> Any:
            if not module.training:
                return forward(*args, **options)
            with _own_stream(rank):
                return forward(*args, **options)

        module.forward = run
        return module


@contextmanager
def _own_stream(rank: int) -> Iterator[None]:
    """Draw from a stream that begins with the next number of the common one, and this rank."""
    key = mix(int(torch.randint(_SEEDS, ())), rank)
    on_gpu = torch.cuda.is_available()
    with torch.random.fork_rng([torch.cuda.current_device()] if on_gpu else []):
        torch.default_generator.manual_seed(key)
        if on_gpu:
            torch.cuda.manual_seed(key)
        yield


def shared_rng(model: nn.Module, what: str) -> None:
    """Let dropout layers draw for the whole of what is cut, in place.

    Raises:
        BadConfig: a layer drops out in a way that cannot be cut.
    """
    for name, module in model.named_modules():
        if not isinstance(module, _DROPS) or not module.p:
            continue
        if isinstance(module, _ADDS):
            raise BadConfig(
                f"--parallel has {what}, and {name} of the model is {type(module).__name__}, which ranks cannot share.",
                hint="Give a model with nn.Dropout in its place.",
            )
        module.forward = _for_the_whole(module, module.forward)


def _for_the_whole(module: nn.Module, forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def run(inputs: Tensor) -> Tensor:
        if not module.training or not isinstance(inputs, DTensor):
            return forward(inputs)
        # The mask, as the very kernel draws it that one process would use.
        mask = forward(torch.ones(inputs.shape, dtype=inputs.dtype, device=inputs.device))
        placements = [Replicate() if isinstance(each, Partial) else each for each in inputs.placements]
        return inputs * distribute_tensor(mask, inputs.device_mesh, placements, src_data_rank=None)

    return run
