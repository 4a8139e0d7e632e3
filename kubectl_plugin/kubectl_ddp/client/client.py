"""``from kubectl_ddp import Client``: submit jobs, list them, and get a handle for each."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, Unpack

from kubectl_ddp.backends.select import Where, backend_for, target_backends
from kubectl_ddp.client.function_source import arguments_as_json, code_of_function, job_name_of
from kubectl_ddp.client.job import Job, JobStates
from kubectl_ddp.client.layers import layer_from_kwargs, layer_of_mapping, layer_of_path, random_suffix, resolve_job
from kubectl_ddp.client.submission import Prepared, check_local, create_job, level_of, prepare_job
from kubectl_ddp.errors import DdpError, UsageError
from kubectl_ddp.observe.job_list import observe_jobs, read_jobs
from kubectl_ddp.observe.job_results import record_new_run
from kubectl_ddp.render import Code, Site
from kubectl_ddp.spec.fields import JOB_FILES, PROGRAM_KEYS
from kubectl_ddp.spec.job_key import Given, Layer, Origin, OriginKind
from kubectl_ddp.util.process import thread_location

if TYPE_CHECKING:
    from kubectl_ddp.client.job_keys import JobKeys

JobSource = str | os.PathLike[str] | Mapping[str, Any] | Callable[..., object]
"""A script or a job file, the keys of a job file, or a function."""

_LOG: Final = logging.getLogger("kubectl_ddp")


class Client:
    """Jobs of one place: a cluster, or this machine.

    The place is chosen as by the command line: without arguments, the current context of the kubeconfig, or this
    machine if there is none. Warnings go to the logger ``kubectl_ddp``, and nothing is printed. Methods raise the
    errors of :mod:`kubectl_ddp.errors`. A client and its jobs may be used by several threads.
    """

    def __init__(
        self,
        *,
        local: bool = False,
        namespace: str | None = None,
        context: str | None = None,
        kubeconfig: str | os.PathLike[str] | None = None,
        cluster: str | None = None,
        user: str | None = None,
        acting_as: str | None = None,
        as_groups: Sequence[str] = (),
        request_timeout: str | None = None,
    ) -> None:
        """Choose a place; nothing is read yet.

        Args:
            local: True for jobs of this machine.
            namespace: Namespace (default: that of the context).
            context: Context of the kubeconfig (default: the current one).
            kubeconfig: Path of the kubeconfig file (default: as kubectl finds it).
            cluster: Cluster of the kubeconfig (default: that of the context).
            user: User of the kubeconfig (default: that of the context).
            acting_as: User to impersonate.
            as_groups: Groups to impersonate.
            request_timeout: Time limit of a request to the cluster, as in ``5s``; ``0`` for none.
        """
        self._where = Where(
            local=local,
            namespace=namespace,
            context=context,
            kubeconfig=None if kubeconfig is None else os.fspath(kubeconfig),
            cluster=cluster,
            user=user,
            acting_as=acting_as,
            as_groups=tuple(as_groups),
            request_timeout=request_timeout,
        )

    def submit(
        self,
        job: JobSource | None = None,
        /,
        *,
        arguments: Mapping[str, Any] | None = None,
        preflight: Literal["off", "warn", "strict"] | None = None,
        **keys: Unpack[JobKeys],
    ) -> Job:
        """Create a job, and return its handle without waiting for it.

        Args:
            job: Path of a script or of a job file (``.yaml``), keys of a job file as a mapping, or a function, whose
                source every rank runs. None if ``module``, ``command`` or ``script`` is given.
            arguments: Keyword arguments of the function; JSON must keep them.
            preflight: What happens to a job that cannot run in the cluster: ``strict`` (default) rejects it, ``warn``
                only warns.
            keys: Keys of a job file in snake_case, such as ``nnodes=2``. They take precedence over ``job``.

        Raises:
            UsageError: If a value is invalid, or the function cannot be sent.
            NotFound: If the file does not exist.
            PreflightFailed: If the job cannot run there.
            AlreadyExists: If another object has the name.
        """
        submitted = time.time()
        layer, code = _of_source(job, arguments)
        if twice := sorted(keys.keys() & _fixed_by(job)):
            raise UsageError(f"The job has a program, and {twice[0]} names another.", hint="Keep one of them.")
        given: list[Layer] = [layer, layer_from_kwargs(keys)]
        if self._where.namespace:
            given.append({"namespace": Given(self._where.namespace, Origin(OriginKind.FLAG, "namespace"))})
        with self._location():
            resolved = resolve_job(given, self._where, name_suffix=random_suffix())
            prepared = prepare_job(resolved, self._where, packed_code=code)
            _log_choices(prepared)
            backend = backend_for(prepared.where, notice=_LOG.warning)
            create_job(
                prepared,
                backend,
                secrets.token_hex(6),
                submitted=submitted,
                level=level_of(preflight),
                warn=_LOG.warning,
            )
            with contextlib.suppress(DdpError):
                record_new_run(backend, prepared.spec.name)
        return Job(backend, prepared.spec.name, prepared.where)

    def get(self, name: str) -> Job:
        """Return the handle of a job. Raises NotFound."""
        with self._location():
            backend = backend_for(self._where, name, notice=_LOG.warning)
            backend.job(name, events=False)
        return Job(backend, name, self._where)

    def list(self, *, all_namespaces: bool = False) -> JobStates:
        """Return the states of all jobs, oldest first; without a chosen place, of this machine and of the cluster.

        Metrics are read from at most two pods of each job. :meth:`Job.status` reads those of all pods.
        """
        where = replace(self._where, all_namespaces=all_namespaces)
        with self._location():
            backends = target_backends(where, notice=_LOG.warning)
            return JobStates(observe_jobs(read_jobs(backends, all_namespaces=all_namespaces, warn=_LOG.warning)))

    def _location(self) -> AbstractContextManager[None]:
        return thread_location("" if self._where.local else self._where.flags)


def _of_source(job: JobSource | None, arguments: Mapping[str, Any] | None) -> tuple[Layer, Code | None]:
    """Return the values of a job, and its code if that does not lie on this machine. Raises UsageError."""
    if arguments is not None and not callable(job):
        raise UsageError("arguments are those of a function.", hint="Arguments of a script are args=[...].")
    match job:
        case None:
            return {}, None
        case str() | os.PathLike():
            return layer_of_path(job), None
        case Mapping():
            return layer_of_mapping(job), None
    return _of_function(job, arguments or {})


def _fixed_by(job: JobSource | None) -> frozenset[str]:
    """Return the keyword arguments that contradict a script or a function; a job file can be changed by each."""
    if job is None or isinstance(job, Mapping) or (not callable(job) and os.fspath(job).lower().endswith(JOB_FILES)):
        return frozenset()
    return frozenset(PROGRAM_KEYS) | ({"code", "args"} if callable(job) else frozenset())


def _of_function(function: Callable[..., object], arguments: Mapping[str, Any]) -> tuple[Layer, Code]:
    code = code_of_function(function)
    origin = Origin(OriginKind.RULE, "function", "the function that every rank calls")
    values = {
        "name": f"{job_name_of(function)}-{random_suffix()}",
        "script": code.file,
        "code": f"function {function.__name__}",
    }
    layer = {key: Given(value, origin) for key, value in values.items()}
    return layer | {"args": Given([arguments_as_json(function, arguments)], origin)}, code


def _log_choices(prepared: Prepared) -> None:
    for note in prepared.resolved.notes:
        _LOG.info(note)
    left_out = check_local(prepared.spec) if prepared.site is Site.LOCAL else []
    for warning in [*map(str, prepared.resolved.warnings), *left_out]:
        _LOG.warning(warning)
