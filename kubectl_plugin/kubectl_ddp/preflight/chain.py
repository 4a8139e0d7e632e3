"""List of all checks, in the order of the output, with those by the API server and those that need no cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from kubectl_ddp.preflight import controllers, namespace_checks, resources
from kubectl_ddp.preflight.env_rules import environment_findings
from kubectl_ddp.preflight.model import Check, PreflightFacts, Subject, read
from kubectl_ddp.spec import rules
from kubectl_ddp.util.finding import Finding, error, ok


def check_dry_run(subject: Subject, facts: PreflightFacts) -> Iterator[Finding]:
    """Check that the objects, and the pods created from them, pass all admission plugins and webhooks."""
    del subject
    refused = read(facts.refused)
    for why in dict.fromkeys(refused.values()):
        yield error(why)
    if not refused:
        yield ok("The API server takes the objects and their pods (dry run).")


def check_rights(subject: Subject, facts: PreflightFacts) -> Iterator[Finding]:
    """Check that the user has all rights that submit requires. All missing ones are reported together."""
    missing = read(facts.rights)
    if missing:
        yield error(
            f"You may not {', '.join(map(str, missing))} in namespace '{subject.namespace}'.", facts.rights_hint
        )
    else:
        yield ok(f"You may do all that it takes in namespace '{subject.namespace}'.")


def check_spec_warnings(subject: Subject, facts: PreflightFacts) -> Iterator[Finding]:
    """Warn about fields that are valid but probably not intended. ``submit`` prints the same warnings."""
    del facts
    yield from rules.warnings(subject.spec)


def check_environment(subject: Subject, facts: PreflightFacts) -> Iterator[Finding]:
    """Check the environment variables of the job for values that are wrong or without effect."""
    del facts
    yield from environment_findings(subject.spec)


RIGHTS: Final = "rights"
"""Name of the check of rights, whose failures are reported as Forbidden."""

OF_THE_JOB: Final[Sequence[Check]] = (
    Check("meaning", (), check_spec_warnings),
    Check("environment", (), check_environment),
)
"""Checks that need no cluster."""

OF_THE_CLUSTER: Final[Sequence[Check]] = (
    Check(RIGHTS, ("rights",), check_rights),
    Check("server", ("refused",), check_dry_run),
    Check("machines", ("nodes",), resources.check_node_resources),
    Check("gang", ("has_scheduling_group",), resources.check_native_gang),
    Check("queue", ("local_queues",), controllers.check_local_queue),
    Check("queue", ("queue_priority",), controllers.check_priority_class),
    Check("admission", ("frameworks",), controllers.check_engine_integration),
    Check("queue", ("local_queues", "pending"), controllers.check_pending_jobs),
    Check("controller", ("controller",), controllers.check_controller),
    Check("quota", ("quotas",), resources.check_resource_quota),
    Check("policies", ("policies",), namespace_checks.check_network_policies),
    Check("volumes", ("claims",), namespace_checks.check_volume_claims),
    Check("entries", ("secrets",), namespace_checks.check_secrets),
    Check("entries", ("config_maps",), namespace_checks.check_config_maps),
    Check("pull-secrets", ("account", "secrets"), namespace_checks.check_image_pull_secrets),
    Check("priority", ("priority",), namespace_checks.check_priority_class),
)


def run_checks(checks: Sequence[Check], subject: Subject, facts: PreflightFacts) -> list[Finding]:
    """Return the findings of the checks, without duplicates."""
    return list(dict.fromkeys(finding for check in checks for finding in check(subject, facts)))
