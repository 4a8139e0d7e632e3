"""A place for local jobs that tests own: jobs of a few shell lines, and nothing left of them at the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kubectl_ddp.backends.local.backend import LocalBackend
from kubectl_ddp.backends.local.directory import JobDirectory
from kubectl_ddp.backends.local.job_status import EngineProcess, engine_of, is_true, wait_until_gone
from kubectl_ddp.backends.local.process import marked
from kubectl_ddp.kube.objects import Object, Snapshot
from kubectl_ddp.render.pod import literal
from tests.support import fork_server
from tests.support.kube_objects import a_template, job
from tests.support.programs import captured

Until = Callable[[Snapshot], object]


class Place(LocalBackend):
    """The local engine below a directory of the test."""

    def __init__(self, path: Path, **environ: str) -> None:
        self.state = path
        self.environ = {**os.environ, "XDG_STATE_HOME": str(path), **environ}
        super().__init__(environ=self.environ, directory=path.parent)

    def files(self, name: str = "digits") -> JobDirectory:
        """The files of a job."""
        return JobDirectory(self.state / "kubectl-ddp" / "jobs" / name)

    def run(self, script: str, *, name: str = "digits", store: str | None = None, **wanted: Any) -> Object:
        """Submit a job whose workers run a shell script; ``wanted`` is for :func:`tests.support.kube_objects.job`."""
        template = a_template(["sh", "-c", literal(script)], **wanted.pop("container", {}))
        template["spec"] |= {"terminationGracePeriodSeconds": 20, **wanted.pop("pod", {})}
        root = job(template=template, metadata={"name": name, "labels": {"ddp.dev/job": name}}, **wanted)
        del root["status"]
        template["metadata"]["labels"]["ddp.dev/job"] = name
        self.submit([root, *([] if store is None else store_of(name, store))])
        return self.job(name).job

    def until(self, reached: Until, name: str = "digits") -> Snapshot:
        for snapshot in self.watch(name):
            if reached(snapshot):
                return snapshot
        raise AssertionError("the job was deleted first")

    def engine(self, name: str = "digits") -> EngineProcess:
        """The engine of a job, which runs."""
        engine = engine_of(self.files(name))
        assert engine is not None
        return engine

    def kill_engine(self) -> None:
        """Kill the engine of the job ``digits``."""
        engine = self.engine()
        engine.identity.signal(signal.SIGKILL)
        wait_until_gone(engine.identity)

    def ended(self, name: str = "digits") -> Snapshot:
        """The job once its engine has ended."""
        wait_until_gone(self.engine(name).identity)
        return self.job(name)

    def lines(self, index: int = 0, name: str = "digits") -> list[str]:
        pod = next(pod for pod in self.job(name).pods if pod["metadata"]["name"] == f"{name}-worker-{index}")
        return list(self.logs(pod))


@contextmanager
def a_place(path: Path, **environ: str) -> Iterator[Place]:
    """A place whose jobs are deleted at the end, and which then has no process left."""
    place = Place(path, **environ)
    uids = []
    try:
        yield place
    finally:
        for snapshot in place.jobs():
            uids.append(snapshot.job["metadata"]["uid"])
            place.delete(snapshot.job["metadata"]["name"])
        assert [marked(f"{uid}/") for uid in uids] == [[] for _ in uids]


@pytest.fixture(name="place")
def place_fixture(tmp_path: Path) -> Iterator[Place]:
    """A place for the jobs of one test, with an empty home and without a cluster."""
    with a_place(tmp_path / "state", HOME=str(tmp_path), KUBECONFIG=os.devnull, OMP_NUM_THREADS="1") as place:
        yield place


class Typed:
    """A shell in which ``kubectl-ddp`` finds the jobs of a place."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.directory = place.state.parent
        unset = {"NO_COLOR", "KUBERNETES_SERVICE_HOST"}
        self.environ = {name: value for name, value in place.environ.items() if name not in unset}
        self.environ |= {"HOME": str(self.directory), "KUBECONFIG": os.devnull, "COLUMNS": "300"}

    def __call__(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        if stdin:
            return captured(self.command(*words), env=self.environ, cwd=self.directory, input=stdin, timeout=120)
        return fork_server.run(
            ["-m", "kubectl_ddp", *words],
            env=self.environ,
            cwd=self.directory,
            timeout=280,
            imported=fork_server.COMMAND_LINE,
        )

    def refused(self, *words: str, code: int = 2) -> str:
        """Run a command that has to end with this exit code, and return its stderr."""
        done = self(*words)
        assert done.returncode == code, done.stderr
        return done.stderr

    def command(self, *words: str) -> list[str]:
        """Command line of the installed ``kubectl-ddp``."""
        return [str(Path(sys.executable).with_name("kubectl-ddp")), *words]

    def open(self, *words: str) -> subprocess.Popen[str]:
        """Start a command."""
        return subprocess.Popen(
            self.command(*words), env=self.environ, cwd=self.directory, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def write(self, name: str, text: str) -> str:
        """Write a file into the directory of the shell, and return its path."""
        path = self.directory / name
        path.write_text(text)
        return str(path)


@pytest.fixture(name="typed")
def typed_fixture(place: Place) -> Typed:
    """A shell for the jobs of the place."""
    return Typed(place)


def store_of(name: str, script: str) -> list[Object]:
    """A batch Job that stands for the rendezvous store, and its Service."""
    template = a_template(["sh", "-c", script])
    template["metadata"]["labels"] = {"ddp.dev/job": name, "ddp.dev/role": "store"}
    template["spec"] |= {"restartPolicy": "OnFailure", "terminationGracePeriodSeconds": 20}
    store = {"name": f"{name}-store"}
    return [
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": dict(store), "spec": {"template": template}},
        {"apiVersion": "v1", "kind": "Service", "metadata": dict(store), "spec": {"clusterIP": "None"}},
    ]


def condition(name: str) -> Until:
    """Return a predicate: the job has a condition."""
    return lambda snapshot: is_true(snapshot.job["status"], name)


def workers(snapshot: Snapshot) -> list[Object]:
    """Worker pods that are not on their way out, by name."""
    found = [pod for pod in snapshot.pods if pod["metadata"]["labels"]["ddp.dev/role"] == "worker"]
    return sorted(
        (pod for pod in found if "deletionTimestamp" not in pod["metadata"]),
        key=lambda pod: str(pod["metadata"]["name"]),
    )


def container(pod: Object) -> dict[str, Any]:
    """Status of a pod's container."""
    status: dict[str, Any] = pod["status"]["containerStatuses"][0]
    return status


def all_run(count: int) -> Until:
    """Return a predicate: the job has ``count`` workers, and all of them run."""
    return lambda snapshot: ["running" in container(pod)["state"] for pod in workers(snapshot)] == [True] * count


def seen_in_log(place: Place, text: str, index: int = 0) -> Sequence[str]:
    """A worker's lines, followed until one holds a text."""
    pod = workers(place.until(lambda snapshot: len(workers(snapshot)) > index))[index]
    lines = []
    for line in place.logs(pod, follow=True):
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError(f"'{text}' was never written; there was {lines}")
