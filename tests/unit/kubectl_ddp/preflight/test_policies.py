"""NetworkPolicies of the namespace beside the job's own."""

from __future__ import annotations

from typing import Any

import pytest

from kubectl_ddp.kube.objects import Object
from kubectl_ddp.preflight.chain import OF_THE_CLUSTER, run_checks
from kubectl_ddp.util.finding import Severity
from kubectl_ddp.values.parsers import Egress
from tests.support.cluster_facts import a_subject, facts

NOTHING = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
INGRESS = {"podSelector": {}, "policyTypes": ["Ingress"]}
OTHERS = {"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Egress"]}
ALL = {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{}]}


def to_ports(port: Any) -> Any:
    return ALL | {"egress": [{"ports": [port]}]}


def to_peer(peer: Any) -> Any:
    return ALL | {"egress": [{"to": [peer]}]}


def policy(spec: Any, name: str = "default-deny") -> Object:
    return {"kind": "NetworkPolicy", "metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize(
    ("egress", "spec", "severity"),
    [
        (Egress.CLOSED, NOTHING, Severity.OK),
        (Egress.OPEN, NOTHING, Severity.WARNING),
        (Egress.UNRESTRICTED, NOTHING, Severity.ERROR),
        (Egress.UNRESTRICTED, INGRESS, Severity.OK),
        (Egress.OPEN, INGRESS, Severity.OK),
        (Egress.OPEN, OTHERS, None),
        (Egress.UNRESTRICTED, ALL, None),
        (Egress.UNRESTRICTED, to_ports({"port": 29500}), Severity.ERROR),
        (Egress.UNRESTRICTED, to_ports({"port": "rendezvous"}), Severity.ERROR),
        (Egress.UNRESTRICTED, to_ports({"protocol": "UDP"}), Severity.ERROR),
        (Egress.UNRESTRICTED, to_ports({"port": 1024, "endPort": 65535}), None),
        (Egress.UNRESTRICTED, to_peer({"podSelector": {"matchLabels": {"app": "web"}}}), Severity.ERROR),
        (Egress.UNRESTRICTED, to_peer({"podSelector": {}}), None),
        (Egress.UNRESTRICTED, to_peer({"ipBlock": {"cidr": "10.0.0.0/8"}}), None),
    ],
)
def test_a_policy_that_isolates_pods_is_named_with_a_fix(egress: Egress, spec: Any, severity: Severity | None) -> None:
    known = facts(policies=[policy(spec)])
    found = [item for item in run_checks(OF_THE_CLUSTER, a_subject(egress=egress), known) if item.subject == "policies"]
    assert [item.severity for item in found] == ([] if severity is None else [severity])
    for item in found:
        assert "'default-deny'" in item.message
        assert "--egress closed" in item.hint or severity is Severity.OK


def test_the_policy_of_the_job_itself_is_none_of_the_namespace() -> None:
    subject = a_subject(egress=Egress.UNRESTRICTED)
    known = facts(policies=[policy(NOTHING, subject.spec.name)])
    assert [finding for finding in run_checks(OF_THE_CLUSTER, subject, known) if finding.subject == "policies"] == []
