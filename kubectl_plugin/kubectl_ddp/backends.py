"""Where a command looks: on this machine, or in a cluster.

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

Commands that create or change a job do not guess: see :func:`check_place_of_new_job` and :func:`backend_to_change`.

Both sides are imported when they are needed: one costs an operator, the other the Kubernetes client.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kubectl_ddp.access import FLAGS, NOT_WHERE, Access, check_kubeconfig, kubeconfig_files
from kubectl_ddp.backend import Backend
from kubectl_ddp.errors import DdpError, NotFound, UsageError

if TYPE_CHECKING:
    from kubectl_ddp.cluster import ClusterBackend

IN_CLUSTER_TOKEN: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Where(Access):
    """The flags that say where to look."""

    local: bool = False
    """This machine, whatever else is there."""
    all_namespaces: bool = False

    @property
    def names_a_cluster(self) -> bool:
        """Whether a flag was given that only a cluster understands."""
        return self.all_namespaces or bool(self.flags)

    @property
    def where(self) -> Where:
        """These flags, without what else a command was told."""
        return Where(**{each: getattr(self, each) for each in Where.__dataclass_fields__})

    @property
    def incompatible_flag(self) -> str:
        """A flag that contradicts ``--local``; empty when there is none. A namespace does no harm."""
        return next((flag for name, flag in FLAGS.items() if name in _FOREIGN and getattr(self, name)), "")


_FOREIGN: Final = frozenset(FLAGS) - NOT_WHERE - {"namespace"}


def backend_for(where: Where, name: str | None = None) -> Backend:
    """The place that ``where`` means for the job ``name``, by the table above. Raises UsageError."""
    if is_local(where, name):
        from kubectl_ddp.local.backend import LocalBackend  # noqa: PLC0415 - only who runs locally pays for it

        return LocalBackend()
    return cluster_of(where)


def check_place_of_new_job(where: Where) -> None:
    """Refuse to create a job on this machine where no flag and no kubeconfig names a place. Raises UsageError."""
    if is_local(where) and not where.local:
        raise UsageError(
            "There is no kubeconfig, so this job has no cluster to run in.",
            hint="Add --local to run it on this machine, or name a cluster with --kubeconfig FILE.",
        )


def backend_to_change(where: Where, name: str) -> Backend:
    """The place of the job ``name``, which a command is about to change. Raises UsageError where two places have it."""
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


def cluster_of(where: Where) -> ClusterBackend:
    """The cluster that ``where`` means. Raises UsageError, and Unreachable when there is none."""
    from kubectl_ddp.cluster import ClusterBackend  # noqa: PLC0415 - imports an HTTP client and YAML

    return ClusterBackend(where)


def is_local(where: Where, name: str | None = None, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether ``where`` means this machine for the job ``name``. Raises UsageError."""
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
    """Whether a cluster is meant where nobody says so. Raises UsageError when ``$KUBECONFIG`` names none that is."""
    if has_kubeconfig(environ):
        return True
    check_kubeconfig(environ)
    return False


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


def has_kubeconfig(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a cluster can be meant at all: a kubeconfig, or a service account of a pod."""
    return bool(kubeconfig_files(environ)) or ("KUBERNETES_SERVICE_HOST" in environ and IN_CLUSTER_TOKEN.is_file())
