"""Build a model of which no large tensor has memory, while every random number is drawn in its turn.

Under :class:`DeferredInit`, what would be a large tensor on the CPU is one on torch's meta device: a shape. It says
that it is on the CPU, since ``nn.init`` and others do nothing for what is not. Operations that draw are made for real,
on memory that is let go of at once, so that generators go on as they would; all others are written down. What becomes
of it is a :class:`ddp_trainer.train.deferred_init.init_replay.InitRecipe` of each weight. Where something is done that
cannot be written down, as numbers that come from NumPy, or a look into memory, the recording fails, and says why: then
the model is to be built without it. Deferred initialisation of torchdistX (https://github.com/pytorch/torchdistx) is
the same idea, without the order of draws.
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
"""From here on tensors are recorded; smaller ones are made at once."""

_META: Final = torch.device("meta")
_CPU: Final = torch.device("cpu")
_DRAWN_IN_PLACE: Final = frozenset(
    f"aten::{name}_" for name in ("normal", "uniform", "exponential", "cauchy", "log_normal", "geometric", "random")
)
"""They draw as many numbers as a tensor has, whatever lies in it, and write them all."""
_DRAWN_LIKE: Final = frozenset({"aten::randn_like", "aten::rand_like", "aten::randint_like"})
_WRITTEN_OVER: Final = _DRAWN_IN_PLACE | {"aten::zero_", "aten::fill_", "aten::copy_"}
_OTHER_MEMORY: Final = frozenset({"aten::set_", "aten::resize_", "aten::resize_as_"})
_LOOKED_AT: Final = "aten::_local_scalar_dense"
_MOVED: Final = "aten::_to_copy"
_EMPTY: Final = frozenset({"aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty"})
_DEEPEST: Final = 128
_SAID: Final[Mapping[Any, object]] = {
    Tensor.device.__get__: _CPU,
    Tensor.is_cpu.__get__: True,  # type: ignore[attr-defined] # a property, other than torch's stub says
    Tensor.is_meta.__get__: False,  # type: ignore[attr-defined] # as above
}
_LOOKED_INTO: Final = frozenset(
    {"numpy", "__array__", "data_ptr", "untyped_storage", "storage", "_typed_storage", "__dlpack__", "share_memory_"}
)


class CannotRecord(Exception):
    """The message says what was done."""


class DeferredInit(TorchDispatchMode):  # type: ignore[no-untyped-call] # of torch
    """Around the building of one model."""

    def __init__(self, large_bytes: int = LARGE_BYTES) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # of torch
        self._large_bytes = large_bytes
        self._kitchen = ReplayExecutor()
        self._now: dict[int, tuple[UntypedStorage, StorageVersion]] = {}
        """By identity of a storage without memory, which is kept so that no other gets it."""
        self._why: str | None = None
        self._began = collections()
        self._pretence = _FakeDeviceMode(self)
        self.is_busy = False
        """With an operation, for which tensors are where they are."""

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
        """Make an operation, or write it down."""
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
        """It is of no use any more, whatever becomes of the error that says so."""
        self._why = self._why or why

    def abandon(self) -> None:
        """Give memory to what is held elsewhere than in the model, as in a cache, where it can be."""
        gc.collect()
        for tensor in self._held():
            with suppress(Exception):
                self._give_memory(tensor)
        self._now.clear()
        self._kitchen = ReplayExecutor()

    def knows(self, value: Any) -> bool:
        """Whether it is a tensor without memory, of which is known what would lie in it."""
        is_plain = type(value) in {Tensor, nn.Parameter} and value.layout is torch.strided
        return is_plain and id(value.untyped_storage()) in self._now

    def recipes(self, model: nn.Module) -> dict[Tensor, InitRecipe]:
        """Those of the model's weights that are on the meta device now; other tensors get memory.

        Raises:
            CannotRecord: something was done that cannot be done again.
        """
        if self._why is not None:
            raise CannotRecord(self._why)
        self._kitchen = ReplayExecutor()
        weights = set(map(id, model.parameters()))
        if _share(held := self._held()):
            gc.collect()  # a tenth of a second; it may be that nothing holds one of them any more
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
        """What there is without memory, but for tensors that are there because of a view of them."""
        found = [each for each in _alive(self._began) if self.knows(each)]
        seen_through = {id(each._base) for each in found if each._base is not None}  # noqa: SLF001 - documented
        return [each for each in found if id(each) not in seen_through]

    def _give_memory(self, tensor: Tensor) -> None:
        """To a buffer, say, which everything that holds it goes on holding."""
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
        """An operation that makes a tensor of nothing."""
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
        """An operation on tensors without memory."""
        name = func._schema.name  # noqa: SLF001 - torch's way to say it
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
        """Random numbers for a tensor, of which only those stay that are asked for soon."""
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
        """Let the storage of what is written to have a new version."""
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
        """Tensors that the operation writes to, each of which is one without memory, and in a storage of its own."""
        written: list[Tensor] = []
        for number, argument in enumerate(func._schema.arguments):  # noqa: SLF001 - torch's way to say it
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[number] if number < len(args) else options.get(argument.name)
                written += [each for each in tree_leaves(value) if isinstance(each, Tensor)]
        if not all(map(self.knows, written)):
            raise CannotRecord("Numbers of a large tensor were copied out of it.")
        if len(written) > 1:
            raise CannotRecord(f"{func._schema.name} writes to several tensors.")  # noqa: SLF001 - as above
        return written

    def _formed(self, func: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """What the operation gives, on the meta device."""

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
        # Also a number that torch itself has put on the device of a tensor, as in ``weight[2] = 1``, where it is lost.
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
    """For what a model asks of its tensors besides operations."""

    def __init__(self, recording: DeferredInit) -> None:
        super().__init__()
        self._recording = recording

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Say that what has no memory is on the CPU; refuse to say where."""
        del types
        if args and not self._recording.is_busy and self._recording.knows(args[0]):
            if func in _SAID:
                return _SAID[func]
            if (name := getattr(func, "__name__", "")) in _LOOKED_INTO:
                self._recording.fail(f"{name} was called.")
                raise CannotRecord(f"{name} was called.")
        return func(*args, **(kwargs or {}))


def _demand_plain(model: nn.Module, found: Mapping[Tensor, InitRecipe]) -> None:
    """Refuse weights that something hangs on, which would not come along to where they get memory."""
    if any(each.is_meta and each not in found for each in (*model.parameters(), *model.buffers())):
        raise CannotRecord("A tensor of the model is of a kind that cannot be recorded.")
    for weight in model.parameters():
        if weight.__dict__ or weight._backward_hooks or weight._post_accumulate_grad_hooks:  # noqa: SLF001 - no other way to ask
            raise CannotRecord("A weight has attributes or hooks of its own.")
        if weakref.getweakrefs(weight) or weight._use_count() > 1:  # type: ignore[attr-defined] # noqa: SLF001 - as torch's swap_tensors asks
            raise CannotRecord("Something else than the model refers to a weight.")


def _unmoved(name: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without the device that torch names where a tensor is laid out anew: its own, which is meta."""
    return {**options, "device": None} if name == _MOVED and options.get("device") == _META else options


def _stays(tensor: Tensor, options: Mapping[str, Any]) -> bool:
    """Whether a move would give the tensor itself on the CPU."""
    return options.get("device") == _CPU and options.get("dtype") in {None, tensor.dtype}


def _share(tensors: Sequence[Tensor]) -> bool:
    return len({id(each.untyped_storage()) for each in tensors}) < len(tensors)


def _alive(since: int) -> list[Tensor]:
    """All tensors on the meta device that anything holds, and that were made since then."""
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
    return any(argument.name == "device" for argument in func._schema.arguments)  # noqa: SLF001 - torch's way to say it


def _generator(options: Mapping[str, Any]) -> Generator:
    return options.get("generator") or torch.default_generator


def _form(real: Tensor) -> Tensor:
    return torch.empty_strided(real.size(), real.stride(), dtype=real.dtype, device=_META)


def _covers(tensor: Tensor) -> bool:
    """Whether it is all that lies in its storage, each number once."""
    size_bytes = tensor.numel() * tensor.element_size()
    return size_bytes == tensor.untyped_storage().nbytes() and torch.ops.aten.is_non_overlapping_and_dense(tensor)


def _depth(call: RecordedOp) -> int:
    recipes = [each for each in tree_leaves((call.args, call.options)) if isinstance(each, InitRecipe)]
    return max((each.version.depth for each in recipes), default=0)


def _is_blank(version: StorageVersion) -> bool:
    name = getattr(getattr(version.call.operation, "_schema", None), "name", "")
    return version.before is None and name in _EMPTY
