"""Checks of what the namespace holds: objects named by a job, and NetworkPolicies, which add up with the job's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from kubectl_ddp.kube.objects import Object, selects
from kubectl_ddp.preflight import model as of
from kubectl_ddp.preflight.model import PreflightFacts, Subject, Unknown, read
from kubectl_ddp.preflight.resources import copies, parse_nodes, requests_of
from kubectl_ddp.util.finding import Finding, Severity, error, ok, warning
from kubectl_ddp.values.parsers import Egress

MANY: Final = frozenset({"ReadWriteMany"})
READERS: Final = frozenset({"ReadWriteMany", "ReadOnlyMany"})


def check_volume_claims(subject: Subject, facts: PreflightFacts) -> Iterator[Finding]:
    """Check that every claim exists and can be mounted by all nodes of the job."""
    found = read(facts.claims)
    for name, writes in of.claims(subject).items():
        claim = found.get(name)
        yield (
            _claim(subject, facts, name, claim, writes=writes)
            if claim
            else _missing(subject, "PersistentVolumeClaim", name, "Create it, or leave the volume out.")
        )


def _claim(subject: Subject, facts: PreflightFacts, name: str, claim: Object, *, writes: bool) -> Finding:
    phase = (claim.get("status") or {}).get("phase", "")
    modes = set(claim["spec"].get("accessModes") or ())
    if "deletionTimestamp" in claim["metadata"] or phase == "Lost":
        what = "is lost: its volume is gone" if phase == "Lost" else "is being deleted"
        return error(f"The volume '{name}' {what}.", "Name another.")
    if subject.spec.largest_pod_count > 1 and not modes & (MANY if writes else READERS):
        return _for_one_machine(subject, facts, name, modes)
    if writes and "ReadOnlyMany" in modes and len(modes) == 1:
        return error(
            f"The volume '{name}' can only be read (ReadOnlyMany), and the job writes to it.",
            "Mount it with ':ro', or name another.",
        )
    if phase == "Pending":
        return warning(
            f"The volume '{name}' has no storage yet.",
            f"Some storage is created for the first pod that uses it; 'kubectl describe pvc {name}' shows the reason.",
        )
    return ok(f"The volume '{name}' is there ({', '.join(sorted(modes))}).")


def _for_one_machine(subject: Subject, facts: PreflightFacts, name: str, modes: set[str]) -> Finding:
    """Return the finding for a volume that one machine can mount: FAIL if no machine has room for all nodes."""
    modes_text, least = ", ".join(sorted(modes)) or "no access mode", subject.spec.nnodes.minimum
    fails = modes == {"ReadWriteOncePod"} and least > 1
    if not fails and not isinstance(facts.nodes, Unknown):
        requests = requests_of(subject.worker["spec"])
        fails = max((copies(requests, machine.allocatable) for machine in parse_nodes(facts.nodes)), default=0) < least
    return Finding(
        Severity.ERROR if fails else Severity.WARNING,
        f"The volume '{name}' can be mounted by one {'pod' if modes == {'ReadWriteOncePod'} else 'machine'} only "
        f"({modes_text}), and the job has up to {subject.spec.largest_pod_count} pods.",
        "Name a volume with the access mode ReadWriteMany; without --checkpoint-claim each node keeps its own copy.",
    )


def check_secrets(subject: Subject, facts: PreflightFacts) -> Iterator[Finding]:
    """Check that every Secret exists and has the named entries."""
    yield from _entries(subject, "Secret", of.secrets(subject), read(facts.secrets))


def check_config_maps(subject: Subject, facts: PreflightFacts) -> Iterator[Finding]:
    """Check that every ConfigMap exists and has the named entries."""
    yield from _entries(subject, "ConfigMap", of.config_maps(subject), read(facts.config_maps))


def _entries(
    subject: Subject, kind: str, wanted: Mapping[str, frozenset[str]], found: Mapping[str, frozenset[str] | None]
) -> Iterator[Finding]:
    for name, keys in wanted.items():
        has = found.get(name)
        if has is None:
            yield _missing(subject, kind, name, "Create it, or leave it out; pods cannot start without.")
        elif missing := sorted(keys - has):
            there = ", ".join(sorted(has)) or "nothing"
            yield error(f"The {kind} '{name}' has no entry {', '.join(missing)}.", f"It has {there}.")
        else:
            yield ok(f"The {kind} '{name}' is there.")


def _missing(subject: Subject, kind: str, name: str, hint: str) -> Finding:
    return error(f"{kind} '{name}' does not exist in namespace '{subject.namespace}'.", hint)


def check_priority_class(subject: Subject, facts: PreflightFacts) -> Iterator[Finding]:
    """Check that the priority class exists. Without it, the job is accepted and then every pod is rejected."""
    if read(facts.priority) is None:
        yield error(
            f"PriorityClass '{subject.spec.priority}' does not exist.", "'kubectl get priorityclasses' lists them."
        )
    else:
        yield ok(f"The PriorityClass '{subject.spec.priority}' is there.")


def check_image_pull_secrets(subject: Subject, facts: PreflightFacts) -> Iterator[Finding]:
    """Check that the image pull secrets of the service account exist. The kubelet only logs a missing one."""
    chosen = subject.spec.service_account
    account, found = read(facts.account), read(facts.secrets)
    if account is None and chosen is not None:
        yield _missing(subject, "ServiceAccount", chosen, "Create it, or leave serviceAccount out.")
    for name in pull_secrets(account):
        if found.get(name) is None:
            yield warning(
                f"The service account '{chosen or 'default'}' of namespace '{subject.namespace}' names the image pull "
                f"secret '{name}', which does not exist: a private image such as '{subject.spec.image}' cannot be "
                "fetched.",
                "Create it: kubectl create secret docker-registry.",
            )


def pull_secrets(account: Object | None) -> list[str]:
    """Return the names of the image pull secrets of a service account."""
    return [str(secret["name"]) for secret in (account or {}).get("imagePullSecrets") or () if secret.get("name")]


_MANY: Final = 1000
"""Number of ports from which a range counts as wide enough for the ephemeral ports of gloo and NCCL."""


def check_network_policies(subject: Subject, facts: PreflightFacts) -> Iterator[Finding]:
    """Check that a policy of the namespace, such as default-deny, leaves the job what it needs, and is not undone.

    The job's own policy allows its pods to reach one another, and all egress, or with closed egress DNS. Unrestricted
    egress has no rule, so a policy of the namespace that isolates the pods applies alone.
    """
    spec = subject.spec
    labels = subject.worker["metadata"].get("labels") or {}
    others = [policy for policy in read(facts.policies) if policy["metadata"]["name"] != spec.name]
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
        isolating = [policy for policy in policies if _applies_to(policy["spec"], direction, labels)]
        rules = [rule for policy in isolating for rule in policy["spec"].get(direction.lower()) or ()]
        if isolating and not any(_allows(rule, side, labels) for rule in rules):
            yield direction, isolating[0]["metadata"]["name"]


def _applies_to(spec: Mapping[str, Any], direction: str, labels: Mapping[str, str]) -> bool:
    types = spec.get("policyTypes") or ["Ingress", *(["Egress"] if "egress" in spec else [])]
    return direction in types and selects(spec.get("podSelector") or {}, labels)


def _allows(rule: Mapping[str, Any], side: str, labels: Mapping[str, str]) -> bool:
    """Return True if a rule allows the pods as peers, with enough ports."""
    ends, ports = rule.get(side), rule.get("ports")
    is_peer = not ends or any(_is_peer(end, labels) for end in ends)
    return is_peer and (not ports or any(_allows_ephemeral_ports(port) for port in ports))


def _is_peer(end: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return True if a rule's peer may be a pod of the job; addresses and other namespaces always may."""
    return "ipBlock" in end or "podSelector" not in end or selects(end["podSelector"], labels)


def _allows_ephemeral_ports(port: Mapping[str, Any]) -> bool:
    if port.get("protocol", "TCP") != "TCP":
        return False
    return "port" not in port or ("endPort" in port and port["endPort"] - port["port"] >= _MANY)
