"""The command line dies at any moment of ``submit``, and the same command again makes exactly one job of it.

A proxy lets so many calls through. The API server does the last of them, and the client is killed before it hears of
it, or when it has heard and would go on: what the cluster then holds is the same, and whatever follows comes too late.
No pod of these jobs is ever made: a quota forbids it.
"""

from __future__ import annotations

import functools
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ddp_trainer.common.constants import Label
from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.backends.cluster.write.submission import INCOMPLETE
from kubectl_ddp.engines import ENGINES as ENGINE_KINDS
from tests.cluster.api_proxy import ApiProxy, Asked, Fault, api_proxy
from tests.cluster.live_cluster import Namespace, namespace, until
from tests.cluster.test_cluster_engines import need

ENGINES = tuple(ENGINE_KINDS)
JOB = (
    "--preflight=off",
    "--image",
    "registry.invalid/never:1",
    "--nnodes",
    "1:2",
    "--nproc",
    "1",
    "--cpu",
    "100m",
    "--memory",
    "256Mi",
)
EVERY_CALL = "job"
AT_ONCE = 6
"""Submissions side by side, each with a proxy of its own."""


@pytest.fixture
def still(api: Api, tmp_path: Path) -> Iterator[Namespace]:
    """A namespace in which no pod is made."""
    with namespace(api, "registry.invalid/never:1", tmp_path) as space:
        quota = {"metadata": {"name": "still"}, "spec": {"hard": {"pods": "0"}}}
        space.api.create(space.path("v1", "resourcequotas"), quota)
        yield space


def submit(space: Namespace, proxy: ApiProxy, name: str, engine: str) -> subprocess.Popen[str]:
    return start(space, proxy, "submit", "--name", name, "--engine", engine, *JOB, "--command", "true", "-o", "json")


def start(space: Namespace, proxy: ApiProxy, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "kubectl_ddp", *words, "-n", space.name],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "HOME": str(space.home), "KUBECONFIG": str(proxy.kubeconfig)},
    )


def killed_at(
    proxy: ApiProxy,
    last: int,
    begin: Callable[[], subprocess.Popen[str]],
    counts: Callable[[Asked], bool] = lambda _: True,
) -> bool:
    """Begin, and kill the client when the API server has done the ``last`` call that counts; whether there was one."""
    reached = threading.Event()
    left = itertools.count(1)

    def decide(asked: Asked) -> Fault | None:
        is_last = counts(asked) and next(left) == last
        return Fault(then=reach, loses_answer=last % 2 == 0) if is_last else None

    def reach() -> None:
        proxy.die()
        reached.set()

    proxy.fresh(decide)
    process = begin()
    with process:
        while not reached.wait(0.01) and process.poll() is None:
            pass
        process.kill()
        process.communicate()
    proxy.fresh()
    return reached.is_set()


def of(space: Namespace, name: str) -> dict[str, list[dict[str, Any]]]:
    """Every object of a job, by its kind."""
    found = {}
    for path in space.collections():
        items, _ = space.api.items(path, labelSelector=f"{Label.JOB}={name}")
        if items:
            found[path.rpartition("/")[2]] = items
    return found


def is_one_job(space: Namespace, name: str, engine: str) -> set[str]:
    """That there is one job of the name, complete, with all that is its own; returns the kinds."""
    root = ENGINE_KINDS[engine]
    there = of(space, name)
    main = [item for item in there[root.plural] if item["metadata"]["name"] == name]
    assert len(main) == 1
    about = main[0]["metadata"]
    assert INCOMPLETE not in about["annotations"]
    for kind, items in there.items():
        for item in items:
            if item["metadata"]["uid"] == about["uid"] or "trainer.kubeflow.org/trainjob-name" in str(item["metadata"]):
                continue
            owners = item["metadata"].get("ownerReferences") or [{}]
            if owners[0].get("controller"):
                continue  # what an operator makes of the root
            assert owners[0].get("uid") == about["uid"], f"{kind} {item['metadata']['name']} is not owned by the root"
            assert item["metadata"]["labels"][Label.RUN_ID] == about["labels"][Label.RUN_ID], kind
    return set(there)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ENGINES)
def test_the_client_killed_after_any_call_of_submit_and_run_again_makes_exactly_one_job(
    still: Namespace, tmp_path: Path, engine: str
) -> None:
    need(still, engine)
    with api_proxy(still.api.connection, tmp_path / "count") as proxy:
        with submit(still, proxy, f"{engine}-whole", engine) as process:
            out, err = process.communicate()
            assert process.returncode == 0, out + err
        calls = [asked.number for asked in proxy.asked if asked.is_change or engine == EVERY_CALL]
    assert len(calls) >= 5
    kinds = is_one_job(still, f"{engine}-whole", engine)

    def attempt(last: int) -> bool:
        name = f"{engine}-{last}"
        with api_proxy(still.api.connection, tmp_path / name) as proxy:
            was_killed = killed_at(proxy, last, functools.partial(submit, still, proxy, name, engine))
            with submit(still, proxy, name, engine) as again:
                out, err = again.communicate()
            assert again.returncode == 0, f"after call {last}: {out}{err}"
        assert is_one_job(still, name, engine) >= kinds - {"jobs", "jobsets", "podmonitors"}
        return was_killed

    with ThreadPoolExecutor(AT_ONCE) as pool:
        killed = list(pool.map(attempt, calls))
    assert all(killed), "every call was reached"

    still.ddp("delete", "-y", *(f"{engine}-{last}" for last in ("whole", *calls))).ok()
    until("nothing left", lambda: not [left for left in still.left() if f"/{engine}-" in left])


@pytest.mark.parametrize("engine", ENGINES)
def test_what_a_submission_left_that_died_can_be_deleted_by_the_jobs_name(
    still: Namespace, tmp_path: Path, engine: str
) -> None:
    need(still, engine)
    name = f"dead-{engine}"
    first: list[int] = []
    with api_proxy(still.api.connection, tmp_path) as proxy:

        def decide(asked: Asked) -> Fault | None:
            if asked.is_change and not first:
                first.append(asked.number)
                return Fault(then=proxy.die, loses_answer=True)
            return None

        proxy.fresh(decide)
        with submit(still, proxy, name, engine) as process:
            _, err = process.communicate()
        assert process.returncode == 1
        assert "cannot be reached" in err
        assert "Traceback" not in err
    assert of(still, name), "something was left"
    still.ddp("delete", "-y", name).ok()
    until("nothing left", lambda: not of(still, name))
