"""A ValidatingAdmissionPolicy asked on this machine: what it matches, and what it says, by a CEL evaluator of Python's.

It has none of Kubernetes' own functions, so those that the policies use are added.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import celpy
from celpy import celtypes
from celpy.adapter import json_to_cel

Json = dict[str, Any]


def _join(items: Iterable[object], separator: str = "") -> celtypes.StringType:
    return celtypes.StringType(separator.join(map(str, items)))


def _contains(text: str, part: str) -> celtypes.BoolType:
    return celtypes.BoolType(part in text)


def _check(authorizer: celtypes.MapType, verb: str) -> celtypes.BoolType:
    where = "" if "namespace" in authorizer else " everywhere"
    return celtypes.BoolType(f"{verb} {authorizer['resource']}.{authorizer['group']}{where}" in authorizer["may"])


def _narrowed(authorizer: celtypes.MapType, key: str, value: str) -> celtypes.MapType:
    return celtypes.MapType({**authorizer, celtypes.StringType(key): value})


_FUNCTIONS: Final = {
    "join": _join,
    "contains": _contains,
    "group": lambda authorizer, name: _narrowed(authorizer, "group", name),
    "resource": lambda authorizer, name: _narrowed(authorizer, "resource", name),
    "namespace": lambda authorizer, name: _narrowed(authorizer, "namespace", name),
    "check": _check,
    "allowed": lambda decision: decision,
}


@functools.cache
def _program(expression: str) -> Any:
    environment = celpy.Environment()
    return environment.program(environment.compile(expression), functions=_FUNCTIONS)


@dataclass(frozen=True)
class Policy:
    """One policy, as the chart renders it."""

    rendered: Json

    def error_response(
        self, plural: str, item: Json | None, old: Json | None = None, *, may: Iterable[str] = ()
    ) -> str:
        """Return the message of the policy, empty if it admits the request.

        Args:
            plural: Resource of the object.
            item: The object; None if it is deleted.
            old: The object before the change; None if it is created.
            may: Rights of the requester in the namespace, as ``VERB RESOURCE.GROUP``, and with `` everywhere`` in all.
        """
        operation = "CREATE" if old is None else "UPDATE" if item is not None else "DELETE"
        spec = self.rendered["spec"]
        api_version = str((item or old or {})["apiVersion"])
        if not any(
            self._matches(rule, operation, plural, api_version) for rule in spec["matchConstraints"]["resourceRules"]
        ):
            return ""
        known = {
            "object": None if item is None else json_to_cel(item),
            "oldObject": None if old is None else json_to_cel(old),
            "request": json_to_cel({"operation": operation, "namespace": "training"}),
            "authorizer": json_to_cel({"may": [*may]}),
            "variables": celtypes.MapType(),
        }
        if not all(_program(variable["expression"]).evaluate(known) for variable in spec["matchConditions"]):
            return ""
        for variable in spec["variables"]:
            known["variables"][celtypes.StringType(variable["name"])] = _program(variable["expression"]).evaluate(known)
        refused = [variable for variable in spec["validations"] if not _program(variable["expression"]).evaluate(known)]
        return " ".join(
            variable["message"]
            if "message" in variable
            else str(_program(variable["messageExpression"]).evaluate(known))
            for variable in refused
        )

    @staticmethod
    def _matches(rule: Json, operation: str, plural: str, api_version: str) -> bool:
        group, _, version = api_version.rpartition("/")
        request = (("operations", operation), ("resources", plural), ("apiGroups", group), ("apiVersions", version))
        return all({word, "*"} & set(rule[field]) for field, word in request)
