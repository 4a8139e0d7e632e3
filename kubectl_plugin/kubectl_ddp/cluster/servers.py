"""Where the API servers are, as the cluster itself tells: a job's NetworkPolicy must let them in to read metrics.

A connection through the API server's proxy comes from the machine that the API server runs on, which no label of a
policy can mean, only an address. The Service ``kubernetes`` of every cluster leads to these very addresses.
"""

from __future__ import annotations

from collections.abc import Callable

from kubectl_ddp.cluster.api import Api
from kubectl_ddp.cluster.refusals import NotServed
from kubectl_ddp.cluster.resources import collection
from kubectl_ddp.errors import Forbidden

SLICES = collection("discovery.k8s.io/v1", "endpointslices", "default")


def api_servers(api: Api, notice: Callable[[str], None]) -> tuple[str, ...]:
    """Their addresses, sorted; none, and a notice, where we may not know them."""
    try:
        slices, _ = api.items(SLICES, labelSelector="kubernetes.io/service-name=kubernetes")
    except (Forbidden, NotServed):
        slices = []
    found = {
        address for each in slices for endpoint in each.get("endpoints") or () for address in endpoint["addresses"]
    }
    if not found:
        notice(
            "Who the API servers are may not be read here (endpointslices in namespace 'default'), so the job's "
            "NetworkPolicy does not let them in, and 'status' and 'top' may not see its ranks; --metrics-from ADDRESS "
            "lets one in, --metrics-from '*' everybody."
        )
    return tuple(sorted(found))
