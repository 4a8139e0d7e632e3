"""List of all checks, in the order of the output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kubectl_ddp.preflight import gang, kueue, needs, quota, server, spec_checks
from kubectl_ddp.preflight.model import Check, Facts, Finding, Subject

OF_THE_JOB: Final[Sequence[Check]] = (
    Check(spec_checks.MEANING, (), spec_checks.check_spec_warnings),
    Check(spec_checks.ENVIRONMENT, (), spec_checks.check_environment),
)
"""Checks that need no cluster. ``submit`` and ``lint`` always run them."""

OF_THE_CLUSTER: Final[Sequence[Check]] = (
    Check(server.RIGHTS, ("rights",), server.it_is_allowed),
    Check(server.SERVER, ("refused",), server.server_takes_it),
    Check(gang.MACHINES, ("nodes",), gang.fits_empty_cluster),
    Check(gang.ROOM, ("nodes", "pods"), gang.fits_now),
    Check(kueue.QUEUE, ("local_queues",), kueue.check_local_queue),
    Check(kueue.QUEUE, ("queue_priority",), kueue.check_priority_class),
    Check(kueue.ADMISSION, ("frameworks",), kueue.check_engine_integration),
    Check(kueue.ADMISSION, ("local_queues", "cluster_queues"), kueue.check_queue_quota),
    Check(kueue.QUEUE, ("local_queues", "pending"), kueue.check_pending_jobs),
    Check(quota.QUOTA, ("quotas",), quota.check_resource_quota),
    Check(needs.CLAIMS, ("claims",), needs.check_volume_claims),
    Check(needs.ENTRIES, ("secrets",), needs.check_secrets),
    Check(needs.ENTRIES, ("config_maps",), needs.check_config_maps),
    Check(needs.PULL, ("account", "secrets"), needs.check_image_pull_secrets),
    Check(needs.PRIORITY, ("priority",), needs.check_priority_class),
)


def run_checks(checks: Sequence[Check], subject: Subject, facts: Facts) -> list[Finding]:
    """Return the findings of the checks, without duplicates."""
    return list(dict.fromkeys(finding for check in checks for finding in check(subject, facts)))
