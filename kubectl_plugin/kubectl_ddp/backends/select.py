"""Selection of the place for a command: this machine or a cluster.

====================================================  ============================================
given                                                 the command looks
====================================================  ============================================
``--local``                                           on this machine
``--context``, ``--cluster``, ``--user``, ``--as``,   in the cluster
``--as-group``, ``--kubeconfig``, ``-n``, ``-A``
the name of a job that this machine runs              on this machine
none of these, and there is a kubeconfig              in the cluster
none of these, and ``$KUBECONFIG`` names no file      nowhere: that is an error
that is there
none of these, and there is none                      on this machine
====================================================  ============================================

Commands that create or change a job apply stricter rules: see :func:`check_place_of_new_job` and
:func:`backend_to_change`. Both backends are imported lazily: one loads the local operator, the other the Kubernetes
client.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from kubectl_ddp.backends.access import FLAGS, NOT_WHERE, Access, check_kubeconfig, kubeconfig_files
from kubectl_ddp.backends.base import Backend
from kubectl_ddp.backends.local.directory import local_job_names
from kubectl_ddp.errors import DdpError, NotFound, PreflightFailed, UsageError

if TYPE_CHECKING:
    from kubectl_ddp.backends.cluster import ClusterBackend

Notice: TypeAlias = Callable[[str], None]
"""Called with messages of a cluster's API server for the user (default: printed to stderr)."""

IN_CLUSTER_TOKEN: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Where(Access):
    """Values of the flags that select where jobs run."""

    local: bool = False
    """True to use this machine, whatever clusters are configured."""
    all_namespaces: bool = False

    @property
    def names_a_cluster(self) -> bool:
        """True if a flag was given that only applies to a cluster."""
        return self.all_namespaces or bool(self.flags)

    @property
    def where(self) -> Where:
        """These flags, without the further fields of a subclass."""
        return Where(**{name: getattr(self, name) for name in Where.__dataclass_fields__})

    @property
    def incompatible_flag(self) -> str:
        """Flag that contradicts ``--local``; empty if there is none. A namespace does not contradict it."""
        return next((flag for name, flag in FLAGS.items() if name in _FOREIGN and getattr(self, name)), "")


_FOREIGN: Final = frozenset(FLAGS) - NOT_WHERE - {"namespace"}


def backend_for(where: Where, name: str | None = None, *, notice: Notice | None = None) -> Backend:
    """Return the backend for the job ``name``, by the table above. Raises UsageError, PreflightFailed."""
    return _this_machine() if is_local(where, name) else cluster_of(where, notice)


def target_backends(where: Where, *, notice: Notice | None = None) -> list[Backend]:
    """Return the backends that the flags select; without flags, the cluster, if configured, after this machine."""
    if where.local or where.names_a_cluster or not has_cluster():
        return [backend_for(where, notice=notice)]
    cluster = cluster_of(where, notice)
    return [_this_machine(), cluster] if sys.platform == "linux" else [cluster]


def _this_machine() -> Backend:
    if sys.platform != "linux":
        raise PreflightFailed(
            f"Local jobs need Linux, and this is {sys.platform}.", hint="Name a cluster with --kubeconfig FILE."
        )
    from kubectl_ddp.backends.local.backend import LocalBackend  # noqa: PLC0415 - only for local jobs

    return LocalBackend()


def check_place_of_new_job(where: Where) -> None:
    """Reject creating a job on this machine if no flag and no kubeconfig names a place. Raises UsageError."""
    if is_local(where) and not where.local:
        raise UsageError(
            "There is no kubeconfig, so this job has no cluster to run in.",
            hint="Add --local to run it on this machine, or name a cluster with --kubeconfig FILE.",
        )


def backend_to_change(where: Where, name: str) -> Backend:
    """Return the backend for a command that changes the job ``name``. Raises UsageError if two places have that job."""
    backend = backend_for(where, name)
    if backend.where == "local" and not where.local and has_kubeconfig():
        _check_only_here(where, name)
    return backend


def _check_only_here(where: Where, name: str) -> None:
    cluster = cluster_of(where)
    flag = f"--context {cluster.where}" if kubeconfig_files() else f"-n {cluster.namespace}"
    choice = f"Add --local for the job of this machine, or {flag} for that of the cluster."
    try:
        cluster.job(name, events=False)
    except NotFound:
        return
    except DdpError as error:
        raise UsageError(
            f"This machine has a job '{name}', and whether context '{cluster.where}' has one too is unknown: "
            f"{error.message}",
            hint=choice,
        ) from None
    raise UsageError(f"Both this machine and context '{cluster.where}' have a job '{name}'.", hint=choice)


def cluster_of(where: Where, notice: Notice | None = None) -> ClusterBackend:
    """Return the backend of the selected cluster. Raises UsageError, and Unreachable if no cluster is configured."""
    from kubectl_ddp.backends.cluster import ClusterBackend  # noqa: PLC0415 - imports an HTTP client and YAML

    return ClusterBackend(where) if notice is None else ClusterBackend(where, notice=notice)


def is_local(where: Where, name: str | None = None, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether ``where`` selects this machine for the job ``name``. Raises UsageError."""
    if where.local and where.incompatible_flag:
        raise UsageError(f"--local and {where.incompatible_flag} contradict each other.", hint="Leave one of them out.")
    if where.local:
        return True
    if where.names_a_cluster:
        return False
    if name is not None and name in local_job_names(environ):
        return True
    return not has_cluster(environ)


def has_cluster(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether a cluster is configured. Raises UsageError if ``$KUBECONFIG`` lists only missing files."""
    if has_kubeconfig(environ):
        return True
    check_kubeconfig(environ)
    return False


def has_kubeconfig(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether a kubeconfig file or the service account of a pod is available."""
    return bool(kubeconfig_files(environ)) or ("KUBERNETES_SERVICE_HOST" in environ and IN_CLUSTER_TOKEN.is_file())
