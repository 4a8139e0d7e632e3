"""Backend for jobs of this machine: reads and edits their files, and signals the engine after an edit."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ddp_trainer.common.constants import HANG_PATH, HISTORY_PATH, Label, Port, PortName
from kubectl_ddp.backends.base import Entry, ExecCommand
from kubectl_ddp.backends.local.directory import JobDirectory, local_jobs_directory, no_such_job, root_of, unreadable
from kubectl_ddp.backends.local.environment import elastic_bounds
from kubectl_ddp.backends.local.job_status import (
    claim,
    engine_of,
    is_finished,
    remove,
    remove_orphans,
    snapshot,
    wait_until_gone,
)
from kubectl_ddp.errors import DdpError, Forbidden, NotFound, Unreachable, UsageError
from kubectl_ddp.kube.job_kinds import pod_count
from kubectl_ddp.kube.objects import Object, RelatedKind, RelatedObjects, Snapshot
from kubectl_ddp.status.metrics_parser import metrics_path
from kubectl_ddp.status.termination_message import is_running
from kubectl_ddp.util.bounded_response import POD_ANSWER, ResponseRejected, read_response
from kubectl_ddp.util.concurrency import Stop
from kubectl_ddp.util.process import defer_interrupt, program
from kubectl_ddp.values.quantity import validate_node_count

if TYPE_CHECKING:
    from kubectl_ddp.backends.local.submission import LocalMachine
    from kubectl_ddp.capacity import CapacityObjects
    from kubectl_ddp.spec.model import JobSpec
    from kubectl_ddp.values.parsers import Egress

HANG_SECONDS: Final = 5.0
"""Timeout of a hang report; a launcher queries its ranks first and waits for those that do not answer."""
METRICS_SECONDS: Final = 1.0
"""Timeout of a pod's metrics, in seconds."""


class LocalBackend:
    """Backend that runs jobs on this machine. Implements :class:`kubectl_ddp.backends.base.Backend`."""

    where = "local"
    namespace = ""

    def __init__(
        self,
        root: Path | None = None,
        *,
        python: str | None = None,
        directory: Path | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Use the jobs below a directory.

        Args:
            root: Directory that contains one directory per job; the user's own by default.
            python: Interpreter of the pods; by default ``$KUBECTL_DDP_PYTHON``, else the current interpreter.
            directory: Working directory of the pods; the current directory by default.
            environ: Environment that the pods inherit.
        """
        self._root = root or local_jobs_directory(environ)
        self._python = python or environ.get("KUBECTL_DDP_PYTHON") or sys.executable
        self._working_directory = directory
        self._environ = environ

    def _directory(self, name: str) -> JobDirectory:
        if not name or "/" in name or name.startswith("."):
            raise no_such_job(name)
        return JobDirectory(self._root / name)

    # -- reading -------------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the names of all jobs, oldest first."""
        return [str(found.job["metadata"]["name"]) for found in self.jobs()]

    def jobs(self, *, all_namespaces: bool = False) -> list[Snapshot]:
        """Return every job of this user on this machine, oldest first; ``all_namespaces`` has no effect."""
        del all_namespaces
        try:
            names = [path.name for path in self._root.iterdir() if not path.name.startswith(".")]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise unreadable(self._root, error) from error
        found, errors = [], []
        for name in names:
            try:
                found.append(self.job(name))
            except NotFound:
                continue
            except Forbidden as error:  # another user's job, possibly created with sudo: still list our own
                errors.append(error)
        if errors and not found:
            raise errors[0]
        return sorted(found, key=lambda one: str(one.job["metadata"].get("creationTimestamp", "")))

    def job(self, name: str, *, events: bool = True) -> Snapshot:
        """Return one job, always with its events.

        Raises:
            NotFound: If the job does not exist.
        """
        del events
        return snapshot(self._directory(name))

    def watch(
        self, name: str, *, reasons: Collection[str] | None = None, stop: Stop | None = None
    ) -> Iterator[Snapshot]:
        """Yield the job now and after every change, until it is deleted or ``stop`` is requested."""
        del reasons  # a snapshot is one file
        from kubectl_ddp.backends.local.inotify import Watch, descriptors  # noqa: PLC0415 - loads libc, which a list does not need

        directory = self._directory(name)
        before = snapshot(directory)
        yield before
        engine = engine_of(directory)
        pidfd = engine.identity.open() if engine is not None else None
        try:
            with descriptors(pidfd, stop) as ends, Watch([directory.path], ends) as watch:
                while stop is None or not stop.is_requested:
                    now = snapshot(directory)
                    if now != before:
                        yield now
                        before = now
                    watch.wait()
        except (NotFound, FileNotFoundError):
            return

    def deleted_pods(self, name: str) -> Sequence[Object]:
        """Return the worker pods whose logs are kept: all that the job has had."""
        logs = self._directory(name).path.glob(f"pods/{name}-worker-*/log")
        return [{"metadata": {"name": log.parent.name, "labels": {Label.JOB: name}}} for log in sorted(logs)]

    def logs(
        self,
        pod: Object,
        *,
        follow: bool = False,
        tail: int | None = None,
        timestamps: bool = False,
        since: str | None = None,
        stop: Stop | None = None,
    ) -> Iterator[str]:
        """Yield the lines of all containers of the pod; with ``follow``, until its current container has ended."""
        from kubectl_ddp.backends.local.log_file import entries  # noqa: PLC0415 - loads libc, which a list does not need

        directory = self._directory(str(pod["metadata"]["labels"][Label.JOB]))
        for moment, text in entries(directory, pod, follow=follow, tail=tail, since=since, stop=stop):
            yield f"{moment} {text}" if timestamps else text

    def events(self, name: str) -> list[Object]:
        """Return the events of the job, oldest first.

        Raises:
            NotFound: If the job does not exist.
        """
        return list(self.job(name).events)

    def enter(self, pod: Object, entry: Entry) -> ExecCommand:
        """Return a command that runs in the environment and directory of the pod's first process.

        Raises:
            NotFound: If the pod has no running process.
        """
        from kubectl_ddp.backends.local.kubelet import build_exec_command  # noqa: PLC0415 - exec alone needs it

        return build_exec_command(pod, entry)

    def forward(self, pod: Object, ports: Sequence[str]) -> None:
        """Do nothing: every pod has an address on this machine."""

    def metrics(self, pod: Object, families: Collection[str] = ()) -> str:
        """Return the pod's ``/metrics`` for these families.

        Raises:
            Unreachable: If the pod does not answer.
        """
        return self._served(pod, metrics_path(families))

    def hang(self, pod: Object) -> str:
        """Return the hang report of the pod's launcher.

        Raises:
            Unreachable: If the pod does not answer.
        """
        return self._served(pod, HANG_PATH, seconds=HANG_SECONDS)

    def metrics_history(self, pod: Object) -> str | None:
        """Return the history of the pod's metrics, from its aggregator or from the end of its log."""
        from kubectl_ddp.backends.local.log_file import raw_lines  # noqa: PLC0415 - loads libc, which a list does not need
        from kubectl_ddp.status.metrics_parser import unpacked  # noqa: PLC0415 - a report alone needs it

        if is_running(pod):
            with contextlib.suppress(Unreachable):  # possibly an earlier version without the path
                return self._served(pod, HISTORY_PATH)
        return unpacked(raw_lines(self._directory(str(pod["metadata"]["labels"][Label.JOB])), pod))

    def _served(self, pod: Object, path: str, *, seconds: float = METRICS_SECONDS) -> str:
        """Return the response of the pod's metrics port for a path.

        Raises:
            Unreachable: If the pod does not answer.
        """
        name, address, port = pod["metadata"]["name"], pod["status"].get("podIP", ""), _metrics_port(pod)
        # HTTP/1.0 by hand: one response, then the connection ends. Importing http.client takes 20 ms.
        request = f"GET {path} HTTP/1.0\r\nHost: {address}:{port}\r\nAccept: */*\r\n\r\n"
        try:
            with socket.create_connection((address, port), timeout=seconds) as connection:
                connection.sendall(request.encode())
                answer = read_response(iter(lambda: connection.recv(1 << 16), b""), POD_ANSWER)
        except ResponseRejected as error:
            raise Unreachable(f"The answer of pod '{name}' at {address}:{port} {error}.") from error
        except OSError as error:
            raise Unreachable(f"Pod '{name}' does not answer at {address}:{port}: {error}.") from error
        head, _, body = answer.partition(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n", 1)[0]:
            raise Unreachable(f"Pod '{name}' does not serve metrics at {address}:{port}.")
        return body.decode(errors="replace")

    def related_objects(self, job: Object, kinds: Collection[RelatedKind]) -> RelatedObjects:
        """Return no objects: a job of this machine depends on no others."""
        del job, kinds
        return RelatedObjects()

    # -- changing ------------------------------------------------------------------------------------------------------

    def facts(self) -> None:
        """Return nothing: all local jobs run in the same way."""

    def api_servers(self) -> tuple[str, ...]:
        """Return no addresses: pods are queried without a proxy."""
        return ()

    def effective_egress(self, egress: Egress) -> Egress:
        """Return ``egress``: this machine has no network policies."""
        return egress

    def preflight(self, spec: JobSpec, objects: Sequence[Object], *, is_thorough: bool) -> None:
        """Do nothing: this machine applies no admission checks."""

    def capacity_objects(self) -> CapacityObjects:
        """Return the capacity of this machine and the part in use."""
        from kubectl_ddp.backends.local.capacity_reader import read  # noqa: PLC0415 - for ``capacity`` alone

        return read()

    def submit(self, objects: Sequence[Object]) -> None:
        """Create a job and start its engine; returns after its first pods have started.

        Raises:
            AlreadyExists: If there is a job with this name.
            PreflightFailed: If the job cannot run on this machine.
        """
        from kubectl_ddp.backends.local.submission import create, prepare, start_engine  # noqa: PLC0415 - submit alone needs it

        machine = self._machine()
        wanted = prepare(objects, machine)
        directory = self._directory(str(root_of(wanted)["metadata"]["name"]))
        with defer_interrupt():  # a job without an engine would be shown as lost
            create(directory, wanted, machine)
            try:
                start_engine(directory, self._environ)
            except (DdpError, OSError):  # nothing has run, so the name must not stay taken
                remove(directory)
                raise

    def code(self, name: str) -> list[Object]:
        """Return the ConfigMaps with the job's code; empty if it has none.

        Raises:
            NotFound: If the job does not exist.
        """
        objects = self._directory(name).objects()
        return [item for item in objects if item.get("kind") == "ConfigMap"]

    def recreate(self, name: str, objects: Sequence[Object]) -> None:
        """Replace a finished run by a new one; its volume claims, and the checkpoints in them, are kept."""
        from kubectl_ddp.backends.local.submission import create, prepare, start_engine  # noqa: PLC0415 - rarely needed

        directory, machine = self._directory(name), self._machine()
        self._check_machine(directory)
        wanted = prepare(objects, machine)
        with defer_interrupt():
            remove_orphans(directory)
            create(directory, wanted, machine, instead=True)
            start_engine(directory, self._environ)

    def pending_restart(self, name: str) -> list[Object]:
        """Return nothing: a job's directory stays while its run is replaced."""
        del name
        return []

    def _machine(self) -> LocalMachine:
        from kubectl_ddp.backends.local.submission import machine_of  # noqa: PLC0415 - submit alone needs it

        return machine_of(self._python, self._working_directory, self._environ)

    def annotate(self, job: Object, annotations: Mapping[str, str]) -> None:
        """Set annotations of exactly this job (same uid) and keep its others."""
        with self._directory(str(job["metadata"]["name"])).edit() as objects:
            metadata = root_of(objects)["metadata"]
            if metadata.get("uid") == job["metadata"].get("uid"):
                metadata.setdefault("annotations", {}).update(annotations)

    def scale(self, name: str, nodes: int, *, dry_run: bool = False) -> None:
        """Set the number of nodes. Raises UsageError if it is outside of the job's bounds, in a dry run as well."""
        directory = self._active_job_directory(name)
        if dry_run:
            validate_node_count(elastic_bounds(root_of(directory.objects())), name, nodes)
            return
        with directory.edit() as objects:
            root = root_of(objects)
            validate_node_count(elastic_bounds(root), name, nodes)
            root["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = pod_count(root, nodes)
        self._notify_engine(directory)

    def suspend(self, name: str, *, suspended: bool) -> None:
        """Stop the pods and keep the job, or resume it; a job whose engine was lost gets a new one."""
        directory = self._directory(name) if not suspended else self._active_job_directory(name)
        if is_finished(directory.status().get("job") or {}) and directory.objects():
            raise _over(name)
        self._check_machine(directory)
        with directory.edit() as objects:
            root_of(objects)["spec"].setdefault("runPolicy", {})["suspend"] = suspended
        if (engine := engine_of(directory)) is None or engine.is_gone:
            self._restart_engine(directory)
        else:
            self._notify_engine(directory)

    def _restart_engine(self, directory: JobDirectory) -> None:
        from kubectl_ddp.backends.local.submission import read_machine, start_engine  # noqa: PLC0415 - rarely needed

        read_machine(directory)  # before this process claims the directory
        with defer_interrupt():
            with directory.locked():
                engine = engine_of(directory)
                if engine is not None and not engine.is_gone:
                    return
                remove_orphans(directory)
                claim(directory, is_starting=True)
            start_engine(directory, self._environ)

    def delete(self, name: str) -> None:
        """Delete the job, its processes and its directory; returns after they are gone.

        Raises:
            NotFound: If the job does not exist.
        """
        directory = self._directory(name)
        directory.objects()
        self._check_machine(directory)
        with contextlib.suppress(NotFound, FileNotFoundError):  # it may end and be removed meanwhile
            with directory.edit() as objects:
                moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                root_of(objects)["metadata"].setdefault("deletionTimestamp", moment)
            while (engine := engine_of(directory)) is not None and not engine.is_gone:
                self._notify_engine(directory)
                if engine.is_starting:  # it will be the engine's process in a moment
                    time.sleep(0.01)
                else:
                    wait_until_gone(engine.identity)
            remove_orphans(directory)
        remove(directory)

    def _active_job_directory(self, name: str) -> JobDirectory:
        """Return the directory of a job that can still be changed.

        Raises:
            NotFound: If the job does not exist.
            UsageError: If the job has ended or has lost its engine.
        """
        found = self.job(name)
        directory = self._directory(name)
        self._check_machine(directory)
        if is_finished(directory.status().get("job") or {}):
            raise _over(name)
        if is_finished(found.job["status"]):
            raise UsageError(
                f"The local engine of job '{name}' is not running, so the change would have no effect.",
                hint=f"'{program()} resume {name}' starts it again.",
            )
        return directory

    def _check_machine(self, directory: JobDirectory) -> None:
        engine = engine_of(directory)
        if engine is not None and not engine.identity.is_here():
            host = engine.identity.host
            raise DdpError(f"Job '{directory.name}' runs on the machine '{host}'.", hint=f"Run the command on {host}.")

    def _notify_engine(self, directory: JobDirectory) -> None:
        """Signal the engine that the desired state has changed; a starting engine reads it anyway."""
        engine = engine_of(directory)
        if engine is not None and not engine.is_starting:
            engine.identity.signal(signal.SIGUSR1)


def _over(name: str) -> UsageError:
    return UsageError(f"Job '{name}' is over and cannot be changed.", hint=f"Delete it: '{program()} delete {name}'.")


def _metrics_port(pod: Object) -> int:
    for port in pod["spec"]["containers"][0].get("ports") or ():
        if port.get("name") == PortName.METRICS:
            return int(port["containerPort"])
    return int(Port.METRICS)
