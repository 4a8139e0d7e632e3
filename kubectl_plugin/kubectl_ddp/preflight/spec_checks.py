"""Checks of a job that do not depend on the cluster: its fields and its environment variables."""

from __future__ import annotations

from collections.abc import Iterator

from kubectl_ddp.preflight.env_rules import environment_findings
from kubectl_ddp.preflight.model import Facts, Subject
from kubectl_ddp.spec import rules
from kubectl_ddp.util.finding import Finding


def check_spec_warnings(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Warn about fields that are valid but probably not intended. ``submit`` prints the same warnings."""
    del facts
    yield from rules.warnings(subject.spec)


def check_environment(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Check the environment variables of the job for values that are wrong or without effect."""
    del facts
    yield from environment_findings(subject.spec)
