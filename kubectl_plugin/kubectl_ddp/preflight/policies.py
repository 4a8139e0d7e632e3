"""Check of the namespace's NetworkPolicies, which add up with the job's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from kubectl_ddp.kube.label_selector import selects
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.preflight.model import Facts, Subject, read
from kubectl_ddp.util.finding import Finding, error, ok, warning
from kubectl_ddp.values.parsers import Egress

_MANY: Final = 1000
"""Number of ports from which a range counts as wide enough for the ephemeral ports of gloo and NCCL."""


def check_network_policies(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Check that a policy of the namespace, such as default-deny, leaves the job what it needs, and is not undone.

    The job's own policy allows its pods to reach one another, and all egress, or with closed egress DNS. Unrestricted
    egress has no rule, so a policy of the namespace that isolates the pods applies alone.
    """
    spec = subject.spec
    labels = subject.worker["metadata"].get("labels") or {}
    others = [each for each in read(facts.policies) if each["metadata"]["name"] != spec.name]
    blocked = dict(_blocking_policies(others, labels))
    names = " and ".join(f"'{name}'" for name in dict.fromkeys(blocked.values()))
    whose = f"The NetworkPolicy '{blocked.get('Egress')}' of namespace '{subject.namespace}'"
    if "Egress" in blocked and spec.egress is Egress.UNRESTRICTED:
        yield error(
            f"{whose} denies its pods egress, also to one another and to DNS.",
            "Submit it with --egress closed, which allows both and nothing else.",
        )
    elif "Egress" in blocked and spec.egress is Egress.OPEN:
        yield warning(
            f"{whose} denies egress, and the job's own policy opens it for its pods: policies add up.",
            "Submit it with --egress closed, which allows its pods one another and DNS: all that the job itself needs.",
        )
    elif blocked:
        yield ok(f"The NetworkPolicy {names} isolates its pods; the job's own policy allows what the job itself needs.")


def _blocking_policies(policies: Sequence[Object], labels: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield direction and name of the policies that block pods with these labels from one another."""
    for direction, side in (("Ingress", "from"), ("Egress", "to")):
        isolating = [each for each in policies if _isolates(each["spec"], direction, labels)]
        rules = [rule for each in isolating for rule in each["spec"].get(direction.lower()) or ()]
        if isolating and not any(_allows(rule, side, labels) for rule in rules):
            yield direction, isolating[0]["metadata"]["name"]


def _isolates(spec: Mapping[str, Any], direction: str, labels: Mapping[str, str]) -> bool:
    types = spec.get("policyTypes") or ["Ingress", *(["Egress"] if "egress" in spec else [])]
    return direction in types and selects(spec.get("podSelector") or {}, labels)


def _allows(rule: Mapping[str, Any], side: str, labels: Mapping[str, str]) -> bool:
    """Return True if a rule allows the pods as peers, with enough ports."""
    ends, ports = rule.get(side), rule.get("ports")
    is_peer = not ends or any(_is_peer(each, labels) for each in ends)
    return is_peer and (not ports or any(_covers_ephemeral_ports(each) for each in ports))


def _is_peer(end: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return True if a rule's peer may be a pod of the job; addresses and other namespaces always may."""
    return "ipBlock" in end or "podSelector" not in end or selects(end["podSelector"], labels)


def _covers_ephemeral_ports(port: Mapping[str, Any]) -> bool:
    if port.get("protocol", "TCP") != "TCP":
        return False
    return "port" not in port or ("endPort" in port and port["endPort"] - port["port"] >= _MANY)
