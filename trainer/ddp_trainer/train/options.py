"""How a step is computed: options of a run as a table, one line each, from which the flags are made.

Unlike what stands in :mod:`ddp_trainer.train.config` itself, few runs change any of these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class StrategyName(StrEnum):
    """How the ranks' copies of the model stay one model."""

    DDP = "ddp"
    SINGLE = "single"


class OptionGroup(StrEnum):
    """Headings in ``--help``."""

    STRATEGY = "strategy"
    KEEPING = "what is kept"
    EVALUATION = "evaluation"
    REPORTS = "reports"


def flagged(
    group: OptionGroup,
    help_text: str,
    *,
    parse: Callable[[str], Any] | None = None,
    metavar: str | None = None,
) -> dict[str, Any]:
    """A field's flag; without ``parse`` it is a switch, and one that is on by default has a ``--no-`` form."""
    return {"group": group, "help": help_text, "parse": parse, "metavar": metavar}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The table. :class:`ddp_trainer.train.config.Config` has all of it."""

    strategy: StrategyName = field(
        default=StrategyName.DDP,
        metadata=flagged(OptionGroup.STRATEGY, "how the ranks' copies stay one model", parse=StrategyName),
    )
