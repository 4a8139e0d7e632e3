"""Checks of lint rules about environment variables, the same for those of the launcher and of the plugin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddp_trainer.common.lint import Check, Facts, Finding, run_checks

Case = tuple[str, dict[str, str], dict[str, Any], str]
"""A rule, variables, facts, and what its sentence must say."""


def findings_of(
    checks: Sequence[Check], rule: str, environment: dict[str, str], facts: dict[str, Any]
) -> list[Finding]:
    return [finding for finding in run_checks(checks, environment, Facts(**facts)) if finding.rule == rule]


def assert_reports(checks: Sequence[Check], case: Case) -> None:
    *inputs, sentence = case
    findings = findings_of(checks, *inputs)
    assert any(sentence in str(finding) for finding in findings), findings
    assert all(found.fix.endswith((".", "?")) and found.source.startswith("https://") for found in findings)
