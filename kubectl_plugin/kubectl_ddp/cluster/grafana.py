"""Finds Grafana's Service, in whichever namespace it is."""

from __future__ import annotations

from kubectl_ddp.cluster.api import Api
from kubectl_ddp.cluster.resources import collection
from kubectl_ddp.errors import NotFound, UsageError
from kubectl_ddp.grafana import LABEL, VARIABLE, GrafanaService


def grafana(api: Api) -> GrafanaService:
    """The only one there is. Raises NotFound when there is none, UsageError when there are several, Forbidden."""
    services, _ = api.items(collection("v1", "services", None), labelSelector=LABEL)
    # A headless Service beside it is for its replicas.
    found = [GrafanaService.of(each) for each in services if each["spec"].get("clusterIP") != "None"]
    hint = f"Give its address with --grafana or ${VARIABLE}."
    if not found:
        raise NotFound(f"There is no Service with the label {LABEL} in the cluster.", hint=hint)
    if len(found) > 1:
        raise UsageError(f"There are several Grafanas: {', '.join(map(str, found))}.", hint=hint)
    return found[0]
