"""``submit`` is killed after any of its requests, and the same command then creates exactly one job.

A proxy forwards a number of changes. The API server handles the last of them, and the client is killed before or after
it receives the response; the proxy drops later requests. The quota of the namespace allows no pods.
"""

from __future__ import annotations

import functools
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ddp_trainer.common.constants import Label
from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.backends.cluster.write.submission import INCOMPLETE
from kubectl_ddp.engines import ENGINES as ENGINE_KINDS
from tests.cluster.api_proxy import ApiProxy, Asked, Fault, api_proxy
from tests.cluster.live_cluster import Namespace, podless_namespace, until
from tests.cluster.test_cluster_engines import need
from tests.support import fork_server

ENGINES = ("pytorchjob", "trainjob")
"""The default engine, and the one whose pods first need an object of another kind."""
JOB = (
    *("--preflight=off", "--image", "registry.invalid/never:1", "--nnodes", "1:2", "--nproc", "1"),
    *("--cpu", "100m", "--memory", "256Mi", "--command", "true", "-o", "json"),
)
AT_ONCE = 6
"""Parallel submissions, each with its own proxy."""


@pytest.fixture
def still(api: Api, tmp_path: Path) -> Iterator[Namespace]:
    with podless_namespace(api, tmp_path) as space:
        yield space


@dataclass
class Submission:
    """A command that submits a job through a proxy."""

    process: fork_server.ForkedProcess
    errors: Path

    def outcome(self) -> tuple[int, str]:
        """Wait for the process, and return its exit code and stderr."""
        with self.process.stdout:
            self.process.communicate()
        return self.process.wait(), self.errors.read_text()


def submit(space: Namespace, proxy: ApiProxy, name: str, engine: str) -> Submission:
    words = ["-m", "kubectl_ddp", "submit", "--name", name, "--engine", engine, *JOB, "-n", space.name]
    environ = {**os.environ, "HOME": str(space.home), "KUBECONFIG": str(proxy.kubeconfig)}
    errors = space.home / f"{name}.stderr"
    with errors.open("w") as stderr:
        process = fork_server.start(words, env=environ, stderr=stderr, imported=fork_server.COMMAND_LINE)
    return Submission(process, errors)


def killed_at(proxy: ApiProxy, last: int, begin: Callable[[], Submission]) -> bool:
    """Kill the client once the API server has handled change number ``last``; return False if there are fewer."""
    reached = threading.Event()
    left = itertools.count(1)

    def decide(request: Asked) -> Fault | None:
        is_last = request.is_change and next(left) == last
        return Fault(then=reach, loses_answer=last % 2 == 0) if is_last else None

    def reach() -> None:
        proxy.die()
        reached.set()

    proxy.fresh(decide)
    submission = begin()
    while not reached.wait(0.01) and submission.process.poll() is None:
        pass
    submission.process.kill()
    submission.outcome()
    proxy.fresh()
    return reached.is_set()


def of(space: Namespace, name: str) -> dict[str, list[dict[str, Any]]]:
    """Return the objects of a job by kind."""
    found = {}
    for path in space.collections():
        items, _ = space.api.items(path, labelSelector=f"{Label.JOB}={name}")
        if items:
            found[path.rpartition("/")[2]] = items
    return found


def is_one_job(space: Namespace, name: str, engine: str) -> set[str]:
    """Check that exactly one complete job of the name exists, and return the kinds of its objects."""
    root = ENGINE_KINDS[engine]
    there = of(space, name)
    main = [item for item in there[root.plural] if item["metadata"]["name"] == name]
    assert len(main) == 1
    metadata = main[0]["metadata"]
    assert INCOMPLETE not in metadata["annotations"]
    for kind, items in there.items():
        for item in items:
            if item["metadata"]["uid"] == metadata["uid"] or "trainer.kubeflow.org/trainjob-name" in str(
                item["metadata"]
            ):
                continue
            owners = item["metadata"].get("ownerReferences") or [{}]
            if owners[0].get("controller"):
                continue  # created by an operator
            assert owners[0].get("uid") == metadata["uid"], (
                f"{kind} {item['metadata']['name']} is not owned by the root"
            )
            assert item["metadata"]["labels"][Label.RUN_ID] == metadata["labels"][Label.RUN_ID], kind
    return set(there)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ENGINES)
def test_the_client_killed_after_any_change_of_submit_and_run_again_makes_exactly_one_job(
    still: Namespace, tmp_path: Path, engine: str
) -> None:
    """Alternatively, ``delete`` removes what the killed client left."""
    need(still, engine)
    with api_proxy(still.api.connection, tmp_path / "count") as proxy:
        code, errors = submit(still, proxy, "whole", engine).outcome()
        assert code == 0, errors
        changes = sum(item.is_change for item in proxy.asked)
    assert changes >= 5
    kinds = is_one_job(still, "whole", engine)

    def attempt(last: int) -> bool:
        name = f"cut-{last}"
        with api_proxy(still.api.connection, tmp_path / name) as proxy:
            was_killed = killed_at(proxy, last, functools.partial(submit, still, proxy, name, engine))
            code, errors = submit(still, proxy, name, engine).outcome()
            assert code == 0, f"after change {last}: {errors}"
        assert is_one_job(still, name, engine) >= kinds - {"jobs", "jobsets", "podmonitors"}
        return was_killed

    with ThreadPoolExecutor(AT_ONCE) as pool:
        assert all(pool.map(attempt, range(1, changes + 1))), "every change was reached"
    with api_proxy(still.api.connection, tmp_path / "dead") as proxy:
        assert killed_at(proxy, 1, functools.partial(submit, still, proxy, "dead", engine))
    assert of(still, "dead"), "something was left"
    names = ("whole", "dead", *(f"cut-{last}" for last in range(1, changes + 1)))
    still.ddp("delete", "-y", *names).ok()
    until("nothing left", lambda: not still.left())
