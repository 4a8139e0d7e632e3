"""The pod and the process of a rank."""

from __future__ import annotations

import pytest

from kubectl_ddp.errors import NotFound
from kubectl_ddp.observe.rank_locator import find_pod, find_rank
from tests.support.kube_objects import job, pod, pod_metrics, rank_metrics, snapshot
from tests.support.scripted_backend import ScriptedBackend


def told(*ranks: tuple[int, int, int]) -> str:
    """Return the metrics of a pod with these ranks, each as (rank, local rank, process)."""
    pids = "".join(f'ddp_rank_pid{{ddp_job="digits",rank="{rank}"}} {pid}\n' for rank, _, pid in ranks)
    return pod_metrics(world=4) + pids + "".join(rank_metrics(rank, local_rank=local) for rank, local, _ in ranks)


def test_the_rank_itself_says_where_it_is_whatever_the_pods_number() -> None:
    metrics = {"digits-worker-0": told((2, 0, 70), (3, 1, 71)), "digits-worker-1": told((0, 0, 80), (1, 1, 81))}
    backend = ScriptedBackend([snapshot(job("Running"), pod(0), pod(1))], metrics=[metrics])
    place = find_rank(backend, "digits", 3)
    assert (place.name, place.local_rank, place.pid) == ("digits-worker-0", 1, 71)
    assert place.variables == {"RANK": "3", "LOCAL_RANK": "1", "RANK_PID": "71"}
    assert str(place) == "Rank 3: pod digits-worker-0, local rank 1, process 71."


def test_a_rank_that_nobody_tells_of_is_not_guessed() -> None:
    metrics = {"digits-worker-0": told((0, 0, 70))}
    backend = ScriptedBackend([snapshot(job("Running"), pod(0))], metrics=[metrics])
    with pytest.raises(NotFound, match="rank 9 of job 'digits' is unknown: the ranks with metrics are 0"):
        find_rank(backend, "digits", 9)
    mute = ScriptedBackend([snapshot(job("Running"), pod(0))])
    with pytest.raises(NotFound, match="only just started"):
        find_rank(mute, "digits", 0)


def test_of_a_script_without_metrics_the_launchers_of_the_last_group_say_where_a_rank_is() -> None:
    def launcher(first: int, generation: int) -> str:
        return pod_metrics(world=4, generation=generation) + f'ddp_first_rank{{ddp_job="digits"}} {first}\n'

    metrics = {"digits-worker-0": launcher(2, 5), "digits-worker-1": launcher(0, 5), "digits-worker-2": launcher(2, 4)}
    backend = ScriptedBackend([snapshot(job("Running"), pod(0), pod(1), pod(2))], metrics=[metrics])
    place = find_rank(backend, "digits", 3)
    assert (place.name, place.variables) == ("digits-worker-0", {"RANK": "3", "LOCAL_RANK": "1"})
    with pytest.raises(NotFound):
        find_rank(backend, "digits", 4)


@pytest.mark.parametrize("word", ["digits-store-x1", "store", "store-x1"])
def test_a_pod_is_found_by_what_follows_the_jobs_name(word: str) -> None:
    store = pod(role="store")
    store["metadata"]["name"] = "digits-store-x1"
    found = find_pod(snapshot(job("Running"), pod(0), store), word)
    assert (found.name, found.variables) == ("digits-store-x1", {})


def test_a_beginning_that_several_share_names_none() -> None:
    with pytest.raises(NotFound, match="There are digits-worker-0, digits-worker-1"):
        find_pod(snapshot(job("Running"), pod(0), pod(1)), "worker")
