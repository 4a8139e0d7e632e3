"""Error handling of recorders: an error is logged once and never raised into the training."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Concatenate, Final, ParamSpec, TypeVar

_log: Final = logging.getLogger(__name__)

P = ParamSpec("P")
Recorder = TypeVar("Recorder")

_warned: Final[set[str]] = set()


def warn_once(what: str, error: Exception) -> None:
    """Log that ``what`` is not recorded, at most once per ``what``."""
    if what not in _warned:
        _warned.add(what)
        _log.warning("metrics: %s is not recorded (%s); training continues", what, error)


def suppress_errors(method: Callable[Concatenate[Recorder, P], None]) -> Callable[Concatenate[Recorder, P], None]:
    """Decorate ``method`` so that its errors become one warning."""

    @functools.wraps(method)
    def guarded(self: Recorder, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - training does not fail because of its metrics
            warn_once(method.__name__, error)

    return guarded
