"""Address of Grafana, and of this project's dashboards in it with a job selected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode, urlsplit, urlunsplit

from ddp_trainer.common.metric_names import Dashboard
from kubectl_ddp.errors import NotFound, UsageError
from kubectl_ddp.kube.objects import Object

VARIABLE: Final = "KUBECTL_DDP_GRAFANA"
LABEL: Final = "app.kubernetes.io/name=grafana"
"""Label of Grafana's Service, in the charts grafana and kube-prometheus-stack."""
PORT: Final = 3000
"""Local port of a port-forward that the user opens: Grafana's default."""


@dataclass(frozen=True, slots=True)
class GrafanaService:
    """Grafana's Service in a cluster."""

    namespace: str
    name: str
    port: int

    @classmethod
    def of(cls, service: Object) -> GrafanaService:
        """Return the service with its first port, which serves the pages. A second port is for gossip between
        replicas.
        """
        metadata, ports = service["metadata"], service["spec"].get("ports") or [{"port": 80}]
        return cls(str(metadata["namespace"]), str(metadata["name"]), int(ports[0]["port"]))

    def __str__(self) -> str:
        return f"service/{self.name} in namespace {self.namespace}"


def parse_url(url: str, origin: str) -> str:
    """Validate and normalize the address of Grafana. Raises UsageError."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UsageError(f"{origin}: '{url}' is not a URL.", hint="Write it as https://grafana.example.com.")
    if parts.username or parts.password:
        raise UsageError(
            f"{origin} contains a user name or a password.", hint="Remove them; Grafana has its own login."
        )
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))


def address(base: str, dashboard: Dashboard, variables: Mapping[str, str | None]) -> str:
    """Return the address of a dashboard, with its variables set.

    >>> address("https://grafana.example.com", Dashboard.JOB, {"namespace": "team", "ddp_job": "digits"})
    'https://grafana.example.com/d/ddp-job?var-namespace=team&var-ddp_job=digits'
    """
    query = urlencode({f"var-{name}": value for name, value in variables.items() if value})
    return f"{base}/d/{dashboard}" + (f"?{query}" if query else "")


def only_service(services: Iterable[Object]) -> GrafanaService:
    """Return Grafana's only Service. Raises NotFound if there is none, UsageError if there are several."""
    # Skip headless Services, which connect Grafana's replicas.
    found = [GrafanaService.of(service) for service in services if service["spec"].get("clusterIP") != "None"]
    hint = f"Give its address with --grafana or ${VARIABLE}."
    if not found:
        raise NotFound(f"The cluster has no Service with the label {LABEL}.", hint=hint)
    if len(found) > 1:
        raise UsageError(f"There are several Grafanas: {', '.join(map(str, found))}.", hint=hint)
    return found[0]
