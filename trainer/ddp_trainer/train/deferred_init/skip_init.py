"""Build a model without filling its weights, for a rank that receives them from a peer.

Random values for a gigabyte of weights take longer than their transfer. :class:`SkipInit` leaves out what fills a
weight; ``torch.nn.utils.skip_init`` does the same for one module that takes a ``device``. The rest of the model is
built as usual. If it depends on a value that was left out, or a weight would not be loaded, :meth:`SkipInit.is_exact`
returns False.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

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
        kept = [weakref.ref(self._weights[address]) for address in self._skipped - stored] + self._views
        self._weights.clear()
        return not self._was_read and all(tensor() is None for tensor in kept)

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
        for each in value.values() if isinstance(value, dict) else value:
            yield from _tensors(each)


def _address(tensor: Tensor) -> int:
    """Return the address of the memory of a tensor; 0 if it has none, as on the meta device."""
    return 0 if tensor.layout is not torch.strided else tensor.untyped_storage().data_ptr()
