"""Where the API servers are, as the cluster itself tells: a job's NetworkPolicy must let them in to read metrics.

A connection through the API server's proxy comes from the machine that the API server runs on, which no label of a
policy can mean, only an address. The Service ``kubernetes`` of every cluster leads to these very addresses.
"""

from __future__ import annotations

from collections.abc import Callable

from kubectl_ddp.cluster.api import Api
from kubectl_ddp.cluster.api_errors import NotServed
from kubectl_ddp.cluster.resources import collection
from kubectl_ddp.errors import Forbidden, NotFound

SLICE = f"{collection('discovery.k8s.io/v1', 'endpointslices', 'default')}/kubernetes"
"""The API server writes it itself, under the name of the Service."""


def api_servers(api: Api, notice: Callable[[str], None]) -> tuple[str, ...]:
    """Their addresses, sorted; none, and a notice, where we may not know them."""
    try:
        endpoints = api.get(SLICE).get("endpoints") or ()
    except (Forbidden, NotFound, NotServed):
        endpoints = ()
    found = {address for endpoint in endpoints for address in endpoint["addresses"]}
    if not found:
        notice(
            "The addresses of the API servers cannot be read (EndpointSlice 'kubernetes' in namespace 'default'). The "
            "job's NetworkPolicy does not admit them, so 'status' and 'top' may not see its ranks; --metrics-from "
            "ADDRESS admits one, --metrics-from '*' everybody."
        )
    return tuple(sorted(found))
