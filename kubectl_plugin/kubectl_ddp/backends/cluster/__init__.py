"""Cluster backend: plain JSON requests to an API server.

The ``kubernetes`` package reads kubeconfigs, authenticates and makes the connection pool (:mod:`.http.connection`).
Requests are plain JSON over its pool: its typed models take a second for a thousand pods, reject unknown fields, and
change their generator with major versions.
"""

from kubectl_ddp.backends.cluster.backend import ClusterBackend

__all__ = ["ClusterBackend"]
