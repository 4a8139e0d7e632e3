"""Engine of one job: a small process that applies the job's desired state until the job has ended.

``submit --local`` starts it in a separate session, so it depends on neither the terminal nor that command::

  python -P -m kubectl_ddp.backends.local.engine DIRECTORY --python INTERPRETER --directory DIR --ready FD

It sleeps until an event: SIGUSR1 for an edited desired state, SIGCHLD for the end of a process, or output in a pod's
pipe. It writes one byte to ``--ready`` when the first pods have started.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from kubectl_ddp.backends.local import job_status, operator, volumes
from kubectl_ddp.backends.local import pods as pod_states
from kubectl_ddp.backends.local.directory import JobDirectory, root_of, write_json
from kubectl_ddp.backends.local.environment import Network, elastic_bounds, of_operator, worker_replicas
from kubectl_ddp.backends.local.job_status import is_finished, set_condition
from kubectl_ddp.backends.local.kubelet import JOB_UID, Backoff, Node, PodRunner
from kubectl_ddp.backends.local.process import descendants, kill, set_child_subreaper
from kubectl_ddp.errors import DdpError, NotFound
from kubectl_ddp.kube.objects import Object

_EVENTS: Final = 200
"""Maximum number of events kept."""

_RETRY_SECONDS: Final = 1.0
_WARNINGS: Final = frozenset({"ExitedWithCode", "PyTorchJobFailed", "BackoffLimitExceeded"})


class LocalEngine:
    """Operator, Job controller and kubelet of one job."""

    def __init__(self, directory: JobDirectory, *, python: str, working_directory: str) -> None:
        self.directory = directory
        self._python = python
        self._working_directory = working_directory
        self._network = Network.lease(directory.name)
        before = directory.status()
        self._status: dict[str, Any] = before.get("job") or {}
        self._events: list[Object] = before.get("events") or []
        self._runners: dict[str, PodRunner] = {}
        self._backoffs: dict[str, Backoff] = {}
        self._delays: dict[str, float] = {}
        self._last_states: dict[str, dict[str, Any]] = {}
        self._store_failures = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._reaped: asyncio.Future[None] | None = None
        self._dirty = asyncio.Event()
        self._deadline: asyncio.TimerHandle | None = None
        self._error: BaseException | None = None
        self._objects = directory.objects()

    @property
    def _root(self) -> Object:
        return root_of(self._objects)

    @property
    def _batch_jobs(self) -> list[Object]:
        return [item for item in self._objects if item["kind"] == "Job"]

    async def run(self, ready: int | None) -> None:
        """Work until the job has ended; write one byte to the descriptor ``ready`` when the first pods have started."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, self._reload_desired_state)
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        loop.add_signal_handler(signal.SIGTERM, self._on_sigterm)
        loop.add_signal_handler(signal.SIGINT, self._on_sigterm)
        loop.add_signal_handler(signal.SIGHUP, lambda: None)  # the terminal closed, which does not concern the engine
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        self._dirty.set()
        while not self._is_done:
            await self._dirty.wait()
            self._dirty.clear()
            if self._error is not None:
                raise self._error
            self._reconcile()
            self._write()
            if ready is not None:
                with contextlib.suppress(BrokenPipeError):  # the submitting command was killed meanwhile
                    os.write(ready, b"1")
                os.close(ready)
                ready = None

    @property
    def _should_exist(self) -> bool:
        return "deletionTimestamp" not in self._root["metadata"]

    @property
    def _is_over(self) -> bool:
        return is_finished(self._status) or not self._should_exist

    @property
    def _is_done(self) -> bool:
        return self._is_over and not self._tasks and not any(runner.is_active for runner in self._runners.values())

    def _changed(self) -> None:
        self._dirty.set()

    def _reload_desired_state(self) -> None:
        """Read the desired state; a missing directory counts as a deletion."""
        try:
            self._objects = self.directory.objects()
        except NotFound:
            self._root["metadata"].setdefault("deletionTimestamp", pod_states.now())
        self._changed()

    def _on_sigterm(self) -> None:
        """Handle a shutdown of the machine or a kill of this process: stop the pods in order."""
        text = "The local engine was stopped (SIGTERM)."
        set_condition(self._status, "Failed", "True", reason="EngineStopped", message=text, now=pod_states.now())
        self._changed()

    # -- children ------------------------------------------------------------------------------------------------------

    def _reap(self) -> None:
        by_pid = {runner.pid: runner for runner in self._runners.values() if runner.pid is not None}
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, wait_status = ended
                if pid in by_pid:
                    task = asyncio.get_running_loop().create_task(by_pid[pid].on_process_exit(wait_status))
                    self._tasks.add(task)
                    task.add_done_callback(self._task_done)
        if self._reaped is not None and not self._reaped.done():
            self._reaped.set_result(None)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._error = self._error or task.exception()
        self._changed()

    def _next_child_exit(self) -> asyncio.Future[None]:
        if self._reaped is None or self._reaped.done():
            self._reaped = asyncio.get_running_loop().create_future()
        return self._reaped

    # -- control loop --------------------------------------------------------------------------------------------------

    def _reconcile(self) -> None:
        self._remove_stopped()
        was_over = self._is_over
        for batch_job in self._batch_jobs:  # before the workers, which look up the store at their start
            self._reconcile_batch(batch_job)
        self._reconcile_workers()
        self._set_deadline()
        if self._is_over != was_over:
            self._changed()

    def _set_deadline(self) -> None:
        """Schedule a wake-up for the end of ``activeDeadlineSeconds``."""
        seconds = operator.deadline_seconds(self._root)
        if seconds is not None and self._status.get("startTime") and self._deadline is None:
            # One second more, because times in a status have no fractions.
            self._deadline = asyncio.get_running_loop().call_later(seconds + 1, self._on_deadline)

    def _on_deadline(self) -> None:
        self._deadline = None
        self._changed()

    def _remove_stopped(self) -> None:
        """Remove pods that were stopped and have ended; pods of a finished job are kept as evidence."""
        if self._is_over:
            return
        for name, runner in list(self._runners.items()):
            if pod_states.is_terminating(runner.pod) and not runner.is_active:
                runner.remove()
                del self._runners[name]

    def _reconcile_workers(self) -> None:
        workers = [runner.pod for runner in self._runners.values() if pod_states.index(runner.pod) is not None]
        plan = operator.reconcile(self._root, workers, self._status, now=pod_states.now())
        self._status = plan.status
        for reason, message in plan.events:
            self._emit_event(reason, message, self._root)
        for name in plan.delete:
            self._stop(name)
        for index in plan.create:
            pod = pod_states.worker_pod(self._root, index, self._network.worker(index))
            self._start(pod, pod["metadata"]["name"], self._root, is_worker=True)

    def _reconcile_batch(self, batch_job: Object) -> None:
        name = batch_job["metadata"]["name"]
        pods = [
            runner.pod
            for runner in self._runners.values()
            if runner.pod["metadata"]["labels"].get("batch.kubernetes.io/job-name") == name
        ]
        plan = operator.reconcile_job(batch_job, pods, failures=self._store_failures, is_run_over=self._is_over)
        for pod_name in plan.delete:
            self._stop(pod_name)
        if plan.event is not None:
            self._emit_event(*plan.event, batch_job)
        if plan.create:
            self._start(
                pod_states.batch_pod(self._root, batch_job, self._network.store), name, batch_job, is_worker=False
            )

    def _start(self, pod: Object, key: str, owner: Object, *, is_worker: bool) -> None:
        pod["metadata"]["labels"][JOB_UID] = self._root["metadata"]["uid"]
        backoff = self._backoffs.setdefault(key, Backoff())
        # A cluster loses the last state of the previous pod; here it is kept, since that costs nothing.
        pod_states.container_status(pod)["lastState"] = self._last_states.pop(key, {})
        # The store does not use the user's files; a json.py among them would break it.
        place = self._working_directory if is_worker else str(self.directory.path)
        runner = PodRunner(pod, self._node(place), of_operator(self._root) if is_worker else [], backoff)
        self._runners[runner.name] = runner
        self._emit_event("SuccessfulCreatePod", f"Created pod: {runner.name}", owner)
        runner.start(self._delays.pop(key, 0.0))

    def _stop(self, name: str) -> None:
        runner = self._runners[name]
        if pod_states.is_over(runner.pod) and pod_states.exit_code(runner.pod):
            key = runner.pod["metadata"]["labels"].get("batch.kubernetes.io/job-name", name)
            self._store_failures += key != name
            self._delays[key] = self._backoffs[key].next(runner.ran_seconds)
            self._last_states[key] = pod_states.container_status(runner.pod)["state"]
        runner.stop()
        if not runner.is_active:
            self._changed()

    def _node(self, working_directory: str) -> Node:
        return Node(
            directory=self.directory,
            working_directory=working_directory,
            python=self._python,
            namespace=self._root["metadata"].get("namespace", "default"),
            config_maps=volumes.config_maps_of(self._objects),
            addresses=self._addresses(),
            environ=os.environ,
            changed=self._changed,
            reaped=self._next_child_exit,
        )

    def _addresses(self) -> dict[str, str]:
        """Return the addresses that DNS would return: Services, and pods up to the maximum number of workers."""
        name = self._root["metadata"]["name"]
        most = max(elastic_bounds(self._root)[1], worker_replicas(self._root))
        workers = {pod_states.worker_name(name, index): self._network.worker(index) for index in range(most)}
        services = [item["metadata"]["name"] for item in self._objects if item["kind"] == "Service"]
        return {**dict.fromkeys(services, self._network.store), **workers}

    # -- events and status ---------------------------------------------------------------------------------------------

    def _emit_event(self, reason: str, message: str, involved: Object) -> None:
        moment = pod_states.now()
        self._events.append(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "type": "Warning" if reason in _WARNINGS else "Normal",
                "reason": reason,
                "message": message,
                "involvedObject": {"kind": involved["kind"], "name": involved["metadata"]["name"]},
                "firstTimestamp": moment,
                "lastTimestamp": moment,
                "count": 1,
            }
        )
        del self._events[:-_EVENTS]

    def _write(self) -> None:
        document = {
            "job": self._status,
            "pods": [runner.pod for runner in self._runners.values()],
            "events": self._events,
            "network": self._network.prefix,
        }
        try:
            write_json(self.directory.status_file, document)
        except FileNotFoundError:
            return  # the directory was removed, so there are no readers
        except OSError:  # disk full: the job continues, and its status is written later
            asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._changed)

    def close(self) -> None:
        """Clean up all processes, and the directory of a deleted job."""
        while left := descendants(os.getpid()):
            kill(left)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, 0)
        for runner in self._runners.values():
            runner.close()
        self._network.close()
        if not self._should_exist:
            for runner in self._runners.values():
                runner.remove()
            job_status.remove(self.directory)

    def failed(self, error: BaseException) -> None:
        """Record a failure of the engine itself in the job's status."""
        text = f"The local engine failed: {type(error).__name__}: {error}"
        set_condition(self._status, "Failed", "True", reason="EngineFailed", message=text, now=pod_states.now())
        with contextlib.suppress(OSError, RuntimeError):
            self._write()


def main(arguments: Sequence[str]) -> int:
    """Run the engine of the job in a directory."""
    parser = argparse.ArgumentParser(prog="kubectl_ddp.backends.local.engine")
    parser.add_argument("job")
    parser.add_argument("--python", required=True)
    parser.add_argument("--directory", required=True)
    parser.add_argument("--ready", type=int)
    flags = parser.parse_args(arguments)
    directory = JobDirectory(Path(flags.job))
    # An edit may signal this process as soon as the file names it, so block the signal until there is a handler.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    job_status.claim(directory, is_starting=False)
    set_child_subreaper()
    os.chdir("/")
    try:
        engine = LocalEngine(directory, python=flags.python, working_directory=flags.directory)
    except DdpError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    try:
        asyncio.run(engine.run(flags.ready))
    except BaseException as error:
        engine.failed(error)
        raise
    finally:
        engine.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
