"""Where a command looks: on this machine, or in a cluster.

====================================================  ============================================
given                                                 the command looks
====================================================  ============================================
``--local``                                           on this machine
``--context``, ``--kubeconfig``, ``--as``, ``-n``,    in the cluster
``-A``
the name of a job that this machine runs              on this machine
none of these, and there is a kubeconfig              in the cluster
none of these, and there is none                      on this machine
====================================================  ============================================

Both sides are imported when they are needed: one costs an operator, the other the Kubernetes client.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kubectl_ddp.backend import Backend
from kubectl_ddp.errors import UsageError

if TYPE_CHECKING:
    from kubectl_ddp.cluster import ClusterBackend

IN_CLUSTER_TOKEN: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The flags that say where to look."""

    local: bool = False
    """This machine, whatever else is there."""
    context: str | None = None
    """Context of the kubeconfig; its current one when ``None``."""
    kubeconfig: str | None = None
    """File with the clusters; kubectl's own rule when ``None``."""
    namespace: str | None = None
    """Namespace of the job; the context's own when ``None``."""
    all_namespaces: bool = False
    acting_as: str | None = None
    """The user to act as in the cluster, as with ``kubectl --as``."""

    @property
    def names_a_cluster(self) -> bool:
        """Whether a flag was given that only a cluster understands."""
        return bool(self.context or self.kubeconfig or self.namespace or self.all_namespaces or self.acting_as)

    @property
    def flags(self) -> str:
        """The flags that say where to look, for a command that is to be typed next; with a space in front of each."""
        given = {"-n": self.namespace, "--context": self.context, "--kubeconfig": self.kubeconfig}
        return "".join(f" {flag} {shlex.quote(value)}" for flag, value in given.items() if value)


def backend_for(where: Where, name: str | None = None) -> Backend:
    """The place that ``where`` means for the job ``name``, by the table above. Raises UsageError."""
    if is_local(where, name):
        from kubectl_ddp.local.backend import LocalBackend  # noqa: PLC0415 - only who runs locally pays for it

        return LocalBackend()
    return cluster_of(where)


def cluster_of(where: Where) -> ClusterBackend:
    """The cluster that ``where`` means. Raises UsageError, and Unreachable when there is none."""
    from kubectl_ddp.cluster import ClusterBackend  # noqa: PLC0415 - imports an HTTP client and YAML

    return ClusterBackend(
        context=where.context, kubeconfig=where.kubeconfig, namespace=where.namespace, acting_as=where.acting_as
    )


def is_local(where: Where, name: str | None = None, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether ``where`` means this machine for the job ``name``. Raises UsageError."""
    if where.local and (where.context or where.kubeconfig or where.acting_as):
        flag = "--context" if where.context else "--kubeconfig" if where.kubeconfig else "--as"
        raise UsageError(f"--local and {flag} contradict each other.", hint="Leave one of them out.")
    if where.local:
        return True
    if where.names_a_cluster:
        return False
    if name is not None and name in local_job_names(environ):
        return True
    return not has_kubeconfig(environ)


def local_jobs_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Directory that holds one directory per local job, named like the job (XDG base directory specification)."""
    state = environ.get("XDG_STATE_HOME", "")
    home = Path(state) if state.startswith("/") else Path(environ.get("HOME", "~")).expanduser() / ".local" / "state"
    return home / "kubectl-ddp" / "jobs"


def local_job_names(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Names of the jobs of this machine, sorted; empty when there is no such directory or it is not ours to read."""
    try:
        with os.scandir(local_jobs_directory(environ)) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError:
        return []


def kubeconfig_files(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """The kubeconfig files that exist, by kubectl's rule: ``$KUBECONFIG``'s list, else ``~/.kube/config``."""
    listed = [Path(part) for part in environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    candidates = listed or [Path(environ.get("HOME", "~")).expanduser() / ".kube" / "config"]
    return [path for path in candidates if path.is_file()]


def has_kubeconfig(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a cluster can be meant at all: a kubeconfig, or a service account of a pod."""
    return bool(kubeconfig_files(environ)) or ("KUBERNETES_SERVICE_HOST" in environ and IN_CLUSTER_TOKEN.is_file())
