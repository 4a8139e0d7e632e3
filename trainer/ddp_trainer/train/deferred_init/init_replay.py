"""How the numbers of a tensor came about, and the same numbers once more: from the calls and the states of generators.

A tensor is a view of a storage, and what lies in a storage is a chain of versions: the call that made it, and each that
wrote to it. A call is repeated with what its tensors held when it was made, from the same state of the generator, so
that what comes of it is the same to the last bit.
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
"""Storages of the largest size whose numbers are kept for the calls that follow."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordedOp:
    """One operation of torch, with a :class:`InitRecipe` in the place of each tensor that has no memory."""

    operation: Callable[..., Any]
    args: Sequence[Any]
    options: Mapping[str, Any]
    random_state: Tensor | None = None
    """Of the generator that it drew from, before it did."""
    default_dtype: torch.dtype = field(default_factory=torch.get_default_dtype)

    @classmethod
    def blank(cls, size_bytes: int) -> Self:
        """Memory in which anything may lie."""
        return cls(fresh_memory, (size_bytes,), {})

    def run(self, real: Callable[[Any], Any]) -> Any:
        """Make it again; ``real`` says what stands for each argument."""
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
    """What lies in one storage after a call."""

    call: RecordedOp
    before: StorageVersion | None = None
    """What the call wrote into; None where it made the storage."""
    output: int = 0
    """Of the tensors that the call gave, the one that lies in this storage, where it made it."""
    depth: int = 1
    """Calls, one behind the other, that it takes to make it."""
    form: Tensor | None = None
    """What the call gave, on the meta device, where it made the storage."""


@dataclass(frozen=True, slots=True, eq=False)
class InitRecipe:
    """A tensor without memory."""

    version: StorageVersion
    size: torch.Size
    stride: Sequence[int]
    offset: int
    dtype: torch.dtype

    def numbers(self) -> Tensor:
        """The tensor itself, anew on the CPU."""
        return ReplayExecutor().numbers(self)


class ReplayExecutor:
    """Makes recipes, and keeps a little of what it made for those that need it again."""

    def __init__(self) -> None:
        self._kept: OrderedDict[StorageVersion, UntypedStorage] = OrderedDict()
        self._largest = self._size = 0

    def numbers(self, recipe: InitRecipe) -> Tensor:
        """Not to be written to while the kitchen is used."""
        return _view(recipe, self._storage(recipe.version))

    def keep(self, version: StorageVersion, storage: UntypedStorage) -> None:
        """What was made elsewhere; what was kept for longest goes."""
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
        # A call may want both, what is kept and what becomes of it.
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
    """Bytes that go back to the system with the tensor; of what malloc gives, much would stay with the process."""
    return torch.frombuffer(mmap(-1, size_bytes), dtype=torch.uint8)


def _copied(storage: UntypedStorage) -> UntypedStorage:
    bits = torch.empty(0, dtype=torch.uint8).set_(storage)
    return fresh_memory(storage.nbytes()).copy_(bits).untyped_storage()


def _laid_out(made: Tensor, form: Tensor | None) -> Tensor:
    """As views of it expect it: some operations lay out what they give otherwise on the meta device."""
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
