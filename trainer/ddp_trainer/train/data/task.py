"""Interface between a run and the task that it trains, and the loading of tasks by name.

A :class:`Task` provides a model, samples, a loss and metrics. :func:`load_task` makes one for ``--task``. Four methods
are optional. ``init_weight(model, name, weight)`` initializes one weight, so a distributed model is never whole on any
rank. ``optimizer(parameters)`` replaces the optimizer of the flags. ``data_digest()`` returns a string that changes
when the data change; without it, the run hashes the number of samples and a few samples. ``show(model)`` returns a text
about the trained model for the end of the run. A model may have a mapping ``architecture`` with
properties that the shapes of its weights do not determine. A checkpoint with other values there is refused.

Functions that the user provides are called with a readable error if they have the wrong form.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar, runtime_checkable

from ddp_trainer.train.config.options import TaskOptions, flag
from ddp_trainer.train.utils.errors import BadConfig, BadTask

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from ddp_trainer.train.data.sample_order import BlockTable


Batch: TypeAlias = Any
"""Collated samples of a slice: a tensor, or tuples, lists and dicts of tensors."""


class Samples(Protocol):
    """Map-style data set, as in torch: sample ``i`` for ``i`` in ``range(len(...))``.

    Faster ways to read several samples are used if they exist, the fastest first:

    1. A method ``batch(ids)`` marked :func:`rowwise`. It takes an int64 tensor and returns a collated batch.
    2. A method ``batch(ids)`` without the mark.
    3. ``__getitems__(ids)``, torch's protocol for several samples.
    """

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


@runtime_checkable
class BlockSamples(Protocol):
    """Samples that are stored in blocks, as :class:`~ddp_trainer.train.data.shards.sharded_samples.ShardedSamples`.

    Each rank reads the blocks of its own batch slices only, in threads ahead of the steps.
    """

    blocks: BlockTable
    """Blocks of the data set."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...

    def read_block(self, first: int, count: int) -> list[Any]:
        """Return adjacent records of one block as they are stored; called by several threads."""

    def decode(self, record: Any) -> Any:
        """Return the sample of a record; called by the training process, with keyed random generators."""


_BatchMethod = TypeVar("_BatchMethod", bound=Callable[..., Any])


def rowwise(batch: _BatchMethod) -> _BatchMethod:
    """Mark a method ``batch(ids)`` as row by row: each row depends only on its id, on no other row or random draw.

    The samples of several steps may then be read in one call, and no random generator is seeded before it. A subclass
    that overrides ``batch`` does not inherit the mark.
    """
    batch.is_rowwise = True  # type: ignore[attr-defined] # functions accept attributes
    return batch


def is_rowwise(samples: object) -> bool:
    """Return True if the samples have a ``batch`` method marked :func:`rowwise`."""
    return getattr(getattr(samples, "batch", None), "is_rowwise", False)


@runtime_checkable
class Task(Protocol):
    """Training problem. It must not depend on the rank or on the number of ranks."""

    name: str
    """Identity of the task. A checkpoint of a task with another name is refused."""

    def model(self) -> nn.Module:
        """Return a new model on the CPU.

        Initial weights come from torch's default generator, which the run seeds before the call. For a task with
        ``init_weight`` the call is made under ``torch.device("meta")``.
        """

    def train_samples(self) -> Samples | Iterable[Any]:
        """Return the training samples, each of which is used exactly once per epoch.

        A stream is an iterable. A stream that ends has ``len()``.
        """

    def test_samples(self) -> Samples:
        """Return the samples for evaluation; may be empty."""

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the loss of each sample of the batch, shape ``(n,)``; not their mean."""

    def metrics(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """Return sums over the samples of the batch, by metric name.

        The run reports each as a mean over the test samples.
        """


@runtime_checkable
class SupportsWeightInit(Protocol):
    """Task that initializes each weight by itself, on any rank and in any order."""

    def init_weight(self, model: nn.Module, name: str, weight: Tensor) -> None:
        """Fill a weight or buffer of the model with its initial values, in place.

        The run seeds the random generators from its seed and ``name`` before each call.

        Args:
            model: The model, possibly without memory.
            name: Name of the weight or buffer in the model.
            weight: The complete tensor on the CPU. Only its values count; what ``model()`` writes is ignored.
        """


@runtime_checkable
class SupportsOptimizer(Protocol):
    """Task that provides its own optimizer."""

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """Return a new optimizer. Its learning rates are the peaks that the schedule scales."""


@runtime_checkable
class SupportsDataDigest(Protocol):
    """Task that provides a digest of its data."""

    def data_digest(self) -> str:
        """Return a string that changes when the training samples change."""


@runtime_checkable
class SupportsShow(Protocol):
    """Task that describes what its model has learnt."""

    def show(self, model: nn.Module) -> str:
        """Return a few lines about the trained model for the user.

        Called on rank 0 after the last evaluation, without gradients.
        """


BUILT_IN: Final[Mapping[str, str]] = {
    "digits": "ddp_workloads.digits:Digits",
    "text": "ddp_workloads.text:Text",
    "image-folder": "ddp_workloads.image_folder:ImageFolder",
}
"""Name → ``module:factory``."""

TASK_FLAGS: Final[Sequence[str]] = tuple(member.name for member in fields(TaskOptions))
"""Flags that belong to the task. A factory receives those that it has a parameter for, by name."""

_REQUIRED: Final[Sequence[str]] = ("name", "model", "train_samples", "test_samples", "losses", "metrics")


def load_task(name: str, flags: Mapping[str, Any] | None = None) -> Task:
    """Return the built-in task of this name, or the result of ``module:factory``.

    Args:
        name: Name of a built-in task, or ``module:factory``.
        flags: Values of the flags of :data:`TASK_FLAGS` that the user gave, by name.

    Raises:
        BadTask: The task, module or factory does not exist, or the factory returns something else than a task.
        BadConfig: A flag is given that the task does not take, or a flag that it needs is missing.
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
    return made  # type: ignore[no-any-return] # its attributes were checked above


def _factory(name: str, module_name: str, factory_name: str) -> Callable[[], Any]:
    # A script finds modules in its own directory. `python -m` does not always, so add the working directory.
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
    return factory  # type: ignore[no-any-return] # callable(), as checked above


def _arguments(name: str, factory: Callable[..., Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags as arguments after checking them against the parameters of the factory."""
    try:
        parameters = inspect.signature(factory).parameters
    except ValueError:
        # Some built-in callables have no signature, so call them without arguments.
        return {}
    for given in flags:
        if given not in parameters:
            raise BadConfig(f"The task {name!r} does not take {flag(given)}.", hint="Leave it out.")
    for parameter in parameters.values():
        required = parameter.default is parameter.empty and parameter.kind not in {
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        }
        if required and parameter.name in TASK_FLAGS and parameter.name not in flags:
            raise BadConfig(f"The task {name!r} needs {flag(parameter.name)}.", hint="Give it.")
        if required and parameter.name not in TASK_FLAGS:
            raise BadTask(
                f"{name} cannot be called without its argument {parameter.name!r}.",
                hint=f"Name a factory that needs none but {', '.join(TASK_FLAGS)}.",
            )
    return dict(flags)


_HOW: Final = "Give module:factory, and put the module's directory on PYTHONPATH or start from it."


def call_user_function(function: Any, whose: str, **arguments: object) -> Any:
    """Call a function of the user with these arguments, by position, and return its result.

    Args:
        function: Object to call.
        whose: Description of the function for error messages.
        **arguments: Positional arguments in order; the names appear in error messages only.

    Raises:
        BadTask: The object is not callable, or does not take these arguments.
    """
    names = ", ".join(arguments)
    if not callable(function):
        raise BadTask(f"{whose} is {kind_of(function)}, and no function.", hint=f"Let it be one that takes ({names}).")
    try:
        taken = inspect.signature(function, follow_wrapped=False)
    except ValueError:  # some built-in callables have no signature
        return function(*arguments.values())
    try:
        taken.bind(*arguments.values())
    except TypeError:
        raise BadTask(f"{whose} takes {taken}, and is called with ({names}).", hint="Let it take these.") from None
    return function(*arguments.values())


def kind_of(value: object) -> str:
    """Return the kind of a value as a phrase for error messages.

    >>> kind_of(None), kind_of([1])
    ('None', 'a value of type list')
    """
    return "None" if value is None else f"a value of type {type(value).__name__}"
