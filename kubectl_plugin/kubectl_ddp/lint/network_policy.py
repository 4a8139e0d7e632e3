"""Evaluation of NetworkPolicies between the pods of one job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from kubectl_ddp.kube.objects import Object
from kubectl_ddp.lint.accessors import mapping, mappings, number, scalar_list, string_mapping

_MANY: Final = 1000
"""Number of ports from which a range counts as wide enough for NCCL's ephemeral ports."""

Labels = Mapping[str, str]


def selects(selector: object, labels: Labels) -> bool:
    """Return True if a label selector matches pods with these labels; an empty selector matches all.

    >>> selects({"matchLabels": {"app": "a"}}, {"app": "a", "x": "y"}), selects({}, {}), selects(None, {})
    (True, True, False)
    """
    if not isinstance(selector, Mapping):
        return False
    wanted = string_mapping(selector.get("matchLabels"))
    fits = all(labels.get(key) == value for key, value in wanted.items())
    return fits and all(_holds(each, labels) for each in mappings(selector.get("matchExpressions")))


def _holds(expression: Mapping[str, Any], labels: Labels) -> bool:
    key, values = str(expression.get("key")), scalar_list(expression.get("values"))
    match expression.get("operator"):
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
    return False


def blocking_policies(policies: Sequence[Object], own: Labels, peers: Sequence[Labels]) -> Iterator[tuple[str, str]]:
    """Yield direction and name of the policies that block pods labelled ``own`` from one of ``peers``."""
    for direction, side in (("Ingress", "from"), ("Egress", "to")):
        isolating = [each for each in policies if _applies_to(mapping(each.get("spec")), direction, own)]
        rules = [rule for each in isolating for rule in mappings(mapping(each.get("spec")).get(direction.lower()))]
        if isolating and not all(any(_allows_peer(rule, side, peer) for rule in rules) for peer in peers):
            yield direction, str(mapping(isolating[0].get("metadata")).get("name", "?"))


def _applies_to(spec: Mapping[str, Any], direction: str, own: Labels) -> bool:
    types = scalar_list(spec.get("policyTypes")) or ["Ingress", *(["Egress"] if "egress" in spec else [])]
    return direction in types and selects(spec.get("podSelector", {}), own)


def _allows_peer(rule: Mapping[str, Any], side: str, peer: Labels) -> bool:
    ends = mappings(rule.get(side))
    is_peer = not ends or any(_matches_peer(each, peer) for each in ends)
    ports = mappings(rule.get("ports"))
    return is_peer and (not ports or any(_covers_ephemeral_ports(each) for each in ports))


def _matches_peer(end: Mapping[str, Any], peer: Labels) -> bool:
    """Return True if a rule's peer may match; addresses and other namespaces always count as a match."""
    if "ipBlock" in end or "podSelector" not in end:
        return True
    return selects(end["podSelector"], peer)


def _covers_ephemeral_ports(port: Mapping[str, Any]) -> bool:
    if port.get("protocol", "TCP") != "TCP":
        return False
    return "port" not in port or number(port.get("endPort")) - number(port["port"]) >= _MANY
