"""Recipes of tensors without memory, and their replay with bitwise equal results.

A tensor is a view of a storage, and the content of a storage is a chain of versions (:class:`StorageVersion`): the
operation that created it, and each one that wrote to it. :class:`ReplayExecutor` runs an :class:`InitRecipe`: each
operation gets the inputs it had when it was recorded, and the same state of the random generator. Recipes come from
:mod:`ddp_trainer.train.deferred_init.op_recording`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from mmap import mmap
from typing import Any, Final, Self

import torch
from torch import Generator, Tensor, UntypedStorage
from torch.utils._pytree import tree_leaves, tree_map

_MOST_KEPT: Final = 3
"""Size of the cache of replayed storages, in multiples of the largest storage."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordedOp:
    """One torch operation, with an :class:`InitRecipe` in place of each tensor without memory."""

    operation: Callable[..., Any]
    args: Sequence[Any]
    options: Mapping[str, Any]
    random_state: Tensor | None = None
    """State of the generator before the operation drew from it; None if it draws nothing."""
    default_dtype: torch.dtype = field(default_factory=torch.get_default_dtype)

    @classmethod
    def blank(cls, size_bytes: int) -> Self:
        """Return an operation that allocates uninitialized memory."""
        return cls(fresh_memory, (size_bytes,), {})

    def run(self, real: Callable[[Any], Any]) -> Any:
        """Run the operation again; ``real`` maps each recorded argument to the actual one."""
        args, options = tree_map(real, (tuple(self.args), dict(self.options)))
        with _as_it_was(self.default_dtype):
            if self.random_state is None:
                return self.operation(*args, **options)
            if options.get("generator") is not None:
                generator = Generator()
                generator.set_state(self.random_state)
                return self.operation(*args, **{**options, "generator": generator})
            with _from_state(self.random_state):
                return self.operation(*args, **options)


@dataclass(frozen=True, slots=True, eq=False)
class StorageVersion:
    """Content of one storage after an operation."""

    call: RecordedOp
    before: StorageVersion | None = None
    """Version that the operation wrote to; None if the operation created the storage."""
    output: int = 0
    """Index of the output tensor in this storage, if the operation created it."""
    depth: int = 1
    """Number of successive operations needed to produce this version."""
    form: Tensor | None = None
    """Output tensor on the meta device, if the operation created the storage."""


@dataclass(frozen=True, slots=True, eq=False)
class InitRecipe:
    """Recipe of a tensor without memory: a storage version and the view of it."""

    version: StorageVersion
    size: torch.Size
    stride: Sequence[int]
    offset: int
    dtype: torch.dtype

    def numbers(self) -> Tensor:
        """Return the tensor with its values, newly computed on the CPU."""
        return ReplayExecutor().numbers(self)


class ReplayExecutor:
    """Runs recipes, and caches recent storages for recipes that need them again."""

    def __init__(self) -> None:
        self._kept: OrderedDict[StorageVersion, UntypedStorage] = OrderedDict()
        self._largest = self._size = 0

    def numbers(self, recipe: InitRecipe) -> Tensor:
        """Return the tensor of a recipe; do not write to it while the executor is in use."""
        return _view(recipe, self._storage(recipe.version))

    def keep(self, version: StorageVersion, storage: UntypedStorage) -> None:
        """Add a storage computed elsewhere to the cache, which drops its oldest entries."""
        self._kept[version] = storage
        self._largest = max(self._largest, storage.nbytes())
        self._size += storage.nbytes()
        while self._size > _MOST_KEPT * self._largest:
            self._size -= self._kept.popitem(last=False)[1].nbytes()

    def _storage(self, version: StorageVersion) -> UntypedStorage:
        wanted, at = [], version
        while at not in self._kept:
            wanted.append(at)
            if at.before is None:
                break
            at = at.before
        if not wanted:
            self._kept.move_to_end(version)
            return self._kept[version]
        # An operation may read the cached version and write the next one, so it writes to a copy.
        storage = _copied(self._kept[at]) if at in self._kept else None
        for each in reversed(wanted):
            storage = self._run(each, storage)
        assert storage is not None  # noqa: S101 - the first call makes it
        self.keep(version, storage)
        return storage

    def _run(self, version: StorageVersion, written: UntypedStorage | None) -> UntypedStorage:
        def real(value: Any) -> Any:
            if not isinstance(value, InitRecipe):
                return value
            is_written = written is not None and value.version is version.before
            return _view(value, written if is_written else self._storage(value.version))  # type: ignore[arg-type] # is not None

        given = version.call.run(real)
        if written is not None:
            return written
        made: Tensor = [each for each in tree_leaves(given) if isinstance(each, Tensor)][version.output]
        storage: UntypedStorage = _laid_out(made, version.form).untyped_storage()
        return storage


def fresh_memory(size_bytes: int) -> Tensor:
    """Return uint8 memory that returns to the system with the tensor; ``malloc`` would retain much of it."""
    return torch.frombuffer(mmap(-1, size_bytes), dtype=torch.uint8)


def _copied(storage: UntypedStorage) -> UntypedStorage:
    bits = torch.empty(0, dtype=torch.uint8).set_(storage)
    return fresh_memory(storage.nbytes()).copy_(bits).untyped_storage()


def _laid_out(made: Tensor, form: Tensor | None) -> Tensor:
    """Return the tensor with the layout of ``form``, which its views expect.

    Some operations lay out their result differently on the meta device.
    """
    if form is None or (made.stride() == form.stride() and made.storage_offset() == form.storage_offset()):
        return made
    bare = torch.empty(0, dtype=made.dtype).set_(
        fresh_memory(form.untyped_storage().nbytes()).untyped_storage(),
        int(form.storage_offset()),
        form.size(),
        form.stride(),
    )
    return bare.copy_(made)


def _view(recipe: InitRecipe, storage: UntypedStorage) -> Tensor:
    empty = torch.empty(0, dtype=recipe.dtype)
    return empty.set_(storage, recipe.offset, recipe.size, tuple(recipe.stride))


@contextmanager
def _as_it_was(dtype: torch.dtype) -> Iterator[None]:
    now = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(now)


@contextmanager
def _from_state(state: Tensor) -> Iterator[None]:
    now = torch.default_generator.get_state()
    torch.default_generator.set_state(state)
    try:
        yield
    finally:
        torch.default_generator.set_state(now)
