"""Checks of a job that do not depend on the cluster: its fields and its environment variables."""

from __future__ import annotations

from collections.abc import Iterator

from ddp_trainer.common.constants import Env
from kubectl_ddp.lint.registry import check_environment as lint_environment
from kubectl_ddp.preflight.model import Facts, Subject
from kubectl_ddp.spec import rules
from kubectl_ddp.util.finding import Finding, Severity


def check_spec_warnings(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Warn about fields that are valid but probably not intended. ``submit`` prints the same warnings."""
    del facts
    yield from rules.warnings(subject.spec)


def check_environment(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Apply the rules of ``kubectl ddp lint`` to the environment of the job."""
    del facts
    found = lint_environment(subject.spec, subject.spec.env.get(Env.LINT_IGNORE, ""))
    yield from (finding for finding in found if finding.severity is not Severity.INFO)
