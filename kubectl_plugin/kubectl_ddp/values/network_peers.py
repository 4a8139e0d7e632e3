"""Peers of a job's pods: DNS servers that they reach when egress is closed, and sources that may scrape metrics."""

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


NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
"""Label with the namespace's name, set by Kubernetes."""
EVERYONE: Final = "*"


@dataclass(frozen=True, slots=True)
class Reader:
    """Allowed source: pods of some namespaces, or addresses; everyone if both are empty."""

    label: str = ""
    """Label of the namespaces."""
    value: str = ""
    """Value of that label."""
    addresses: str = ""
    """CIDR block."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``NAMESPACE``, ``LABEL=VALUE`` of namespaces, ``CIDR`` or ``*``. Raises BadValue.

        >>> Reader.parse("monitoring"), Reader.parse("10.0.0.7")
        (Reader(label='kubernetes.io/metadata.name', value='monitoring', addresses=''), \
Reader(label='', value='', addresses='10.0.0.7/32'))
        """
        if text == EVERYONE:
            return cls()
        if match := re.fullmatch(rf"({QUALIFIED})=({LABEL_VALUE})", text):
            return cls(label=match[1], value=text.partition("=")[2])
        try:
            return cls(addresses=str(ipaddress.ip_network(text)))
        except ValueError:
            pass
        if re.fullmatch(rf"(?=.{{1,63}}$){LABEL}", text):
            return cls(label=NAMESPACE_NAME, value=text)
        raise BadValue(
            f"'{text}' is not a valid source of metrics requests",
            hint="Name a namespace, a LABEL=VALUE of namespaces, a block of addresses such as 10.0.0.0/24, or '*'.",
        )

    def __str__(self) -> str:
        if self.addresses:
            return self.addresses
        if not self.label:
            return EVERYONE
        return self.value if self.label == NAMESPACE_NAME else f"{self.label}={self.value}"


MONITORING: Final = Reader(label=NAMESPACE_NAME, value="monitoring")
"""Namespace of Prometheus in its operator's manifests and charts."""
