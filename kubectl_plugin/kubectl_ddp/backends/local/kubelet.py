"""Kubelet: runs, restarts and stops the container of one pod, updates the pod's status, and runs commands in it.

A container is a process with its descendants and their output. The process dies with the engine (``PR_SET_PDEATHSIG``)
and leads its own session. Its environment contains a mark. When the container ends, the engine finds the remaining
processes by this mark and kills them, as a container runtime does. A command in a pod's context, which on this machine
is an environment and a directory, inherits the mark, so it ends with the container.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ddp_trainer.common.constants import TERMINATION_MESSAGE_BYTES, Env, File
from ddp_trainer.common.constants import Path as ContractPath
from kubectl_ddp.backends.base import Entry, ExecCommand
from kubectl_ddp.backends.local import pods as pod_states
from kubectl_ddp.backends.local import volumes
from kubectl_ddp.backends.local.directory import TEMPORARY, JobDirectory, read_json, write_json
from kubectl_ddp.backends.local.environment import Variable, expand, of_shell, resolve, translation
from kubectl_ddp.backends.local.log_file import LogReader, LogWriter
from kubectl_ddp.backends.local.pods import container_status
from kubectl_ddp.backends.local.process import MARK, kill, leader, members, set_parent_death_signal
from kubectl_ddp.errors import DdpError, NotFound
from kubectl_ddp.kube.objects import Object

FALLBACK_LINES: Final = 80
FALLBACK_BYTES: Final = 2048
"""Limits on the part of the log used for ``FallbackToLogsOnError``, as in the kubelet."""
_FALLBACK_LOG_BYTES: Final = 1 << 16
"""Bytes read from the log for it; logs grow without bound, and the engine's memory must not."""

JOB_UID: Final = "ddp.dev/job-uid"
"""Label of every local pod: uid of the job, the prefix of the marks of its processes."""

_BACKOFF_CAP_SECONDS: Final = 30.0
_STEADY_SECONDS: Final = 10.0
"""Run time in seconds after which a container's back-off is reset."""


NOT_STARTED: Final = 127
"""Exit code of a container whose program cannot be started: the shell's code, which controllers treat as permanent."""

_STUBBORN_SECONDS: Final = 10.0
"""Seconds until a process that survives SIGKILL (uninterruptible sleep) is left to the kernel."""


@dataclass(frozen=True, slots=True)
class ContainerCommand:
    """Program to run, with environment and directory."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    directory: str


class StartError(Exception):
    """Raised if the program cannot be started; the message has the form of a container runtime's."""


class Container:
    """A running container. Call :meth:`finish` when the process :attr:`pid` has ended."""

    def __init__(self, mark: str, pid: int, output: int, log: LogWriter) -> None:
        self.mark = mark
        self.pid = pid
        self._output = output
        self._log = log
        self._is_over = False

    @classmethod
    def start(cls, mark: str, command: ContainerCommand, log: LogWriter) -> Container:
        """Start the process.

        Raises:
            StartError: If the program cannot be started.
        """
        environment = {**command.environment, MARK: mark}
        program = shutil.which(command.argv[0], path=environment.get("PATH"))
        if program is None:
            raise StartError(f'exec: "{command.argv[0]}": executable file not found in $PATH')
        reading, writing = os.pipe()
        try:
            process = subprocess.Popen(
                list(command.argv),
                executable=program,
                env=environment,
                cwd=command.directory,
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                start_new_session=True,
                # Safe here: the engine has one thread, and libc is already loaded.
                preexec_fn=functools.partial(set_parent_death_signal, os.getpid()),  # noqa: PLW1509 - see above
            )
        except (OSError, subprocess.SubprocessError) as error:
            os.close(reading)
            raise StartError(f'exec: "{command.argv[0]}": {error}') from error
        finally:
            os.close(writing)
        process.returncode = 0  # the engine reaps it by its pid, with all other children
        container = cls(mark, process.pid, reading, log)
        os.set_blocking(reading, False)
        asyncio.get_running_loop().add_reader(reading, container._drain)
        return container

    def _drain(self) -> None:
        try:
            while data := os.read(self._output, 1 << 16):
                self._log.feed(data)
        except BlockingIOError:
            return
        asyncio.get_running_loop().remove_reader(self._output)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the first process, as the kubelet does to process 1."""
        if not self._is_over:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL to all processes; :meth:`finish` cleans up the rest."""
        if not self._is_over:
            kill(members(self.mark, self.pid))

    async def finish(self, reaped: Callable[[], asyncio.Future[None]]) -> None:
        """Clean up after the end of the process: kill its remaining descendants and read the rest of the output.

        Args:
            reaped: Returns a future that is done when the next child of the engine has been reaped.
        """
        self._is_over = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _STUBBORN_SECONDS
        while (left := members(self.mark, self.pid)) and loop.time() < deadline:
            next_one = reaped()
            kill(left)
            await asyncio.wait([next_one], timeout=0.05)
        self._drain()
        loop.remove_reader(self._output)
        os.close(self._output)
        self._log.finish()


def exit_of(wait_status: int) -> tuple[int, int | None]:
    """Return the exit code as a container runtime reports it (128 + n for signal n), and the signal."""
    code = os.waitstatus_to_exitcode(wait_status)
    return (code, None) if code >= 0 else (128 - code, -code)


@dataclass(slots=True)
class Backoff:
    """Delay before the next start: none at first, then doubling up to a cap, as in the kubelet's crash loop."""

    crashes: int = 0

    def next(self, ran_seconds: float) -> float:
        """Return the delay in seconds after a run of that length."""
        self.crashes = 0 if ran_seconds >= _STEADY_SECONDS else self.crashes
        self.crashes += 1
        return 0.0 if self.crashes == 1 else min(_BACKOFF_CAP_SECONDS, 0.5 * 2.0 ** (self.crashes - 2))


@dataclass(frozen=True, slots=True)
class Node:
    """Properties of this machine that pods depend on."""

    directory: JobDirectory
    working_directory: str
    python: str
    """Interpreter; its directory comes first on the pods' PATH."""
    namespace: str
    config_maps: volumes.ConfigMaps
    addresses: Mapping[str, str]
    """Name of a Service or pod → address."""
    environ: Mapping[str, str]
    changed: Callable[[], None]
    """Called after every change of a pod's status."""
    reaped: Callable[[], asyncio.Future[None]]
    """Returns a future that is done when the next child of the engine has been reaped."""


@dataclass(slots=True)
class PodRunner:
    """One pod. Call :meth:`start` and :meth:`stop`, and report the end of its process with :meth:`on_process_exit`."""

    pod: Object
    node: Node
    extra: list[Variable] = field(default_factory=list)
    """Variables that the operator adds to the container's ``env``."""
    backoff: Backoff = field(default_factory=Backoff)
    _mounts: volumes.Mounts = field(default_factory=volumes.Mounts)
    _container: Container | None = None
    _log: LogWriter | None = None
    _started: float = 0.0
    _stage: int = 0
    """Number of init containers that have succeeded."""
    ran_seconds: float = 0.0
    """Run time of its last container, in seconds."""
    _timers: list[asyncio.TimerHandle] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the pod."""
        return str(self.pod["metadata"]["name"])

    @property
    def pid(self) -> int | None:
        """Process id, or None if no process runs."""
        return self._container.pid if self._container is not None else None

    @property
    def is_active(self) -> bool:
        """True if a process runs or a timer will start one."""
        return self._container is not None or bool(self._timers)

    def start(self, delay: float = 0.0) -> None:
        """Create the pod's directories and run its container after a delay."""
        directory = self.node.directory.pod(self.name)
        directory.mkdir(parents=True, exist_ok=True)
        self._log = LogWriter(self.node.directory.log(self.name))
        self._mounts = volumes.mount(self.pod, self.node.directory.volumes, self.node.config_maps)
        if self._mounts.temporary:
            self.pod["metadata"].setdefault("annotations", {})[TEMPORARY] = json.dumps(self._mounts.temporary)
        self._later(delay, self._run)

    def _later(self, delay: float, action: Callable[[], None]) -> None:
        if delay:
            self._timers.append(asyncio.get_running_loop().call_later(delay, self._on_timer, action))
        else:
            action()

    def _on_timer(self, action: Callable[[], None]) -> None:
        self._timers.clear()
        action()

    def _run(self) -> None:
        log = self._log
        if log is None:
            return
        self._termination_log.unlink(missing_ok=True)
        self._started = asyncio.get_running_loop().time()
        count = pod_states.container_status(self.pod)["restartCount"]
        mark = f"{self._owner_uid}/{self.pod['metadata']['uid']}/{count}"
        try:
            self._container = Container.start(mark, self._command(self._template), log)
        except (StartError, DdpError) as error:
            self._ended(NOT_STARTED, None, reason="StartError", message=str(error))
            return
        if self._template is self._templates[-1]:
            pod_states.mark_running(self.pod, f"local://{mark}")
        self.node.changed()

    @property
    def _templates(self) -> list[Object]:
        """Containers of the pod in the order in which they run."""
        return [*(self.pod["spec"].get("initContainers") or ()), self.pod["spec"]["containers"][0]]

    @property
    def _template(self) -> Object:
        return self._templates[self._stage]

    @property
    def _owner_uid(self) -> str:
        return str(self.pod["metadata"]["labels"].get(JOB_UID, ""))

    @property
    def _termination_log(self) -> Path:
        return self.node.directory.pod(self.name) / "termination-log"

    def _command(self, template: Object) -> ContainerCommand:
        adapt = translation(self.node.addresses, self._mounts.directories, self.node.namespace)
        shell = of_shell(self.node.environ)
        # Values of the operator contain pod names, so they are translated like the user's.
        variables = [*(template.get("env") or ()), *self.extra]
        given = resolve(variables, self.pod, inherited=self.node.environ, adapt=adapt)
        address = self.pod["status"]["podIP"]
        environment = {"GLOO_SOCKET_IFNAME": "lo", **shell, **given}
        environment |= {
            "HOSTNAME": self.name,
            "PATH": f"{Path(self.node.python).parent}{os.pathsep}{environment.get('PATH', os.defpath)}",
            Env.POD_IP: address,
            Env.METRICS_ADDRESS: address,
            Env.TERMINATION_LOG: str(self._termination_log),
        }
        if self._mounts.scratch and "TMPDIR" not in given:
            environment["TMPDIR"] = self._mounts.scratch
        words = [*(template.get("command") or ()), *(template.get("args") or ())]
        argv = [expand(adapt(str(word)), given) for word in words]
        if argv and argv[0] in {"python", "python3"}:
            argv[0] = self.node.python
        directory = template.get("workingDir")
        return ContainerCommand(argv, environment, adapt(directory) if directory else self.node.working_directory)

    async def on_process_exit(self, wait_status: int) -> None:
        """Handle the end of the process with this wait status."""
        container = self._container
        if container is None:
            return
        code, number = exit_of(wait_status)
        await container.finish(self.node.reaped)
        self._container = None
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        if code == 0 and self._template is not self._templates[-1] and not pod_states.is_terminating(self.pod):
            self._stage += 1
            self._run()
            return
        self._ended(code, number, reason="Completed" if code == 0 else "Error", message=self._message(code))

    def _ended(self, code: int, number: int | None, *, reason: str, message: str) -> None:
        self.ran_seconds = asyncio.get_running_loop().time() - self._started
        pod_states.mark_terminated(self.pod, code, reason=reason, message=message, signal=number)
        self._save_summary()
        if pod_states.is_over(self.pod):
            self.close()
        else:
            delay = self.backoff.next(self.ran_seconds)
            pod_states.mark_waiting(self.pod, delay)
            self._later(delay, self._run)
        self.node.changed()

    def _message(self, code: int) -> str:
        try:
            written = self._termination_log.read_bytes()[:TERMINATION_MESSAGE_BYTES]
        except OSError:
            written = b""
        policy = self.pod["spec"]["containers"][0].get("terminationMessagePolicy")
        if written or code == 0 or policy != "FallbackToLogsOnError":
            return written.decode(errors="replace")
        log = LogReader(self.node.directory.log(self.name))
        log.skip_to_last(_FALLBACK_LOG_BYTES)
        return "\n".join([text for _, text in log.lines()][-FALLBACK_LINES:])[-FALLBACK_BYTES:]

    def _save_summary(self) -> None:
        """Copy the summary of the run from the pod, which is removed, to the job's directory, which is kept.

        Every pod has a summary; the one of rank 0 is the most complete.
        """
        run_directory = self._mounts.directories.get(ContractPath.RUN_DIR)
        if run_directory is None:
            return
        summary, existing = read_json(Path(run_directory) / File.SUMMARY), read_json(self.node.directory.summary_file)
        if isinstance(summary, dict) and len(summary) >= len(existing or ()):
            with contextlib.suppress(OSError):  # disk full
                write_json(self.node.directory.summary_file, summary)

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL after the pod's grace period."""
        if pod_states.is_terminating(self.pod):
            return
        self.pod["metadata"]["deletionTimestamp"] = pod_states.now()
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        if self._container is None:
            self.close()
            self.node.changed()
            return
        self._container.signal(signal.SIGTERM)
        self._later(max(0.001, pod_states.grace_seconds(self.pod)), self._container.kill)
        self.node.changed()

    def close(self) -> None:
        """Release resources; the container will not run again."""
        if self._log is not None:
            self._log.close()
            self._log = None
        volumes.drop_temporary(self._mounts)

    def remove(self) -> None:
        """Remove the pod and its own volumes."""
        self.close()
        volumes.unmount(self.pod, self._mounts, self.node.directory.volumes)


def build_exec_command(pod: Object, entry: Entry) -> ExecCommand:
    """Return the command with the pod's environment and directory; it inherits the terminal.

    Raises:
        NotFound: If the pod is not running.
    """
    status = container_status(pod)
    mark = str(status.get("containerID", "")).removeprefix("local://")
    first = leader(mark) if mark and "running" in status["state"] else None
    try:
        if first is None:
            raise FileNotFoundError
        block = Path(f"/proc/{first}/environ").read_bytes()
        directory = str(Path(f"/proc/{first}/cwd").readlink())
    except OSError:
        name = pod["metadata"]["name"]
        raise NotFound(f"Pod '{name}' does not run just now.", hint="Try again once it does.") from None
    variables = (os.fsdecode(assignment).partition("=") for assignment in block.split(b"\0") if assignment)
    environ = {name: value for name, _, value in variables} | dict(entry.variables)
    return ExecCommand(words=entry.words, environ=environ, directory=directory)
