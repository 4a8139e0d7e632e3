"""The Prometheus in the namespace ``monitoring`` of a cluster, queried through the API server's proxy."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from bench.drivers.node_access import ANSWER
from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.errors import DdpError

SERVICE: Final = "/api/v1/namespaces/monitoring/services/prometheus-operated"


@dataclass(frozen=True)
class ClusterPrometheus:
    """Prometheus run by the Prometheus operator."""

    api: Api

    @property
    def is_there(self) -> bool:
        try:
            self.api.get("/apis/monitoring.coreos.com/v1")
            self.api.get(SERVICE)
        except DdpError:
            return False
        return True

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the instant vector of an expression."""
        answer = self.api.text(f"{SERVICE}:9090/proxy/api/v1/query?query={quote(expression)}", limits=ANSWER)
        found: list[dict[str, Any]] = json.loads(answer)["data"]["result"]
        return found
