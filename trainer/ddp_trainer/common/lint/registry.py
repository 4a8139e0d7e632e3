"""Catalogue of all lint rules; :func:`check` applies them to one environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ddp_trainer.common.lint import rules_logging, rules_names, rules_rdma, rules_sockets, rules_torch, rules_values
from ddp_trainer.common.lint.model import Environment, Facts, Finding, Rule, Severity
from ddp_trainer.common.lint.values import split_list

_MODULES: Final = (rules_logging, rules_names, rules_rdma, rules_sockets, rules_torch, rules_values)

RULES: Final[Sequence[Rule]] = sorted(
    (rule for module in _MODULES for rule in vars(module).values() if isinstance(rule, Rule)),
    key=lambda rule: rule.id,
)

_ORDER: Final = list(Severity)


def check(environment: Environment, facts: Facts, ignored: str = "") -> list[Finding]:
    """Return the findings of all rules for one environment, the most severe first.

    Args:
        environment: The variables of a worker.
        facts: Facts about the node and the run.
        ignored: Ids of rules to leave out, separated by commas, or ``all``.
    """
    left_out = {word.upper() for word in split_list(ignored)}
    if "ALL" in left_out:
        return []
    found = [finding for rule in RULES if rule.id not in left_out for finding in rule.check(environment, facts)]
    return sorted(found, key=lambda finding: _ORDER.index(finding.severity))


def unknown_ids(ignored: str) -> list[str]:
    """Return the words of ``ignored`` that are not ids of rules."""
    known = {"ALL", *(rule.id for rule in RULES)}
    return [word for word in split_list(ignored) if word.upper() not in known]
