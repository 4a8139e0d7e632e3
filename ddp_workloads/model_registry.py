"""Construction of models from texts such as ``gpt:layers=6,width=256``; see :func:`build`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from ddp_trainer.train.utils.errors import BadConfig

if TYPE_CHECKING:
    from torch import nn


MODELS: Final[Mapping[str, str]] = {
    "mlp": "ddp_workloads.vision:Mlp",
    "cnn": "ddp_workloads.vision:Cnn",
    "resnet18": "ddp_workloads.vision:resnet18",
    "resnet50": "ddp_workloads.vision:resnet50",
    "gpt": "ddp_workloads.gpt:Gpt",
}
"""Name → ``module:factory``. Only the module of the selected model is imported."""


def build(choice: str, **facts: int) -> nn.Module:
    """Return a new model for ``--model``.

    Args:
        choice: ``name`` or ``name:option=value,option=value``.
        **facts: Properties of the data, such as the number of classes. A factory receives those that it has a
            parameter for.

    Raises:
        BadConfig: The model or option does not exist, a value is invalid, or the model does not fit the data.
    """
    name, _, text = choice.partition(":")
    factory = _factory(name)
    parameters = inspect.signature(factory).parameters
    taken = {fact: value for fact, value in facts.items() if fact in parameters}
    needed = [
        parameter.name
        for parameter in parameters.values()
        if parameter.default is parameter.empty and parameter.name not in taken
    ]
    if needed:
        raise BadConfig(
            f"--model is {choice}, which needs {' and '.join(needed)}, and the samples of this task have none.",
            hint=f"Give one of {', '.join(_compatible_models(facts))}.",
        )
    defaults = {parameter.name: parameter.default for parameter in parameters.values() if parameter.name not in facts}
    return factory(**taken, **_options(choice, text, defaults))


def _factory(name: str) -> Callable[..., nn.Module]:
    if name not in MODELS:
        near = get_close_matches(name, MODELS, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"Give one of {', '.join(MODELS)}."
        raise BadConfig(f"There is no model {name!r}.", hint=hint)
    module, _, factory = MODELS[name].partition(":")
    return getattr(importlib.import_module(module), factory)  # type: ignore[no-any-return] # from the table above


def _compatible_models(facts: Mapping[str, int]) -> list[str]:
    """Return the names of the models that need only these facts."""
    parameters = {name: inspect.signature(_factory(name)).parameters.values() for name in MODELS}
    return [
        name
        for name, parameter in parameters.items()
        if all(one.default is not one.empty or one.name in facts for one in parameter)
    ]


def _options(choice: str, text: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if key not in defaults:
            near = get_close_matches(key, defaults, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"It has {', '.join(defaults) or 'no options'}."
            raise BadConfig(f"--model is {choice}, and the model has no option {key!r}.", hint=hint)
        kind = type(defaults[key])
        try:
            options[key] = kind(value)
        except ValueError:
            equals = ""
        if not equals or not 0 <= options[key] < float("inf"):
            wanted = "a whole number" if kind is int else "a number"
            raise BadConfig(f"--model is {choice}, with {part!r}.", hint=f"Give {key}= {wanted} from 0.")
    return options


def at_least(least: int, **options: int) -> None:
    """Refuse options that are too small.

    Raises:
        BadConfig: An option is less than ``least``.
    """
    for name, value in options.items():
        if value < least:
            raise BadConfig(f"The model's {name} is {value}.", hint=f"Give {least} or more.")


def share(**options: float) -> None:
    """Refuse options that are not a dropout probability.

    Raises:
        BadConfig: An option is not in 0 ≤ p < 1.
    """
    for name, value in options.items():
        if not 0 <= value < 1:
            raise BadConfig(f"The model's {name} is {value:g}.", hint="Give a number from 0 to less than 1.")
