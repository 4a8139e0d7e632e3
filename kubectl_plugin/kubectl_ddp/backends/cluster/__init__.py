"""Cluster backend: plain JSON requests to an API server.

Of the ``kubernetes`` package, only the kubeconfig reader and the connection pool are used, and only if a program or a
provider creates the credentials (:mod:`.http.auth_provider`). Its typed models take a second for a thousand pods,
reject unknown fields, and change their generator with major versions. JSON over HTTP is stable.
"""

from kubectl_ddp.backends.cluster.backend import ClusterBackend

__all__ = ["ClusterBackend"]
