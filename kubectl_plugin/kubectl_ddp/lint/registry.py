"""Registry of all rules about pods, and the check of one object by them and by the rules about variables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ddp_trainer.common.lint import registry as variables
from ddp_trainer.common.lint.model import Facts
from ddp_trainer.common.lint.model import Finding as RuleFinding
from ddp_trainer.common.lint.values import split_list
from kubectl_ddp.lint import rules_devices, rules_launch, rules_memory, rules_network, rules_placement, rules_security
from kubectl_ddp.lint.container import Container
from kubectl_ddp.lint.model import PodRule, Pods, Workload
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.util.finding import SEVERITIES, Finding, Severity
from kubectl_ddp.values.quantity import BadValue, Cpu

RULES: Final[Sequence[PodRule]] = sorted(
    (
        *rules_memory.RULES,
        *rules_devices.RULES,
        *rules_network.RULES,
        *rules_security.RULES,
        *rules_launch.RULES,
        *rules_placement.RULES,
    ),
    key=lambda rule: rule.id,
)


def check(workload: Workload, ignored: str = "", *, with_variables: bool = True) -> list[Finding]:
    """Return the findings for the pods of one object, the most severe first.

    Args:
        workload: Object to check.
        ignored: Ids of rules to leave out, separated by commas, or ``all``.
        with_variables: True to check the variables of its containers as well.
    """
    found = [each for pods in workload.pods for each in _of_pods(pods, workload, ignored, with_variables)]
    return sorted(dict.fromkeys(found), key=lambda finding: SEVERITIES.index(finding.severity))


def check_environment(spec: JobSpec, ignored: str = "", *, is_one_machine: bool = False) -> list[Finding]:
    """Return the findings for the environment variables of a job, the most severe first."""
    facts = Facts(
        nodes=spec.nnodes.maximum,
        nproc=spec.nproc,
        gpus=spec.gpus,
        cpus=spec.cpu.millis / 1000,
        is_one_machine=is_one_machine,
    )
    return [_finding(each) for each in variables.check(spec.env, facts, ignored)]


def _finding(found: RuleFinding, where: str = "") -> Finding:
    severity, subject = Severity(found.severity), where or found.name
    return Finding(severity, found.message, found.fix, (found.source,), subject, found.rule)


def _of_pods(pods: Pods, workload: Workload, ignored: str, with_variables: bool) -> Iterator[Finding]:
    where = f"{workload.where} {pods.role}".rstrip()
    left_out = {word.upper() for word in split_list(ignored)}
    for rule in RULES:
        if not left_out & {rule.id, "ALL"}:
            yield from (_finding(rule.finding(found), where) for found in rule.when(pods, workload))
    for container in pods.training_containers if with_variables else ():
        facts = _facts(container, pods, workload)
        yield from (_finding(each, where) for each in variables.check(container.environment, facts, ignored))


def _facts(container: Container, pods: Pods, workload: Workload) -> Facts:
    """Return the facts about the nodes that a manifest contains; only the command knows the number of workers."""
    nodes = sum(each.count for each in workload.training) or pods.count
    return Facts(nodes=nodes, gpus=container.gpus or None, cpus=_cores(container))


def _cores(container: Container) -> float | None:
    try:
        return Cpu.parse(container.limits.get("cpu", "")).millis / 1000
    except BadValue:
        return None


def unknown_ids(ignored: str) -> list[str]:
    """Return the words of ``ignored`` that are not the id of a rule, about pods or variables."""
    known = {rule.id for rule in RULES}
    return [word for word in variables.unknown_ids(ignored) if word.upper() not in known]
