"""A ValidatingAdmissionPolicy asked on this machine: what it matches, and what it says, by a CEL evaluator of Python's.

It has none of Kubernetes' own functions, so the one that the policies use is added.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import celpy
from celpy import celtypes
from celpy.adapter import json_to_cel

Json = dict[str, Any]


def _join(items: Iterable[object], separator: str = "") -> celtypes.StringType:
    return celtypes.StringType(separator.join(map(str, items)))


def _contains(text: str, part: str) -> celtypes.BoolType:
    return celtypes.BoolType(part in text)


@functools.cache
def _program(expression: str) -> Any:
    environment = celpy.Environment()
    return environment.program(environment.compile(expression), functions={"join": _join, "contains": _contains})


@dataclass(frozen=True)
class Policy:
    """One policy, as the chart renders it."""

    rendered: Json

    def refusal(self, plural: str, item: Json, old: Json | None = None) -> str:
        """What it says of an object that is created, or comes after ``old``; empty when it lets it in."""
        operation = "CREATE" if old is None else "UPDATE"
        spec = self.rendered["spec"]
        if not any(self._matches(rule, operation, plural, item) for rule in spec["matchConstraints"]["resourceRules"]):
            return ""
        known = {
            "object": json_to_cel(item),
            "oldObject": None if old is None else json_to_cel(old),
            "request": json_to_cel({"operation": operation}),
            "variables": celtypes.MapType(),
        }
        if not all(_program(each["expression"]).evaluate(known) for each in spec["matchConditions"]):
            return ""
        for each in spec["variables"]:
            known["variables"][celtypes.StringType(each["name"])] = _program(each["expression"]).evaluate(known)
        refused = [each for each in spec["validations"] if not _program(each["expression"]).evaluate(known)]
        return " ".join(str(_program(each["messageExpression"]).evaluate(known)) for each in refused)

    @staticmethod
    def _matches(rule: Json, operation: str, plural: str, item: Json) -> bool:
        group, _, version = item["apiVersion"].rpartition("/")
        asked = (("operations", operation), ("resources", plural), ("apiGroups", group), ("apiVersions", version))
        return all({word, "*"} & set(rule[field]) for field, word in asked)
