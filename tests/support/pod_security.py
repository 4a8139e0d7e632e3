"""Pod Security level ``restricted``, read from its definition and nothing of ours.

https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

VOLUMES: Final = frozenset(
    ("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret")
)
SYSCTLS: Final = frozenset(
    (
        *("kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start"),
        *("net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports"),
        *("net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl"),
        *("net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"),
    )
)
PROFILES: Final = frozenset({"RuntimeDefault", "Localhost"})


def beyond_restricted(spec: Mapping[str, Any]) -> list[str]:
    """Every field of a pod's spec for which a namespace that enforces ``restricted`` would refuse it."""
    return [
        *_of_the_pod(spec),
        *(found for container in _containers(spec) for found in _of_a_container(spec, container)),
    ]


def _containers(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        yield from spec.get(kind, ())


def _of_the_pod(spec: Mapping[str, Any]) -> Iterator[str]:
    yield from (name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name))
    for volume in spec.get("volumes", ()):
        yield from (f"volume {volume['name']}: {kind}" for kind in volume.keys() - {"name"} - VOLUMES)
    security = spec.get("securityContext", {})
    yield from (f"sysctl {sysctl['name']}" for sysctl in security.get("sysctls", ()) if sysctl["name"] not in SYSCTLS)
    if security.get("runAsUser") == 0:
        yield "runAsUser: 0"


def _of_a_container(spec: Mapping[str, Any], container: Mapping[str, Any]) -> Iterator[str]:
    own, name = container.get("securityContext", {}), container["name"]
    both = {**spec.get("securityContext", {}), **own}
    capabilities = own.get("capabilities", {})
    wrong = {
        "privileged": bool(own.get("privileged")),
        "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is not False,
        "capabilities.drop": "ALL" not in capabilities.get("drop", ()),
        "capabilities.add": bool(set(capabilities.get("add", ())) - {"NET_BIND_SERVICE"}),
        "runAsNonRoot": both.get("runAsNonRoot") is not True,
        "runAsUser": own.get("runAsUser") == 0,
        "seccompProfile": both.get("seccompProfile", {}).get("type") not in PROFILES,
        "procMount": own.get("procMount", "Default") != "Default",
        "hostPort": any(port.get("hostPort") for port in container.get("ports", ())),
    }
    yield from (f"{name}: {field}" for field, is_wrong in wrong.items() if is_wrong)
