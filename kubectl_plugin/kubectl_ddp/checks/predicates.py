"""Why a pod cannot be on a machine: the scheduler's filters, one function each.

Each returns what is against it, as words that go on after the machine's name; empty when nothing is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from kubectl_ddp.checks.amounts import shown
from kubectl_ddp.checks.footprint import Footprint
from kubectl_ddp.checks.machines import Machine


def _has_the_labels(pod: Footprint, machine: Machine) -> str:
    for key, value in pod.selector.items():
        if machine.labels.get(key) != value:
            has = f"is {machine.labels[key]}" if key in machine.labels else "is not set"
            return f"the label {key} {has}, not {value}" if key in machine.labels else f"the label {key} {has}"
    return ""


def _is_one_of_the_named(pod: Footprint, machine: Machine) -> str:
    """Required node affinity: one of the terms holds, and all of its expressions."""
    if not pod.affinity or any(_term_holds(term, machine) for term in pod.affinity):
        return ""
    wanted = sorted({each["key"] for term in pod.affinity for each in _expressions(term)})
    return f"it does not match the affinity by {', '.join(wanted)}"


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


def _is_tolerated(pod: Footprint, machine: Machine) -> str:
    for taint in machine.taints:
        if not any(_tolerates(toleration, taint) for toleration in pod.tolerations):
            value = f"={taint['value']}" if taint.get("value") else ""
            return f"the taint {taint['key']}{value}:{taint['effect']} is not tolerated"
    return ""


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, str]) -> bool:
    if toleration.get("effect") not in {None, "", taint["effect"]}:
        return False
    if toleration.get("key") not in {None, "", taint["key"]}:
        return False
    return toleration.get("operator") == "Exists" or (toleration.get("value") or "") == (taint.get("value") or "")


def _is_large_enough(pod: Footprint, machine: Machine) -> str:
    for name, amount in pod.wants.items():
        if amount > machine.whole.get(name, 0):
            has = shown(name, machine.whole[name]) if machine.whole.get(name) else f"no {name}"
            return f"it has {has} of {shown(name, amount).partition(' ')[0]}"
    return ""


FILTERS: Final[Sequence[Callable[[Footprint, Machine], str]]] = (
    _has_the_labels,
    _is_one_of_the_named,
    _is_tolerated,
    _is_large_enough,
)


def against(pod: Footprint, machine: Machine) -> str:
    """The first thing that keeps a pod off an empty machine; empty where it could run."""
    return next((why for filter_ in FILTERS if (why := filter_(pod, machine))), "")
