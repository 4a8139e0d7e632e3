"""Checks that objects named by a job exist: volumes, Secrets, ConfigMaps, a priority class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from kubectl_ddp.kube.objects import Object
from kubectl_ddp.preflight import subject as of
from kubectl_ddp.preflight.model import Facts, Subject, Unknown, read
from kubectl_ddp.preflight.nodes import parse_nodes
from kubectl_ddp.preflight.quantities import copies, requests_of
from kubectl_ddp.util.finding import Finding, Severity, error, ok, warning

MANY: Final = frozenset({"ReadWriteMany"})
READERS: Final = frozenset({"ReadWriteMany", "ReadOnlyMany"})


def check_volume_claims(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Check that every claim exists and can be mounted by all nodes of the job."""
    found = read(facts.claims)
    for name, writes in of.claims(subject).items():
        claim = found.get(name)
        yield (
            _claim(subject, facts, name, claim, writes=writes)
            if claim
            else _missing(subject, "PersistentVolumeClaim", name, "Create it, or leave the volume out.")
        )


def _claim(subject: Subject, facts: Facts, name: str, claim: Object, *, writes: bool) -> Finding:
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


def _for_one_machine(subject: Subject, facts: Facts, name: str, modes: set[str]) -> Finding:
    """Return the finding for a volume that one machine can mount: FAIL if no machine has room for all nodes."""
    said, least = ", ".join(sorted(modes)) or "no access mode", subject.spec.nnodes.minimum
    fails = modes == {"ReadWriteOncePod"} and least > 1
    if not fails and not isinstance(facts.nodes, Unknown):
        wants = requests_of(subject.worker["spec"])
        fails = max((copies(wants, machine.whole) for machine in parse_nodes(facts.nodes)), default=0) < least
    return Finding(
        Severity.ERROR if fails else Severity.WARNING,
        f"The volume '{name}' can be mounted by one {'pod' if modes == {'ReadWriteOncePod'} else 'machine'} only "
        f"({said}), and the job has up to {subject.spec.largest_pod_count} pods.",
        "Name a volume with the access mode ReadWriteMany; without --checkpoint-claim each node keeps its own copy.",
    )


def check_secrets(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Check that every Secret exists and has the named entries."""
    yield from _entries(subject, "Secret", of.secrets(subject), read(facts.secrets))


def check_config_maps(subject: Subject, facts: Facts) -> Iterator[Finding]:
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
    return error(f"There is no {kind} '{name}' in namespace '{subject.namespace}'.", hint)


def check_priority_class(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Check that the priority class exists. Without it, the job is accepted and then every pod is rejected."""
    if read(facts.priority) is None:
        yield error(
            f"There is no PriorityClass '{subject.spec.priority}'.", "'kubectl get priorityclasses' names them."
        )
    else:
        yield ok(f"The PriorityClass '{subject.spec.priority}' is there.")


def check_image_pull_secrets(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Check that the image pull secrets of the service account exist. The kubelet only logs a missing one."""
    chosen = subject.spec.service_account
    account, found = read(facts.account), read(facts.secrets)
    if account is None and chosen is not None:
        yield _missing(subject, "ServiceAccount", chosen, "Create it, or leave serviceAccount out.")
    for name in pull_secrets(account):
        if found.get(name) is None:
            yield warning(
                f"The service account '{chosen or 'default'}' of namespace '{subject.namespace}' names the image pull "
                f"secret '{name}', which is not there: a private image such as '{subject.spec.image}' cannot be "
                "fetched.",
                "Create it: kubectl create secret docker-registry.",
            )


def pull_secrets(account: Object | None) -> list[str]:
    """Return the names of the image pull secrets of a service account."""
    return [str(each["name"]) for each in (account or {}).get("imagePullSecrets") or () if each.get("name")]
