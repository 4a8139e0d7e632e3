"""What a run trains: a task gives a model, samples, a loss and metrics; the run does the rest.

A task may also have ``optimizer(parameters)``, which then replaces the one of the flags, and ``data_digest()``, a
string that changes when the data do; without one, the number of samples and a few of them are hashed. With
``show(model)`` it says at the end of a run, in words of its own, what was learnt. A model may have a mapping
``architecture`` of what the shapes of its weights do not say: a checkpoint with other values there is refused.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar, runtime_checkable

from ddp_trainer.train.config.config import flag
from ddp_trainer.train.utils.errors import BadConfig, BadTask

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

Batch: TypeAlias = Any
"""What the samples of a shard are collated to: a tensor, or tuples, lists and dicts of tensors."""


class Samples(Protocol):
    """A map-style dataset, as torch's: sample ``i`` for ``i`` in ``range(len(...))``.

    ``__getitems__(ids)``, torch's protocol for many samples at once, is used where there is one. A method
    ``batch(ids)`` that takes an int64 tensor and returns a collated batch is faster still, and one that is
    :func:`rowwise` the fastest.
    """

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


_BatchMethod = TypeVar("_BatchMethod", bound=Callable[..., Any])


def rowwise(batch: _BatchMethod) -> _BatchMethod:
    """Mark a method ``batch(ids)`` each of whose rows depends on one id alone: on no other row, and on no random draw.

    Then the samples of several steps may be read at once, and no generator has to be keyed before. A subclass with a
    ``batch`` of its own says so again or takes it back.
    """
    batch.is_rowwise = True  # type: ignore[attr-defined] # functions have room for it
    return batch


def is_rowwise(samples: object) -> bool:
    """Whether the samples have such a method."""
    return getattr(getattr(samples, "batch", None), "is_rowwise", False)


@runtime_checkable
class Task(Protocol):
    """A training problem. Nothing in it may depend on the rank or on the number of ranks."""

    name: str
    """Identity: a checkpoint of a task of another name is refused."""

    def model(self) -> nn.Module:
        """A new model, on the CPU; drawn from torch's default generator, which is seeded before."""

    def train_samples(self) -> Samples | Iterable[Any]:
        """What is learnt from; seen exactly once per epoch. A stream is an iterable; one with an end has ``len()``."""

    def test_samples(self) -> Samples:
        """What is evaluated on; may be empty."""

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """Loss of every sample of the batch, shape ``(n,)``; not their mean."""

    def metrics(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """Sums over the samples of the batch; reported as means over the test samples, under these names."""


@runtime_checkable
class ChoosesOptimizer(Protocol):
    """A task with an optimizer of its own."""

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """A new optimizer; its learning rates are the peaks that the schedule scales."""


@runtime_checkable
class DigestsData(Protocol):
    """A task that knows a digest of its data."""

    def data_digest(self) -> str:
        """Changes when the training samples change."""


@runtime_checkable
class ShowsModel(Protocol):
    """A task that can show what its model has learnt."""

    def show(self, model: nn.Module) -> str:
        """A few lines for the person who waits; called on rank 0 after the last evaluation, without gradients."""


BUILT_IN: Final[Mapping[str, str]] = {
    "digits": "ddp_trainer.train.tasks.digits:Digits",
    "text": "ddp_trainer.train.tasks.text:Text",
    "image-folder": "ddp_trainer.train.tasks.image_folder:ImageFolder",
}
"""Name → ``module:factory``."""

TASK_FLAGS: Final[Sequence[str]] = ("model", "data", "window", "image_size")
"""Flags that are the task's: a factory gets those that it has a parameter for, by name."""

_REQUIRED: Final[Sequence[str]] = ("name", "model", "train_samples", "test_samples", "losses", "metrics")


def load_task(name: str, flags: Mapping[str, Any] | None = None) -> Task:
    """The built-in task of this name, or what ``module:factory`` makes.

    Args:
        name: a name or ``module:factory``.
        flags: of :data:`TASK_FLAGS`, those that were given.

    Raises:
        BadTask: there is no such task, module or factory, or it makes something else.
        BadConfig: a flag is given that the task does not take, or one is missing that it needs.
    """
    module_name, colon, factory_name = BUILT_IN.get(name, name).partition(":")
    if not colon or not module_name or not factory_name:
        near = get_close_matches(name, BUILT_IN, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"Give {', '.join(BUILT_IN)}, or module:factory of your own."
        raise BadTask(f"There is no task {name!r}.", hint=hint)
    factory = _factory(name, module_name, factory_name)
    made = factory(**_arguments(name, factory, flags or {}))
    missing = [attribute for attribute in _REQUIRED if not hasattr(made, attribute)]
    if missing:
        raise BadTask(
            f"The task {name!r} makes a {type(made).__name__} without {', '.join(missing)}.",
            hint="Let the factory return an object with all that ddp_trainer.train.Task names.",
        )
    return made  # type: ignore[no-any-return] # what it has was just checked


def _factory(name: str, module_name: str, factory_name: str) -> Callable[[], Any]:
    # Where a script would find its neighbours, `python -m` does not look on every start: let it.
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        found = importlib.util.find_spec(module_name)
    except (ImportError, ValueError) as err:
        raise BadTask(f"The module of the task {name!r} cannot be found: {err}.", hint=_HOW) from None
    if found is None:
        raise BadTask(f"The task {name!r} names the module {module_name!r}, which is not on the path.", hint=_HOW)
    module = importlib.import_module(module_name)
    factory = getattr(module, factory_name, None)
    if factory is None:
        near = get_close_matches(factory_name, dir(module), n=1)
        hint = f"Did you mean {module_name}:{near[0]}?" if near else f"Define {factory_name} in {module.__file__}."
        raise BadTask(f"The module {module_name!r} has no {factory_name!r}.", hint=hint)
    if not callable(factory):
        kind = type(factory).__name__
        raise BadTask(f"{module_name}:{factory_name} is of type {kind}.", hint="Name a function or a class.")
    return factory  # type: ignore[no-any-return] # that it is callable was just checked


def _arguments(name: str, factory: Callable[..., Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that the factory has a parameter for."""
    try:
        parameters = inspect.signature(factory).parameters
    except ValueError:
        # Some built-in callables do not tell their parameters: try.
        return {}
    for given in flags:
        if given not in parameters:
            raise BadConfig(f"The task {name!r} does not take {flag(given)}.", hint="Leave it out.")
    for each in parameters.values():
        required = each.default is each.empty and each.kind not in {each.VAR_POSITIONAL, each.VAR_KEYWORD}
        if required and each.name in TASK_FLAGS and each.name not in flags:
            raise BadConfig(f"The task {name!r} needs {flag(each.name)}.", hint="Give it.")
        if required and each.name not in TASK_FLAGS:
            raise BadTask(
                f"{name} cannot be called without its argument {each.name!r}.",
                hint=f"Name a factory that needs none but {', '.join(TASK_FLAGS)}.",
            )
    return dict(flags)


_HOW: Final = "Give module:factory, and put the module's directory on PYTHONPATH or start from it."
