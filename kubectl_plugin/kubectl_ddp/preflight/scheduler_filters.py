"""Reasons why a pod cannot run on a machine: the scheduler's filters, one function each.

Each filter yields the reasons as phrases that follow the name of the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from kubectl_ddp.preflight.nodes import Machine
from kubectl_ddp.preflight.pod_requirements import PodRequirements
from kubectl_ddp.preflight.quantities import Amounts, format_quantity, number


def has_the_labels(pod: PodRequirements, machine: Machine) -> Iterator[str]:
    for key, value in pod.selector.items():
        if key not in machine.labels:
            yield f"the label {key}={value} is not set"
        elif machine.labels[key] != value:
            yield f"the label {key} is {machine.labels[key]}, not {value}"


def is_one_of_the_named(pod: PodRequirements, machine: Machine) -> Iterator[str]:
    """Yield a reason if no term of the required node affinity matches. A term matches if all of its expressions
    match.
    """
    if pod.affinity and not any(_term_holds(term, machine) for term in pod.affinity):
        wanted = sorted({each["key"] for term in pod.affinity for each in _expressions(term)})
        yield f"it does not match the affinity by {', '.join(wanted)}"


def _expressions(term: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ())]


def _term_holds(term: Mapping[str, Any], machine: Machine) -> bool:
    expressions = _expressions(term)
    return bool(expressions) and all(_holds(each, machine.labels.get(each["key"])) for each in expressions)


def _holds(expression: Mapping[str, Any], value: str | None) -> bool:
    values: Sequence[str] = expression.get("values") or ()
    number = int(value) if value is not None and value.isdecimal() else None
    holds: Mapping[str, Callable[[], bool]] = {
        "In": lambda: value in values,
        "NotIn": lambda: value not in values,
        "Exists": lambda: value is not None,
        "DoesNotExist": lambda: value is None,
        "Gt": lambda: number is not None and number > int(values[0]),
        "Lt": lambda: number is not None and number < int(values[0]),
    }
    return holds[expression["operator"]]()


def check_tolerations(pod: PodRequirements, machine: Machine) -> Iterator[str]:
    for taint in machine.taints:
        if not any(_toleration_matches(toleration, taint) for toleration in pod.tolerations):
            yield f"the taint {written(taint)} is not tolerated"


def written(taint: Mapping[str, str]) -> str:
    """Format a taint as kubectl does.

    >>> written({"key": "gpu", "value": "big", "effect": "NoSchedule"})
    'gpu=big:NoSchedule'
    """
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"


def _toleration_matches(toleration: Mapping[str, Any], taint: Mapping[str, str]) -> bool:
    if toleration.get("effect") not in {None, "", taint["effect"]}:
        return False
    if toleration.get("key") not in {None, "", taint["key"]}:
        return False
    return toleration.get("operator") == "Exists" or (toleration.get("value") or "") == (taint.get("value") or "")


def is_large_enough(pod: PodRequirements, machine: Machine) -> Iterator[str]:
    for name, amount in pod.wants.items():
        if amount > machine.whole.get(name, 0):
            has = format_quantity(name, machine.whole[name]) if machine.whole.get(name) else f"no {name}"
            yield f"it has {has} of {number(name, amount)}"


def check_free_resources(pod: PodRequirements, machine: Machine, taken_: Amounts) -> Iterator[str]:
    """Yield a reason for each requested resource of which too little is free."""
    for name, amount in pod.wants.items():
        whole = machine.whole.get(name, 0)
        free = max(0, whole - taken_.get(name, 0))
        if amount > free:
            yield f"{name}: asks {number(name, amount)}, has {number(name, free)} free of {number(name, whole)}"


Filter = Callable[[PodRequirements, Machine], Iterator[str]]

FILTERS: Final[Sequence[Filter]] = (has_the_labels, is_one_of_the_named, check_tolerations, is_large_enough)


def against(pod: PodRequirements, machine: Machine) -> str:
    """Return the first reason why a pod cannot run on an empty machine; empty if it can."""
    return next((why for filter_ in FILTERS for why in filter_(pod, machine)), "")
