"""Addresses of the API servers, which a job's NetworkPolicy must admit for reading metrics.

A connection through the API server's proxy comes from the machine of the API server. A policy cannot select that
machine by label, only by address. The Service ``kubernetes`` of every cluster leads to these addresses.
"""

from __future__ import annotations

from collections.abc import Callable

from kubectl_ddp.backends.cluster.http.api import Api, collection
from kubectl_ddp.backends.cluster.http.api_errors import NotServed
from kubectl_ddp.errors import Forbidden, NotFound

SLICE = f"{collection('discovery.k8s.io/v1', 'endpointslices', 'default')}/kubernetes"
"""EndpointSlice of the Service ``kubernetes``, which the API server maintains."""


def api_servers(api: Api, notice: Callable[[str], None]) -> tuple[str, ...]:
    """Return the sorted addresses. If they cannot be read, send a notice and return none."""
    try:
        endpoints = api.get(SLICE).get("endpoints") or ()
    except (Forbidden, NotFound, NotServed):
        endpoints = ()
    found = {address for endpoint in endpoints for address in endpoint["addresses"]}
    if not found:
        notice(
            "The addresses of the API servers cannot be read (EndpointSlice 'kubernetes' in namespace 'default'). The "
            "job's NetworkPolicy does not admit them, so 'status' and 'top' may not see its ranks. --metrics-from "
            "ADDRESS admits one address, --metrics-from '*' admits all."
        )
    return tuple(sorted(found))
