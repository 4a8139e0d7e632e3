"""The cluster side of the backend: an API server asked in plain JSON.

Of the ``kubernetes`` package only the kubeconfig reader and the connection pool are used, and only where a program or
a provider makes the credentials (:mod:`.client_library`). Its typed models cost a second at a thousand pods, refuse
fields they do not know, and came from another generator with each major version; JSON over HTTP did not change.
"""

from kubectl_ddp.cluster.backend import ClusterBackend

__all__ = ["ClusterBackend"]
