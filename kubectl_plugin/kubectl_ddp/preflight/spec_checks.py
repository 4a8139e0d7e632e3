"""Checks of a job that do not depend on the cluster: its fields and its environment variables."""

from __future__ import annotations

from collections.abc import Iterator

from ddp_trainer.common.constants import Env
from ddp_trainer.common.lint import registry as lint
from ddp_trainer.common.lint.model import Facts as RunFacts
from kubectl_ddp.preflight.model import Facts, Subject
from kubectl_ddp.spec import rules
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.util.finding import Finding, Severity


def check_spec_warnings(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Warn about fields that are valid but probably not intended. ``submit`` prints the same warnings."""
    del facts
    yield from rules.warnings(subject.spec)


def check_environment(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Check the environment variables of the job for values that are wrong or without effect."""
    del facts
    yield from environment_findings(subject.spec)


def environment_findings(spec: JobSpec, *, is_one_machine: bool = False) -> Iterator[Finding]:
    """Yield findings about the environment variables of a job, by the rules that its launcher applies again.

    Args:
        spec: The job.
        is_one_machine: True if all nodes are on one machine, as in a local job.
    """
    facts = RunFacts(
        nodes=spec.nnodes.maximum,
        nproc=spec.nproc,
        gpus=spec.gpus,
        cpus=spec.cpu.millis / 1000,
        is_one_machine=is_one_machine,
    )
    for found in lint.check(spec.env, facts, spec.env.get(Env.LINT_IGNORE, "")):
        yield Finding(Severity(found.severity), found.message, found.fix, (found.source,), found.name, found.rule)
