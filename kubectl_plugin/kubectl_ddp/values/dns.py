"""DNS servers that the pods of a job reach when its egress is closed."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final, Self

from kubectl_ddp.values.parsers import LABEL, LABEL_VALUE, QUALIFIED
from kubectl_ddp.values.quantity import BadValue


@dataclass(frozen=True, slots=True)
class DnsServer:
    """DNS server: pods of one namespace with one label, or a block of addresses."""

    namespace: str = ""
    label: str = ""
    value: str = ""
    addresses: str = ""
    """CIDR block; empty for pods."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``NAMESPACE/LABEL=VALUE`` of pods, or ``CIDR``.

        Raises:
            BadValue: If the text is neither.

        >>> DnsServer.parse("kube-system/k8s-app=kube-dns").label, DnsServer.parse("169.254.20.10").addresses
        ('k8s-app', '169.254.20.10/32')
        """
        if re.fullmatch(f"{LABEL}/{QUALIFIED}={LABEL_VALUE}", text):
            pods, _, value = text.partition("=")
            namespace, _, label = pods.partition("/")
            return cls(namespace=namespace, label=label, value=value)
        try:
            return cls(addresses=str(ipaddress.ip_network(text)))
        except ValueError:
            raise BadValue(
                f"'{text}' names no DNS server",
                hint="Write NAMESPACE/LABEL=VALUE of its pods, as in 'kube-system/k8s-app=kube-dns', or an address.",
            ) from None

    def __str__(self) -> str:
        return self.addresses or f"{self.namespace}/{self.label}={self.value}"


DEFAULT: Final = (DnsServer.parse("kube-system/k8s-app=kube-dns"), DnsServer.parse("169.254.20.10"))
"""Pods behind the Service ``kube-dns``, and NodeLocal DNSCache at its documented address."""
PORTS: Final = (53, 5353)
"""Ports of DNS. A NetworkPolicy applies to the port of the pod, which is 5353 if DNS runs without privileges."""
