"""Ask a function of the user's how a model is cut, in such a way that a wrong form of it is refused in a sentence."""

from __future__ import annotations

import inspect
from typing import Any

from ddp_trainer.train.utils.errors import BadTask


def ask(function: Any, whose: str, **arguments: object) -> Any:
    """What it returns, called with these in their order.

    Raises:
        BadTask: it is no function, or does not take so many.
    """
    names = ", ".join(arguments)
    if not callable(function):
        raise BadTask(f"{whose} is {kind_of(function)}, and no function.", hint=f"Let it be one that takes ({names}).")
    try:
        taken = inspect.signature(function, follow_wrapped=False)
    except ValueError:  # some built-in callables do not tell
        return function(*arguments.values())
    try:
        taken.bind(*arguments.values())
    except TypeError:
        raise BadTask(f"{whose} takes {taken}, and is called with ({names}).", hint="Let it take these.") from None
    return function(*arguments.values())


def kind_of(value: object) -> str:
    """What kind of thing it is, in a sentence.

    >>> kind_of(None), kind_of([1])
    ('None', 'a value of type list')
    """
    return "None" if value is None else f"a value of type {type(value).__name__}"
