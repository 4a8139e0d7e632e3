"""Rules about privileges beyond what training needs or the namespace allows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ddp_trainer.common.lint.model import Found, Severity
from kubectl_ddp.lint import sources
from kubectl_ddp.lint.accessors import mapping, mappings, scalar_list
from kubectl_ddp.lint.container import Container
from kubectl_ddp.lint.model import PodRule, Pods, Workload

_ENFORCED: Final = "pod-security.kubernetes.io/enforce"
_BASELINE: Final = frozenset(
    (
        *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE"),
        *("SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
    )
)
"""Capabilities that Pod Security level baseline allows a pod to add."""
_RESTRICTED: Final = frozenset({"NET_BIND_SERVICE"})


def _privileged(pods: Pods, _: Workload) -> Iterator[Found]:
    for container in pods.containers:
        if container.is_privileged:
            yield Found(container.name)


def _violates_pod_security(pods: Pods, workload: Workload) -> Iterator[Found]:
    level = workload.namespace_labels().get(_ENFORCED, "privileged")
    asked = {"baseline": _beyond_baseline, "restricted": _beyond_restricted}.get(level)
    if asked and (found := list(dict.fromkeys(asked(pods)))):
        yield Found(_ENFORCED, level, ", ".join(found))


def _beyond_baseline(pods: Pods) -> Iterator[str]:
    yield from (name for name in ("hostNetwork", "hostPID", "hostIPC") if pods.spec.get(name) is True)
    yield from (f"the hostPath of volume {each.get('name')}" for each in _volumes(pods) if "hostPath" in each)
    for container in pods.containers:
        if container.is_privileged:
            yield f"privileged: true of {container.name}"
        yield from (f"the capability {name} of {container.name}" for name in sorted(container.capabilities - _BASELINE))


def _volumes(pods: Pods) -> list[Mapping[str, Any]]:
    return mappings(pods.spec.get("volumes"))


def _beyond_restricted(pods: Pods) -> Iterator[str]:
    yield from _beyond_baseline(pods)
    for container in pods.containers:
        security = {**pods.security, **container.security}
        more = sorted(container.capabilities & (_BASELINE - _RESTRICTED))
        yield from (f"the capability {name} of {container.name}" for name in more)
        yield from (f"no {wanted} of {container.name}" for wanted in _missing(container, security))


def _missing(container: Container, security: Mapping[str, Any]) -> Iterator[str]:
    if security.get("runAsNonRoot") is not True:
        yield "runAsNonRoot: true"
    if container.security.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation: false"
    if "ALL" not in scalar_list(mapping(container.security.get("capabilities")).get("drop")):
        yield "capabilities: {drop: [ALL]}"
    if mapping(security.get("seccompProfile")).get("type") not in {"RuntimeDefault", "Localhost"}:
        yield "seccompProfile"


RULES: Final = (
    PodRule(
        id="K06",
        looks_for="`privileged: true`",
        when=_privileged,
        message="Container {name} may do everything on its machine.",
        fix="Delete it: IPC_LOCK is enough for RDMA, SYS_PTRACE for py-spy, device plugins give the devices.",
        source=sources.SECURITY,
    ),
    PodRule(
        id="K23",
        severity=Severity.ERROR,
        looks_for="what the namespace's level of Pod Security refuses",
        when=_violates_pod_security,
        message="The namespace enforces the level {value}, which refuses the pods for {detail}.",
        fix="Change the pods, or run them in another namespace.",
        source=sources.SECURITY,
    ),
)
