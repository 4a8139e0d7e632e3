"""Network of a job: fields that its fabric adds and that no job key sets, and peers of its NetworkPolicy.

None of the fields of a fabric needs a privilege.
"""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Sequence
from typing import Any, Final

from ddp_trainer.common.constants import Exit
from kubectl_ddp.fabrics.catalog import Target
from kubectl_ddp.render import pod
from kubectl_ddp.render.pod import literal
from kubectl_ddp.spec.fabric import object_entries
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.values import network_peers
from kubectl_ddp.values.network_peers import NAMESPACE_NAME, DnsServer, Reader

MULTUS: Final = "k8s.v1.cni.cncf.io/networks"
CHANNEL: Final = "channel"
"""Name of the claim for a channel of a ComputeDomain."""
TEMPLATES: Final = {
    Target.COMPUTE_DOMAIN: "compute-domain.yaml.j2",
    Target.CLAIM: "resource-claim-template.yaml.j2",
}


def fabric_view(spec: JobSpec, *, is_local: bool) -> dict[str, Any]:
    """Return the fabric's values for the templates; empty for this machine, which has no such network."""
    added = {} if is_local else {target: _of(spec, target) for target in Target}
    claims = [*added.get(Target.CLAIM, ()), *([CHANNEL] if added.get(Target.COMPUTE_DOMAIN) else ())]
    load = list(added.get(Target.LOAD, {}).values())
    libraries = list(added.get(Target.LIBRARY_PATH, {}).values())
    launch = pod.command(spec, pod.LAUNCH, is_local=is_local)
    return {
        "fabric_annotations": {} if is_local else added[Target.ANNOTATION] | _network_annotations(spec),
        "fabric_resources": added.get(Target.RESOURCE, {}),
        "node_labels": list(added.get(Target.NODE_LABEL, {})),
        "claims": {name: f"{spec.name}-{name}" for name in claims},
        "compute_domain_nodes": next(
            (int(nodes) + spec.spares for nodes in added.get(Target.COMPUTE_DOMAIN, {}).values()), None
        ),
        "devices": [_devices(value) for value in added.get(Target.CLAIM, {}).values()],
        "fabric_templates": [TEMPLATES[target] for target in TEMPLATES if added.get(target)],
        "launch_command": [*_shell(spec, load, libraries), *launch] if load or libraries else launch,
    }


def _of(spec: JobSpec, target: Target) -> dict[str, str]:
    """Return the additions of one kind, value by name."""
    return {entry.name: entry.value for entry in object_entries(spec) if entry.target == target}


def _network_annotations(spec: JobSpec) -> dict[str, str]:
    return {MULTUS: ",".join(spec.networks)} if spec.networks else {}


def _devices(value: str) -> dict[str, Any]:
    device_class, _, count = value.partition("=")
    amount = {"allocationMode": "All"} if count == "all" else {"allocationMode": "ExactCount", "count": int(count)}
    return {"deviceClassName": device_class, **amount}


def _shell(spec: JobSpec, load: Sequence[str], libraries: Sequence[str]) -> list[str]:
    """Return a shell that sources the vendor's scripts and starts what follows. The job's values take precedence."""
    lines = [_before_the_rest("LD_LIBRARY_PATH", libraries)] if libraries else []
    if load:
        names = sorted(name for name in (*spec.env, *spec.secret_env) if name.startswith("NCCL_"))
        lines.append(f'kept="$(declare -p {" ".join(names)})"' if names else "kept=")
        lines += [source_script(path) for path in load]
        lines.append('eval "$kept"')
    return ["bash", "-c", literal("\n".join([*lines, 'exec "$@"'])), pod.LAUNCHER]


def _before_the_rest(name: str, directories: Sequence[str]) -> str:
    return f'export {name}={":".join(directories)}"${{{name}:+:${name}}}"'


def source_script(path: str) -> str:
    """Return shell lines that source a vendor's script, or fail if it is missing."""
    missing = f"{path} is not there: the machine, its image or its cluster has not set up this network."
    return f"[[ -r {path} ]] || {{ echo {shlex.quote(missing)} >&2; exit {Exit.DO_NOT_RESTART:d}; }}\nsource {path}"


METADATA_SERVICE: Final = "169.254.169.254/32"
"""Address at which clouds hand out credentials of the machine."""


def network_view(spec: JobSpec, api_servers: Sequence[str]) -> dict[str, Any]:
    """Return the network settings for the template; ``metrics_peers`` is empty if all sources may read metrics.

    Args:
        spec: The job.
        api_servers: Addresses of the cluster's API servers, through which ``status`` and ``top`` read metrics; empty if
            the objects are only shown.
    """
    peers = [_peer(reader) for reader in spec.metrics_from]
    servers = [{"ipBlock": {"cidr": str(ipaddress.ip_network(address))}} for address in api_servers]
    return {
        "metrics_peers": [] if None in peers else [*peers, *servers],
        "egress": str(spec.egress),
        "metadata_service": METADATA_SERVICE,
        "dns_peers": [_dns_peer(server) for server in spec.dns or network_peers.DEFAULT],
        "dns_ports": [
            {"port": port, "protocol": protocol} for port in network_peers.PORTS for protocol in ("UDP", "TCP")
        ],
    }


def _peer(reader: Reader) -> dict[str, Any] | None:
    if reader.addresses:
        return {"ipBlock": {"cidr": reader.addresses}}
    return {"namespaceSelector": {"matchLabels": {reader.label: reader.value}}} if reader.label else None


def _dns_peer(server: DnsServer) -> dict[str, Any]:
    if server.addresses:
        return {"ipBlock": {"cidr": server.addresses}}
    return {
        "namespaceSelector": {"matchLabels": {NAMESPACE_NAME: server.namespace}},
        "podSelector": {"matchLabels": {server.label: server.value}},
    }
