"""The Python client on a cluster: a function as a job, with its lines, its end and its deletion."""

from __future__ import annotations

import contextlib
import os

import pytest

from kubectl_ddp import Client
from kubectl_ddp.errors import NotFound
from tests.cluster.live_cluster import Namespace, until


def greet(word: str) -> None:
    print(word, os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)


@pytest.mark.timeout(240)
def test_a_function_runs_on_two_nodes_and_is_deleted(space: Namespace) -> None:
    client = Client(namespace=space.name)
    size = {"cpu": 0.1, "memory": "256Mi", "shm": "32Mi"}
    job = client.submit(
        greet,
        arguments={"word": "rank"},
        image=space.image,
        nnodes=2,
        preflight="warn",
        **size,  # type: ignore[arg-type]
    )
    with contextlib.closing(job.logs("all", follow=True)) as lines:
        printed = {line.rank: line.message for line in lines if line.rank is not None}
    assert printed == {0: "rank 0 of 2", 1: "rank 1 of 2"}
    assert job.wait(120).state == "Succeeded"
    assert [state.name for state in client.list()] == [job.name]
    job.delete(wait=True, timeout=60)
    with pytest.raises(NotFound):
        client.get(job.name)
    until("nothing left", lambda: not space.left())
