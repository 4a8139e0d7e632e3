"""Proxy of a cluster by the rules of Go's programs, which those of the Kubernetes client differ from."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit


def environment_proxy(server: str, environ: Mapping[str, str]) -> str:
    """Return the proxy of the environment for a server, by the rules of Go's programs; empty for none."""
    split = urlsplit(server)
    proxy = next((found for name in _names(f"{split.scheme}_proxy") if (found := environ.get(name))), "")
    exempt = next((found for name in _names("no_proxy") if (found := environ.get(name))), "")
    host = split.hostname or ""
    if not proxy or host == "localhost" or _is_loopback(host):
        return ""
    is_exempt = any(_matches(host, pattern) for word in exempt.split(",") if (pattern := word.strip()))
    return "" if is_exempt else proxy if "://" in proxy else f"http://{proxy}"


def _names(name: str) -> tuple[str, str]:
    return name.upper(), name


def _matches(host: str, pattern: str) -> bool:
    """Return whether a ``NO_PROXY`` entry matches the host: a name and its subdomains, an address, a network, or
    ``*``.
    """
    if pattern == "*":
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(pattern, strict=False)
    except ValueError:
        name = pattern.partition(":")[0].lstrip(".").lower()
        return host == name or host.endswith(f".{name}")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
