"""List of all checks, in the order of the output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kubectl_ddp.preflight import controller, gang, kueue, needs, policies, quota, server, spec_checks
from kubectl_ddp.preflight.model import Check, Facts, Subject
from kubectl_ddp.util.finding import Finding

RIGHTS: Final = "rights"
"""Name of the check of rights, whose failures are reported as Forbidden."""

OF_THE_JOB: Final[Sequence[Check]] = (
    Check("meaning", (), spec_checks.check_spec_warnings),
    Check("environment", (), spec_checks.check_environment),
)
"""Checks that need no cluster."""

OF_THE_CLUSTER: Final[Sequence[Check]] = (
    Check(RIGHTS, ("rights",), server.it_is_allowed),
    Check("server", ("refused",), server.server_takes_it),
    Check("machines", ("nodes",), gang.check_machines),
    Check("gang", ("has_scheduling_group",), gang.reaches_pods),
    Check("queue", ("local_queues",), kueue.check_local_queue),
    Check("queue", ("queue_priority",), kueue.check_priority_class),
    Check("admission", ("frameworks",), kueue.check_engine_integration),
    Check("queue", ("local_queues", "pending"), kueue.check_pending_jobs),
    Check("controller", ("controller",), controller.check_controller),
    Check("quota", ("quotas",), quota.check_resource_quota),
    Check("policies", ("policies",), policies.check_network_policies),
    Check("volumes", ("claims",), needs.check_volume_claims),
    Check("entries", ("secrets",), needs.check_secrets),
    Check("entries", ("config_maps",), needs.check_config_maps),
    Check("pull-secrets", ("account", "secrets"), needs.check_image_pull_secrets),
    Check("priority", ("priority",), needs.check_priority_class),
)


def run_checks(checks: Sequence[Check], subject: Subject, facts: Facts) -> list[Finding]:
    """Return the findings of the checks, without duplicates."""
    return list(dict.fromkeys(finding for check in checks for finding in check(subject, facts)))
