"""Models whose weights are filled late: built without weights for a rank that receives them, or on the meta device.

:class:`SkipInit` builds a model without filling its weights. :func:`materialize` and :func:`init_weights` fill a model
that was built on torch's meta device, after it is split over ranks.
"""

from __future__ import annotations

import hashlib
import math
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import swap_tensors

from ddp_trainer.train.data.keyed_rng import KeyedRng, Stream
from ddp_trainer.train.data.task import SupportsWeightInit, Task

FILLS: Final = frozenset(
    {
        *(nn.init.uniform_, nn.init.normal_, nn.init.constant_, nn.init.kaiming_uniform_),
        *(Tensor.uniform_, Tensor.normal_, Tensor.fill_, Tensor.zero_, Tensor.copy_, Tensor.__setitem__),
        *(Tensor.mul_, Tensor.div_, Tensor.add_, Tensor.sub_, Tensor.clamp_),
    }
)
"""Functions that only write into their first argument. ``trunc_normal_`` is not one of them: it reads what it drew."""
METADATA: Final = frozenset(
    {
        *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.stride, Tensor.is_contiguous, Tensor.requires_grad_),
        *(Tensor.is_floating_point, Tensor.is_complex, Tensor.__len__, Tensor.__hash__),
        *(getattr(Tensor, name).__get__ for name in ("shape", "ndim", "dtype", "device", "layout", "requires_grad")),
        *(getattr(Tensor, name).__get__ for name in ("is_meta", "is_sparse", "is_leaf", "grad", "grad_fn")),
    }
)
"""Functions that read no values."""


class SkipInit(TorchFunctionMode):
    """Leave out what fills weights, and detect whether the rest of the model depends on it.

    Enter the mode around the construction of a model whose state dict will be loaded.
    """

    def __init__(self) -> None:
        super().__init__()
        self._weights: dict[int, Tensor] = {}
        """Address of a storage → a tensor that keeps it alive, so that no other tensor gets the address."""
        self._skipped: set[int] = set()
        self._views: list[weakref.ref[Tensor]] = []
        """Views of weights, such as ``weight.data``."""
        self._was_read = False

    def is_exact(self, model: nn.Module) -> bool:
        """Return True if a model built in this mode equals one built without it, once its state dict is loaded.

        No weight may have been read, and nothing else drawn: other random values would differ, because those of the
        weights were not drawn before them. Each weight that still exists must be part of the state dict, and share
        its memory with nothing else. Called once, after the mode.
        """
        loaded = model.state_dict()
        stored = {_address(tensor) for tensor in loaded.values() if isinstance(tensor, Tensor)}
        stored -= {_address(buffer) for name, buffer in model.named_buffers() if name not in loaded}
        alive = [weakref.ref(self._weights[address]) for address in self._skipped - stored] + self._views
        self._weights.clear()
        return not self._was_read and all(tensor() is None for tensor in alive)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call ``func``, or return its first argument if that is a weight and ``func`` fills it."""
        given = dict(kwargs or {})
        weights = list(self._weights_in((args, given)))
        first = args[0] if args else given.get("tensor")
        if func in FILLS and isinstance(first, Tensor) and _address(first) in weights:
            self._skipped.add(_address(first))
            self._was_read |= given.get("generator") is not None  # whose next values would differ
            return first
        before = torch.get_rng_state()
        result = func(*args, **given)
        is_view = isinstance(result, Tensor) and _address(result) in weights
        if is_view and not isinstance(result, nn.Parameter):
            self._views.append(weakref.ref(result))
        is_read = not is_view and func not in METADATA and bool(self._skipped.intersection(weights))
        self._was_read |= is_read or not torch.equal(torch.get_rng_state(), before)
        return result

    def _weights_in(self, values: object) -> Iterator[int]:
        """Yield the addresses of the storages of weights, which may be aliases such as ``weight.data``."""
        for value in _tensors(values):
            if address := _address(value):
                if isinstance(value, nn.Parameter) and value.nbytes == value.untyped_storage().nbytes():
                    self._weights.setdefault(address, value)
                if address in self._weights:
                    yield address


def _tensors(value: object) -> Iterator[Tensor]:
    """Yield the tensors among arguments, in sequences and dictionaries too."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)


def _address(tensor: Tensor) -> int:
    """Return the address of the memory of a tensor; 0 if it has none, as on the meta device."""
    return 0 if tensor.layout is not torch.strided else tensor.untyped_storage().data_ptr()


def is_deferred(model: nn.Module) -> bool:
    """Return True if the model is on the meta device, before any weight has memory."""
    return any(weight.is_meta for weight in model.parameters())


def materialize(
    model: nn.Module, device: torch.device, *, weights_on: torch.device | None = None, without: Collection[str] = ()
) -> None:
    """Allocate weights and buffers in place, filled with NaN; types without NaN stay uninitialized.

    A weight that is never filled then shows in the first loss. ``nn.Module.to_empty`` would also allocate other stages,
    and would separate modules that share a weight.

    Args:
        model: The model, possibly sliced or sharded.
        device: Device of weights and buffers.
        weights_on: Another device for the weights.
        without: Names of weights that stay on the meta device.
    """
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name in without:
            continue
        is_weight = isinstance(tensor, nn.Parameter)
        room = _uninitialized_like(tensor, weights_on or device if is_weight else device)
        room = nn.Parameter(room, requires_grad=tensor.requires_grad) if is_weight else room
        swap_tensors(tensor, room)  # type: ignore[no-untyped-call] # of torch


def init_weights(model: nn.Module, task: Task, seed: int, loaded: Collection[str]) -> None:
    """Fill weights and buffers of a whole model in place, except those whose names are in ``loaded``."""
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if name not in loaded:
                tensor.copy_(initial_weight(model, task, seed, name, tensor))


def initial_weight(model: nn.Module, task: Task, seed: int, name: str, like: Tensor) -> Tensor:
    """Return the complete initial tensor of this name, on the CPU, with the shape and dtype of ``like``."""
    random = KeyedRng(seed, torch.device("cpu"))
    random.enter(Stream.WEIGHTS, int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]))
    with torch.no_grad():
        local = _uninitialized_like(torch.empty(like.shape, dtype=like.dtype, device="meta"), torch.device("cpu"))
        cast("SupportsWeightInit", task).init_weight(model, name, local)
    random.enter(Stream.WEIGHTS)  # as on ranks that initialize nothing
    return local


def _uninitialized_like(tensor: Tensor, device: torch.device) -> Tensor:
    blank = torch.empty_like(tensor, device=device)
    return blank.fill_(math.nan) if blank.is_floating_point() or blank.is_complex() else blank
