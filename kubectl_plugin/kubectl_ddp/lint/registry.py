"""All rules about pods, and what they and those about variables come to for one object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ddp_trainer.common.lint import registry as variables
from ddp_trainer.common.lint.model import Facts, Severity
from ddp_trainer.common.lint.values import split_list
from kubectl_ddp.lint import rules_devices, rules_launch, rules_memory, rules_network, rules_placement, rules_security
from kubectl_ddp.lint.container import Container
from kubectl_ddp.lint.model import PodFinding, PodRule, Pods, Workload
from kubectl_ddp.spec.quantity import BadValue, Cpu

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

_ORDER: Final = list(Severity)


def check(workload: Workload, ignored: str = "", *, with_variables: bool = True) -> list[PodFinding]:
    """What is doubtful in the pods of one object, the worst first.

    Args:
        workload: the object.
        ignored: ids of rules to leave out, with commas, or ``all``.
        with_variables: whether the variables of its containers are looked at, too.
    """
    found = [each for pods in workload.pods for each in _of_pods(pods, workload, ignored, with_variables)]
    return sorted(dict.fromkeys(found), key=lambda placed: _ORDER.index(placed.finding.severity))


def _of_pods(pods: Pods, workload: Workload, ignored: str, with_variables: bool) -> Iterator[PodFinding]:
    where = f"{workload.where} {pods.role}".rstrip()
    left_out = {word.upper() for word in split_list(ignored)}
    for rule in RULES:
        if not left_out & {rule.id, "ALL"}:
            yield from (PodFinding(where, rule.finding(found)) for found in rule.when(pods, workload))
    for container in pods.training_containers if with_variables else ():
        facts = _facts(container, pods, workload)
        yield from (PodFinding(where, each) for each in variables.check(container.environment, facts, ignored))


def _facts(container: Container, pods: Pods, workload: Workload) -> Facts:
    """What a manifest says of the nodes; the number of workers is the command's to say."""
    nodes = sum(each.count for each in workload.training) or pods.count
    return Facts(nodes=nodes, gpus=container.gpus or None, cpus=_cores(container))


def _cores(container: Container) -> float | None:
    try:
        return Cpu.parse(container.limits.get("cpu", "")).millis / 1000
    except BadValue:
        return None


def unknown_ids(ignored: str) -> list[str]:
    """Of ``ignored``, what is no rule, neither of pods nor of variables."""
    known = {rule.id for rule in RULES}
    return [word for word in variables.unknown_ids(ignored) if word.upper() not in known]
