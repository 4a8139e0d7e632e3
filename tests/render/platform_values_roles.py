"""Effect of the values of ddp-platform's roles, a row per key."""

from __future__ import annotations

from typing import Final

from tests.support.chart_values import ABSENT, Row


def _aggregated(role: str, into: str) -> str:
    return f"ClusterRole/{role} metadata.labels.rbac\\.authorization\\.k8s\\.io/aggregate-to-{into}"


ROWS: Final = (
    Row("roles.enabled", False, "ClusterRole/ddp-submit", ABSENT),
    Row("roles.apiServer", False, "RoleBinding/ddp-api-server", ABSENT),
    Row("roles.aggregate", False, _aggregated("ddp-submit", "edit"), ABSENT),
    Row("roles.aggregateMetrics", True, _aggregated("ddp-metrics", "view"), "true"),
    Row("roles.aggregateDebug", True, _aggregated("ddp-debug", "edit"), "true"),
)
