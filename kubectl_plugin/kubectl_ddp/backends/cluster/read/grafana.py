"""Lookup of Grafana's Service in all namespaces."""

from __future__ import annotations

from kubectl_ddp.backends.cluster.http.api import Api, collection
from kubectl_ddp.errors import NotFound, UsageError
from kubectl_ddp.kube.grafana import LABEL, VARIABLE, GrafanaService


def grafana(api: Api) -> GrafanaService:
    """Return Grafana's only Service. Raises NotFound if there is none, UsageError if there are several, Forbidden."""
    services, _ = api.items(collection("v1", "services", None), labelSelector=LABEL)
    # Skip headless Services, which connect Grafana's replicas.
    found = [GrafanaService.of(each) for each in services if each["spec"].get("clusterIP") != "None"]
    hint = f"Give its address with --grafana or ${VARIABLE}."
    if not found:
        raise NotFound(f"There is no Service with the label {LABEL} in the cluster.", hint=hint)
    if len(found) > 1:
        raise UsageError(f"There are several Grafanas: {', '.join(map(str, found))}.", hint=hint)
    return found[0]
