"""Check of the namespace's NetworkPolicies, which add up with the job's own."""

from __future__ import annotations

from collections.abc import Iterator

from kubectl_ddp.lint.accessors import mapping, string_mapping
from kubectl_ddp.lint.network_policy import blocking_policies
from kubectl_ddp.preflight.model import Facts, Subject, read
from kubectl_ddp.util.finding import Finding, error, ok, warning
from kubectl_ddp.values.parsers import Egress


def check_network_policies(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Check that a policy of the namespace, such as default-deny, leaves the job what it needs, and is not undone.

    The job's own policy allows its pods to reach one another, and all egress, or with closed egress DNS. Unrestricted
    egress has no rule, so a policy of the namespace that isolates the pods applies alone.
    """
    spec = subject.spec
    own = string_mapping(mapping(subject.worker["metadata"]).get("labels"))
    others = [each for each in read(facts.policies) if mapping(each.get("metadata")).get("name") != spec.name]
    blocked = dict(blocking_policies(others, own, [own]))
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
