"""Calls of functions that the user provides, with a readable error if the function has the wrong form."""

from __future__ import annotations

import inspect
from typing import Any

from ddp_trainer.train.utils.errors import BadTask


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
