"""Additional sources that may scrape a job's metrics, next to the API server."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final, Self

from kubectl_ddp.values.parsers import LABEL, LABEL_VALUE, QUALIFIED
from kubectl_ddp.values.quantity import BadValue

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
