"""All checks, in the order in which a person wants to read of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kubectl_ddp.checks import gang, kueue, meaning, needs, quota, server
from kubectl_ddp.checks.model import Check, Facts, Finding, Subject

OF_THE_JOB: Final[Sequence[Check]] = (
    Check(meaning.MEANING, (), meaning.is_meant),
    Check(meaning.ENVIRONMENT, (), meaning.environment_is_sound),
)
"""What needs no cluster; ``submit`` and ``lint`` say it anyway."""

OF_THE_CLUSTER: Final[Sequence[Check]] = (
    Check(server.RIGHTS, ("rights",), server.it_is_allowed),
    Check(server.SERVER, ("refused",), server.server_takes_it),
    Check(gang.MACHINES, ("nodes",), gang.fits_ever),
    Check(gang.ROOM, ("nodes", "pods"), gang.fits_now),
    Check(kueue.QUEUE, ("local_queues",), kueue.queue_is_there),
    Check(kueue.QUEUE, ("queue_priority",), kueue.priority_is_there),
    Check(kueue.ADMISSION, ("frameworks",), kueue.engine_is_admitted),
    Check(kueue.ADMISSION, ("local_queues", "cluster_queues"), kueue.quota_is_there),
    Check(kueue.QUEUE, ("local_queues", "pending"), kueue.others_wait),
    Check(quota.QUOTA, ("quotas",), quota.quotas_suffice),
    Check(needs.CLAIMS, ("claims",), needs.claims_are_there),
    Check(needs.ENTRIES, ("secrets",), needs.secrets_are_there),
    Check(needs.ENTRIES, ("config_maps",), needs.config_maps_are_there),
    Check(needs.PULL, ("account", "secrets"), needs.pull_secrets_are_there),
    Check(needs.PRIORITY, ("priority",), needs.priority_is_there),
)


def findings(checks: Sequence[Check], subject: Subject, facts: Facts) -> list[Finding]:
    """What the checks find, each thing once."""
    return list(dict.fromkeys(finding for check in checks for finding in check(subject, facts)))
