"""Constraints of a job's options: ways to train that the trainer would refuse."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from ddp_trainer.common.layout_range import LayoutRange
from ddp_trainer.common.model_constraints import Violation
from ddp_trainer.common.option_conflicts import OptionCondition
from ddp_trainer.common.parallel_dims import Layout
from kubectl_ddp.plan.ranking import ChoiceCheck
from kubectl_ddp.plan.recomputation import FLAG, WHAT, Recomputation
from kubectl_ddp.plan.trainer_options import option_value, option_violations


def make_constraint(args: Sequence[str]) -> ChoiceCheck:
    """Return a function that checks whether the trainer refuses a way to train, given a job's arguments.

    Recomputation is part of the way, whatever the arguments contain, since a plan sets it itself.
    """

    @cache
    def find_violation(layout: Layout, again: Recomputation) -> Violation | None:
        def get_option(word: OptionCondition) -> str | None:
            return option_value(again.flags if word.flag in {FLAG, WHAT} else args, word)

        return next(option_violations(LayoutRange.of(layout), get_option), None)

    return lambda choice: find_violation(choice.layout, choice.recomputation)
