"""Amounts of resources: what a pod asks for, in base units, and how that is written for a person."""

from __future__ import annotations

from typing import Final

from kubectl_ddp.backend import Object
from kubectl_ddp.checks.amounts import requests_of
from kubectl_ddp.spec.quantity import BadValue

_SUFFIXES: Final = {
    **{unit: 1024.0**power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)},
    **{unit: 1000.0**power for power, unit in enumerate(("k", "M", "G", "T", "P", "E"), start=1)},
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
}


def amount(text: str) -> float:
    """A Kubernetes quantity in base units. Raises BadValue.

    >>> amount("250m"), amount("2Gi"), amount("8")
    (0.25, 2147483648.0, 8.0)
    """
    number, factor = next(
        ((text.removesuffix(unit), size) for unit, size in _SUFFIXES.items() if text.endswith(unit)), (text, 1.0)
    )
    try:
        return float(number) * factor
    except ValueError:
        raise BadValue(f"'{text}' is no quantity") from None


def asked(pod: Object) -> dict[str, float]:
    """What a pod takes of its node, by resource, as the scheduler counts: with sidecars, overhead, and one pod."""
    return {name: wanted / 1000 for name, wanted in requests_of({"containers": (), **pod["spec"]}).items()}


def free(name: str, value: float) -> str:
    """An amount as it is written.

    >>> free("memory", 2147483648.0), free("cpu", 0.25), free("nvidia.com/gpu", 8.0)
    ('2Gi', '250m', '8')
    """
    if name in {"memory", "ephemeral-storage"} or name.startswith("hugepages-"):
        return f"{value / 2**30:.3g}Gi" if abs(value) >= 2**30 else f"{value / 2**20:.3g}Mi"
    if name == "cpu" and value != int(value):
        return f"{round(value * 1000)}m"
    return f"{value:g}"
