"""All rules, and what they come to for one environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ddp_trainer.common.lint import rules_logging, rules_names, rules_rdma, rules_sockets, rules_torch, rules_values
from ddp_trainer.common.lint.model import Environment, Facts, Finding, Rule, Severity
from ddp_trainer.common.lint.values import words

RULES: Final[Sequence[Rule]] = sorted(
    (
        *rules_names.RULES,
        *rules_values.RULES,
        *rules_logging.RULES,
        *rules_sockets.RULES,
        *rules_rdma.RULES,
        *rules_torch.RULES,
    ),
    key=lambda rule: rule.id,
)

_ORDER: Final = list(Severity)


def check(environment: Environment, facts: Facts, ignored: str = "") -> list[Finding]:
    """What is doubtful, the worst first.

    Args:
        environment: the variables of a worker.
        facts: what is known beside.
        ignored: ids of rules to leave out, with commas, or ``all``.
    """
    left_out = {word.upper() for word in words(ignored)}
    if "ALL" in left_out:
        return []
    found = [finding for rule in RULES if rule.id not in left_out for finding in rule.check(environment, facts)]
    return sorted(found, key=lambda finding: _ORDER.index(finding.severity))


def unknown_ids(ignored: str) -> list[str]:
    """Of ``ignored``, what is no rule."""
    known = {"ALL", *(rule.id for rule in RULES)}
    return [word for word in words(ignored) if word.upper() not in known]
