"""Peers of a job's NetworkPolicy."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any, Final

from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.values import dns
from kubectl_ddp.values.dns import DnsServer
from kubectl_ddp.values.metrics_ingress import NAMESPACE_NAME, Reader

METADATA_SERVICE: Final = "169.254.169.254/32"
"""Address at which clouds hand out credentials of the machine."""


def view(spec: JobSpec, api_servers: Sequence[str]) -> dict[str, Any]:
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
        "dns_peers": [_dns_peer(server) for server in spec.dns or dns.DEFAULT],
        "dns_ports": [{"port": port, "protocol": protocol} for port in dns.PORTS for protocol in ("UDP", "TCP")],
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
