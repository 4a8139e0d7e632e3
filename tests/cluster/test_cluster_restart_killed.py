"""The command line dies after any change that a restart of a failed job makes, and the same command finishes it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path

import pytest

from ddp_trainer.common.constants import Label
from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.engines import ENGINES
from tests.cluster.api_proxy import ApiProxy, Asked, api_proxy
from tests.cluster.live_cluster import Json, Namespace, namespace, until
from tests.cluster.test_cluster_submit_killed import AT_ONCE, JOB, is_one_job, killed_at, start

ENGINE = "job"
DEADLINE = ("--deadline", "1s")
"""A job that has none of its pods by then has failed."""


@pytest.fixture
def still(api: Api, tmp_path: Path) -> Iterator[Namespace]:
    """A namespace in which no pod is made."""
    with namespace(api, "registry.invalid/never:1", tmp_path) as space:
        quota = {"metadata": {"name": "still"}, "spec": {"hard": {"pods": "0"}}}
        space.api.create(space.path("v1", "resourcequotas"), quota)
        yield space


def is_change(asked: Asked) -> bool:
    return asked.is_change


def is_of_any(asked: Asked, proxy: ApiProxy) -> bool:
    """Whether every restart makes this change.

    What the old run owned is collected by the cluster in its own time: what is still there when the new run needs its
    name is refused, and deleted first.
    """
    is_leftover = asked.method == "DELETE" and asked.path.rpartition("/")[2] not in {"whole", "whole-restart"}
    return asked.is_change and not is_leftover and proxy.answered.get(asked.number, 0) < HTTPStatus.BAD_REQUEST


def run_of(space: Namespace, name: str) -> str:
    root = ENGINES[ENGINE]
    job: Json = space.api.get(space.path(root.api_version, root.plural, name))
    return str(job["metadata"]["labels"][Label.RUN_ID])


def failed(space: Namespace, script: Path, name: str) -> str:
    """Make a job that fails, with a script; returns its run."""
    space.ddp("submit", str(script), "--name", name, "--engine", ENGINE, *JOB, *DEADLINE).ok()
    until(f"that {name} fails", lambda: space.ddp("wait", name, "--for=failed", "--timeout=60s").code == 0)
    return run_of(space, name)


@pytest.mark.timeout(600)
def test_the_client_killed_after_any_change_of_restart_and_run_again_makes_exactly_one_job(
    still: Namespace, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('the 7th layer')\n")
    with api_proxy(still.api.connection, tmp_path / "count") as proxy:
        failed(still, script, "whole")
        with start(still, proxy, "restart", "whole", "--yes") as process:
            out, err = process.communicate()
            assert process.returncode == 0, out + err
        changes = sum(asked.is_change for asked in proxy.asked)
        fewest = sum(is_of_any(asked, proxy) for asked in proxy.asked)
    assert fewest > 8, "the record, the old run, the new one with what comes along, and the record again"

    def attempt(last: int) -> bool:
        name = f"cut-{last}"
        before = failed(still, script, name)
        with api_proxy(still.api.connection, tmp_path / name) as proxy:
            was_killed = killed_at(proxy, last, lambda: start(still, proxy, "restart", name, "--yes"), is_change)
        still.ddp("restart", name, "--yes").ok()
        assert run_of(still, name) != before
        assert "configmaps" in is_one_job(still, name, ENGINE), "its code came along"
        return was_killed

    with ThreadPoolExecutor(AT_ONCE) as pool:
        killed = list(pool.map(attempt, range(1, changes + 1)))
    assert all(killed[:fewest]), "every change was reached"
    names = ["whole", *(f"cut-{last}" for last in range(1, changes + 1))]
    still.ddp("delete", "-y", *names).ok()
    until("nothing left", lambda: not [left for left in still.left() if "/cut-" in left])
