"""Checks of a job that do not depend on the cluster: its fields and its environment variables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddp_trainer.common.constants import Env
from ddp_trainer.common.lint.model import Facts as Node
from ddp_trainer.common.lint.model import Severity
from ddp_trainer.common.lint.registry import check
from kubectl_ddp.preflight.model import Facts, Finding, Status, Subject
from kubectl_ddp.spec import rules

MEANING: Final = "meaning"
ENVIRONMENT: Final = "environment"
STATUSES: Final = {Severity.ERROR: Status.FAIL, Severity.WARNING: Status.WARN}


def check_spec_warnings(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Warn about fields that are valid but probably not intended. ``submit`` prints the same warnings."""
    del facts
    for doubt in rules.warnings(subject.spec):
        yield Finding(MEANING, Status.WARN, doubt.message, doubt.hint)


def check_environment(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Apply the rules of ``kubectl ddp lint`` to the environment of the job."""
    del facts
    spec = subject.spec
    node = Node(nodes=spec.nnodes.maximum, nproc=spec.nproc, gpus=spec.gpus, cpus=spec.cpu.millis / 1000)
    for finding in check(spec.env, node, spec.env.get(Env.LINT_IGNORE, "")):
        if finding.severity in STATUSES:
            yield Finding(ENVIRONMENT, STATUSES[finding.severity], f"{finding.rule}: {finding.message}", finding.fix)
