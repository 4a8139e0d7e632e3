"""Build a model without memory for its large tensors, while every random number is drawn in order.

Under :class:`DeferredInit`, a large CPU tensor is on torch's meta device: it has only a shape. It reports the CPU as
its device, because ``nn.init`` and others skip meta tensors. Random operations run on temporary memory, so that
generators advance as usual. All other operations are only recorded. The result is an
:class:`ddp_trainer.train.deferred_init.init_replay.InitRecipe` for each weight. Some operations cannot be recorded,
such as values from NumPy or access to memory. Then the recording fails with the reason, and the model has to be built
without it. Deferred initialization of torchdistX (https://github.com/pytorch/torchdistx) is the same idea, without the
order of random draws.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

import torch
from torch import Generator, Tensor, UntypedStorage, nn
from torch.overrides import TorchFunctionMode
from torch.utils import swap_tensors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ddp_trainer.train.deferred_init.init_replay import (
    InitRecipe,
    RecordedOp,
    ReplayExecutor,
    StorageVersion,
    fresh_memory,
)
from ddp_trainer.train.utils.gc_control import collections, objects_since

LARGE_BYTES: Final = 1 << 12
"""Minimum size of recorded tensors, in bytes; smaller ones are created immediately."""

_META: Final = torch.device("meta")
_CPU: Final = torch.device("cpu")
_DRAWN_IN_PLACE: Final = frozenset(
    f"aten::{name}_" for name in ("normal", "uniform", "exponential", "cauchy", "log_normal", "geometric", "random")
)
"""Operations that draw one number per element, independent of the old content, and write all elements."""
_DRAWN_LIKE: Final = frozenset({"aten::randn_like", "aten::rand_like", "aten::randint_like"})
_WRITTEN_OVER: Final = _DRAWN_IN_PLACE | {"aten::zero_", "aten::fill_", "aten::copy_"}
_OTHER_MEMORY: Final = frozenset({"aten::set_", "aten::resize_", "aten::resize_as_"})
_LOOKED_AT: Final = "aten::_local_scalar_dense"
_MOVED: Final = "aten::_to_copy"
_EMPTY: Final = frozenset({"aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty"})
_DEEPEST: Final = 128
_SAID: Final[Mapping[Any, object]] = {
    Tensor.device.__get__: _CPU,
    Tensor.is_cpu.__get__: True,  # type: ignore[attr-defined] # a property, unlike in torch's stub
    Tensor.is_meta.__get__: False,  # type: ignore[attr-defined] # as above
}
_LOOKED_INTO: Final = frozenset(
    {"numpy", "__array__", "data_ptr", "untyped_storage", "storage", "_typed_storage", "__dlpack__", "share_memory_"}
)


class CannotRecord(Exception):
    """The model cannot be recorded; the message is the reason."""


class DeferredInit(TorchDispatchMode):  # type: ignore[no-untyped-call] # of torch
    """Context manager that records the construction of one model."""

    def __init__(self, large_bytes: int = LARGE_BYTES) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # of torch
        self._large_bytes = large_bytes
        self._kitchen = ReplayExecutor()
        self._now: dict[int, tuple[UntypedStorage, StorageVersion]] = {}
        """Current version of each recorded storage, by its id. The storage is kept so that its id stays unique."""
        self._why: str | None = None
        self._began = collections()
        self._pretence = _FakeDeviceMode(self)
        self.is_busy = False
        """True during an operation; tensors then report their true device."""

    def __enter__(self) -> Self:
        super().__enter__()  # type: ignore[no-untyped-call] # of torch
        self._pretence.__enter__()  # type: ignore[no-untyped-call] # of torch
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pretence.__exit__(kind, err, trace)  # type: ignore[no-untyped-call] # of torch
        super().__exit__(kind, err, trace)  # type: ignore[no-untyped-call] # of torch

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run or record an operation."""
        del types
        was_busy, self.is_busy = self.is_busy, True
        try:
            return self._made(func, args, kwargs or {})
        except Exception as err:
            self.fail(str(err).strip().split("\n", 1)[0])
            raise
        finally:
            self.is_busy = was_busy

    def fail(self, why: str) -> None:
        """Mark the recording as failed, even if the caller suppresses the error."""
        self._why = self._why or why

    def abandon(self) -> None:
        """Give memory to tensors held outside of the model, for example in a cache, where possible."""
        gc.collect()
        for tensor in self._held():
            with suppress(Exception):
                self._give_memory(tensor)
        self._now.clear()
        self._kitchen = ReplayExecutor()

    def knows(self, value: Any) -> bool:
        """Return True if the value is a recorded tensor without memory."""
        is_plain = type(value) in {Tensor, nn.Parameter} and value.layout is torch.strided
        return is_plain and id(value.untyped_storage()) in self._now

    def recipes(self, model: nn.Module) -> dict[Tensor, InitRecipe]:
        """Return the recipes of the model's weights on the meta device; other recorded tensors get memory.

        Raises:
            CannotRecord: An operation cannot be replayed, or the model holds a tensor in an unsupported way.
        """
        if self._why is not None:
            raise CannotRecord(self._why)
        self._kitchen = ReplayExecutor()
        weights = set(map(id, model.parameters()))
        if _share(held := self._held()):
            gc.collect()  # takes 0.1 s; one of them may be garbage
            held = self._held()
        if _share(held):
            raise CannotRecord("Two tensors of the model share memory.")
        found = {each: self._recipe(each) for each in held if id(each) in weights}
        if any(_is_blank(recipe.version) for recipe in found.values()):
            raise CannotRecord("A weight was never given numbers.")
        for tensor in held:
            if id(tensor) not in weights:
                self._give_memory(tensor)
        if len(self._held()) > len(found):
            raise CannotRecord("A tensor of the model is held in more ways than one.")
        _demand_plain(model, found)
        return found

    def _held(self) -> list[Tensor]:
        """Return the recorded tensors that are alive, except those that exist only as the base of a view."""
        found = [each for each in _alive(self._began) if self.knows(each)]
        seen_through = {id(each._base) for each in found if each._base is not None}  # noqa: SLF001 - documented
        return [each for each in found if id(each) not in seen_through]

    def _give_memory(self, tensor: Tensor) -> None:
        """Compute a tensor, such as a buffer, and replace it in every object that refers to it."""
        if not tensor.is_leaf:
            raise CannotRecord("A tensor of the model is computed from its weights.")
        real = self._recipe(tensor).numbers().requires_grad_(tensor.requires_grad)
        if isinstance(tensor, nn.Parameter):
            real = nn.Parameter(real, requires_grad=tensor.requires_grad)
        try:
            swap_tensors(tensor, real)  # type: ignore[no-untyped-call] # of torch
        except RuntimeError as err:
            raise CannotRecord(f"A tensor of the model cannot be replaced: {err}.") from None

    def _made(self, func: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        tensors = [each for each in tree_leaves((args, options)) if isinstance(each, Tensor)]
        if any(map(self.knows, tensors)):
            return self._followed(func, args, options)
        device = options.get("device")
        is_new = not tensors and device in {None, _CPU}
        is_plain = options.get("layout") in {None, torch.strided} and not options.get("pin_memory")
        if is_new and is_plain and _takes_device(func):
            return self._begun(func, args, options)
        return func(*args, **options)

    def _begun(self, func: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Run or record an operation without tensor arguments that creates a tensor."""
        if _draws(func):
            state = _generator(options).get_state()
            real = func(*args, **options)
            if not self._is_large(real):
                return real
            form = _form(real)
            self._remember(form, StorageVersion(RecordedOp(func, args, options, state)), real)
            return form
        form = func(*args, **{**options, "device": _META})
        if not self._is_large(form):
            return func(*args, **options)
        self._remember(form, StorageVersion(RecordedOp(func, args, {**options, "device": _CPU, "dtype": form.dtype})))
        return form

    def _followed(self, func: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Run or record an operation on tensors without memory."""
        name = func._schema.name  # noqa: SLF001 - torch has no public accessor
        options = _unmoved(name, options)
        _demand_known(name, options.get("device"), draws=_draws(func))
        if name == _LOOKED_AT:
            return self._kitchen.numbers(self._recipe(args[0])).item()
        if name in _DRAWN_IN_PLACE:
            return self._drawn(func, args, options)
        if name == _MOVED and _stays(args[0], options):
            raise CannotRecord("A tensor was moved to where it is.")
        written = self._written(func, args, options)
        state = None
        if _draws(func):
            state = _generator(options).get_state()
            func(torch.empty_strided(args[0].size(), args[0].stride(), dtype=args[0].dtype), *args[1:], **options)
        given = self._formed(func, args, options)
        fresh = [each for each in tree_leaves(given) if isinstance(each, Tensor) and not self.knows(each)]
        if written:
            self._write(written, func, args, options)
            if fresh:
                raise CannotRecord(f"{name} both writes and makes tensors.")
        elif fresh:  # else it is a view
            call = self._call(func, args, options, state)
            numbers = [id(each) for each in tree_leaves(given) if isinstance(each, Tensor)]
            for each in fresh:
                if each.storage_offset():
                    raise CannotRecord(f"{name} gives a part of a storage.")
                form = _form(each)
                self._remember(each, StorageVersion(call, None, numbers.index(id(each)), _depth(call) + 1, form))
        return given

    def _drawn(self, func: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Draw random numbers for a tensor and record that; only recently used numbers stay in the cache."""
        target = args[0]
        if any(isinstance(each, Tensor) for each in tree_leaves((args[1:], options))):
            raise CannotRecord("Numbers were drawn by other tensors.")
        state = _generator(options).get_state()
        real = torch.empty(0, dtype=target.dtype)
        if _covers(target):
            real.set_(
                fresh_memory(target.untyped_storage().nbytes()).untyped_storage(), 0, target.size(), target.stride()
            )
        else:
            real = torch.empty_strided(target.size(), target.stride(), dtype=target.dtype)
        func(real, *args[1:], **options)
        version = self._write([target], func, args, options, state)
        if _covers(target):
            self._kitchen.keep(version, real.untyped_storage())
        return target

    def _write(
        self, written: Sequence[Tensor], func: Any, args: Sequence[Any], options: Mapping[str, Any], state: Any = None
    ) -> StorageVersion:
        """Add a version to the storage of each tensor that the operation writes to."""
        version = StorageVersion(RecordedOp.blank(0))
        for target in written:
            storage, before = self._now[id(target.untyped_storage())]
            over = func._schema.name in _WRITTEN_OVER and _covers(target)  # noqa: SLF001 - as above
            if over and not any(each is not target and self._shares(each, target) for each in tree_leaves(args)):
                before = StorageVersion(RecordedOp.blank(storage.nbytes()))
                self._now[id(storage)] = storage, before
            call = self._call(func, args, options, state)
            version = StorageVersion(call, before, 0, max(before.depth, _depth(call)) + 1)
            if version.depth > _DEEPEST:
                raise CannotRecord(f"More than {_DEEPEST} operations made one tensor.")
            self._now[id(storage)] = storage, version
        return version

    def _written(self, func: Any, args: Sequence[Any], options: Mapping[str, Any]) -> list[Tensor]:
        """Return the tensors that the operation writes to.

        Raises:
            CannotRecord: One of them has memory, or there are several.
        """
        written: list[Tensor] = []
        for number, argument in enumerate(func._schema.arguments):  # noqa: SLF001 - torch has no public accessor
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[number] if number < len(args) else options.get(argument.name)
                written += [each for each in tree_leaves(value) if isinstance(each, Tensor)]
        if not all(map(self.knows, written)):
            raise CannotRecord("Numbers of a large tensor were copied out of it.")
        if len(written) > 1:
            raise CannotRecord(f"{func._schema.name} writes to several tensors.")  # noqa: SLF001 - as above
        return written

    def _formed(self, func: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Return the result of the operation on the meta device."""

        def formed(value: Any) -> Any:
            if isinstance(value, Tensor):
                return value if value.is_meta else value.to(_META)
            return _META if value == _CPU and isinstance(value, torch.device) else value

        args, options = tree_map(formed, (tuple(args), dict(options)))
        return func(*args, **options)

    def _call(
        self, func: Any, args: Sequence[Any], options: Mapping[str, Any], state: Tensor | None = None
    ) -> RecordedOp:
        args, options = tree_map(self._argument, (tuple(args), dict(options)))
        return RecordedOp(func, args, options, state)

    def _argument(self, value: Any) -> Any:
        if isinstance(value, UntypedStorage):
            raise CannotRecord("Memory of a tensor was touched.")
        if not isinstance(value, Tensor):
            return value
        if self.knows(value):
            return self._recipe(value)
        # This includes a number that torch itself has moved to the meta device, as in ``weight[2] = 1``, where its
        # value is lost.
        if value.device != _CPU or self._is_large(value):
            raise CannotRecord("Numbers came from a tensor that was made in another way.")
        return value.detach().clone()

    def _recipe(self, tensor: Tensor) -> InitRecipe:
        if tensor.is_conj() or tensor.is_neg():
            raise CannotRecord("A tensor is another one's conjugate.")
        version = self._now[id(tensor.untyped_storage())][1]
        return InitRecipe(version, tensor.size(), tensor.stride(), int(tensor.storage_offset()), tensor.dtype)

    def _shares(self, value: Any, tensor: Tensor) -> bool:
        return self.knows(value) and value.untyped_storage() is tensor.untyped_storage()

    def _is_large(self, value: Any) -> bool:
        return type(value) in {Tensor, nn.Parameter} and value.numel() * value.element_size() >= self._large_bytes

    def _remember(self, form: Tensor, version: StorageVersion, real: Tensor | None = None) -> None:
        if version.depth > _DEEPEST:
            raise CannotRecord(f"More than {_DEEPEST} operations made one tensor.")
        storage = form.untyped_storage()
        self._now[id(storage)] = storage, version
        if real is not None:
            self._kitchen.keep(version, real.untyped_storage())


class _FakeDeviceMode(TorchFunctionMode):
    """Overrides attributes of recorded tensors, such as their device."""

    def __init__(self, recording: DeferredInit) -> None:
        super().__init__()
        self._recording = recording

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Report the CPU as the device of tensors without memory, and refuse access to their memory."""
        del types
        if args and not self._recording.is_busy and self._recording.knows(args[0]):
            if func in _SAID:
                return _SAID[func]
            if (name := getattr(func, "__name__", "")) in _LOOKED_INTO:
                self._recording.fail(f"{name} was called.")
                raise CannotRecord(f"{name} was called.")
        return func(*args, **(kwargs or {}))


def _demand_plain(model: nn.Module, found: Mapping[Tensor, InitRecipe]) -> None:
    """Refuse weights with attributes, hooks or references that would not move to the materialized weight."""
    if any(each.is_meta and each not in found for each in (*model.parameters(), *model.buffers())):
        raise CannotRecord("A tensor of the model is of a kind that cannot be recorded.")
    for weight in model.parameters():
        if weight.__dict__ or weight._backward_hooks or weight._post_accumulate_grad_hooks:  # noqa: SLF001 - no public accessor
            raise CannotRecord("A weight has attributes or hooks of its own.")
        if weakref.getweakrefs(weight) or weight._use_count() > 1:  # type: ignore[attr-defined] # noqa: SLF001 - as in torch's swap_tensors
            raise CannotRecord("Something else than the model refers to a weight.")


def _unmoved(name: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options without the meta device, which torch passes when it changes a tensor's layout."""
    return {**options, "device": None} if name == _MOVED and options.get("device") == _META else options


def _stays(tensor: Tensor, options: Mapping[str, Any]) -> bool:
    """Return True if the move would return the same tensor on the CPU."""
    return options.get("device") == _CPU and options.get("dtype") in {None, tensor.dtype}


def _share(tensors: Sequence[Tensor]) -> bool:
    return len({id(each.untyped_storage()) for each in tensors}) < len(tensors)


def _alive(since: int) -> list[Tensor]:
    """Return all live tensors on the meta device that were created since then."""
    return [each for each in objects_since(since) if type(each) in {Tensor, nn.Parameter} and each.is_meta]


def _draws(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def _demand_known(name: str, device: torch.device | None, *, draws: bool) -> None:
    if name in _OTHER_MEMORY:
        raise CannotRecord(f"{name} was called.")
    if device not in {None, _CPU}:
        raise CannotRecord(f"A tensor went to {device}.")
    if draws and name not in _DRAWN_IN_PLACE | _DRAWN_LIKE:
        raise CannotRecord(f"{name} draws from what lies in a tensor.")


def _takes_device(func: Any) -> bool:
    return any(argument.name == "device" for argument in func._schema.arguments)  # noqa: SLF001 - torch has no public accessor


def _generator(options: Mapping[str, Any]) -> Generator:
    return options.get("generator") or torch.default_generator


def _form(real: Tensor) -> Tensor:
    return torch.empty_strided(real.size(), real.stride(), dtype=real.dtype, device=_META)


def _covers(tensor: Tensor) -> bool:
    """Return True if the tensor covers its whole storage, each element once."""
    size_bytes = tensor.numel() * tensor.element_size()
    return size_bytes == tensor.untyped_storage().nbytes() and torch.ops.aten.is_non_overlapping_and_dense(tensor)


def _depth(call: RecordedOp) -> int:
    recipes = [each for each in tree_leaves((call.args, call.options)) if isinstance(each, InitRecipe)]
    return max((each.version.depth for each in recipes), default=0)


def _is_blank(version: StorageVersion) -> bool:
    name = getattr(getattr(version.call.operation, "_schema", None), "name", "")
    return version.before is None and name in _EMPTY
