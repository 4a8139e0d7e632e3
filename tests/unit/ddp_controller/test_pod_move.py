"""Moves: a replacement first, then the eviction, one pod at a time, and the old size again."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from ddp_controller.pod_move import decide_move
from ddp_controller.running_job import Evict, Resize, RunningJob, running_job
from kubectl_ddp.kube.objects import Snapshot
from tests.unit.ddp_controller.controller_jobs import DRAINING, FINE, NOW, TIMING, moving, pod, root, seen, store


def decided(job: RunningJob) -> Resize | Evict | None:
    return decide_move(job, NOW, TIMING)


def evicted(job: RunningJob) -> str:
    found = decided(job)
    assert isinstance(found, Evict), found
    return found.pod.name


def resized(job: RunningJob) -> Resize:
    found = decided(job)
    assert isinstance(found, Resize), found
    return found


def test_nothing_moves_while_all_nodes_are_fine() -> None:
    assert decided(seen(root(), pod(0), pod(1))) is None


@pytest.mark.parametrize("engine", ["job", "pytorchjob"])
def test_a_job_without_spares_gets_one_more_pod_before_any_pod_leaves(engine: str) -> None:
    found = resized(seen(root(engine=engine), pod(0, DRAINING), pod(1)))
    assert (found.size, found.action, found.reason) == (3, "surge", "cordoned")
    assert f'"size": 2, "since": {int(NOW)}' in str(found.annotations["ddp.dev/move"])


def test_a_trainjob_of_the_platforms_runtime_gets_one_more_pod_too() -> None:
    job = root(engine="trainjob")
    job["spec"]["runtimeRef"] = {"kind": "ClusterTrainingRuntime", "name": "ddp-torch"}
    assert resized(seen(job, pod(0, DRAINING), pod(1))).size == 3


@pytest.mark.parametrize("engine", ["job", "pytorchjob"])
def test_a_job_of_torchrun_which_restarts_with_each_change_is_left_alone(engine: str) -> None:
    assert decided(seen(root(engine=engine, launcher="torchrun"), pod(0, DRAINING), pod(1))) is None


def test_the_pod_leaves_only_once_its_replacement_has_settled() -> None:
    job = root(3, annotations=moving(2))
    assert decided(seen(job, pod(0, DRAINING), pod(1))) is None
    assert decided(seen(job, pod(0, DRAINING), pod(1), pod(2, ready=None))) is None
    assert decided(seen(job, pod(0, DRAINING), pod(1), pod(2, ready=5))) is None
    assert evicted(seen(job, pod(0, DRAINING), pod(1), pod(2))) == "digits-0"


def test_pods_of_one_node_leave_one_after_the_other() -> None:
    job = root(3, annotations=moving(2))
    leaves = pod(0, DRAINING, leaving=True)
    assert decided(seen(job, leaves, pod(1, DRAINING), pod(2))) is None
    assert decided(seen(job, pod(0, ready=1), pod(1, DRAINING), pod(2))) is None
    assert evicted(seen(job, pod(0), pod(1, DRAINING), pod(2))) == "digits-1"


def test_the_store_moves_first_and_no_worker_leaves_before_its_successor_has_settled() -> None:
    job, pods = root(spares=1, size=3), (pod(0, DRAINING), pod(1), pod(2))
    assert evicted(seen(job, *pods, store(DRAINING))) == "digits-store-0"
    assert decided(seen(job, *pods, store(runs=None))) is None
    assert decided(seen(job, *pods, store(runs=14))) is None
    assert evicted(seen(job, *pods, store())) == "digits-0"
    assert evicted(seen(job, pod(0), pod(1), pod(2), store(DRAINING))) == "digits-store-0"


def test_after_the_move_the_job_returns_to_its_size() -> None:
    job = root(3, annotations=moving(2))
    assert decided(seen(job, pod(0, ready=None), pod(1), pod(2))) is None
    found = resized(seen(job, pod(0), pod(1), pod(2)))
    assert (found.size, found.annotations) == (2, {"ddp.dev/move": None})


def test_a_size_that_a_person_set_during_the_move_stays() -> None:
    found = resized(seen(root(4, nnodes="1:4", annotations=moving(2)), *(pod(index) for index in range(4))))
    assert (found.size, found.annotations) == (4, {"ddp.dev/move": None})


def test_a_ready_spare_is_the_replacement() -> None:
    job = root(3, spares=1)
    assert evicted(seen(job, pod(0, DRAINING), pod(1), pod(2))) == "digits-0"
    assert decided(seen(job, pod(0, DRAINING), pod(1), pod(2, ready=None))) is None


def test_without_room_for_a_spare_a_pod_leaves_after_the_patience_if_the_minimum_remains() -> None:
    pods = pod(0, DRAINING), pod(1), pod(2)
    assert decided(seen(root(4, nnodes="2:3", spares=1), *pods, pod(3, "", ready=None, waits=119))) is None
    assert evicted(seen(root(4, nnodes="2:3", spares=1), *pods, pod(3, "", ready=None, waits=121))) == "digits-0"
    assert decided(seen(root(4, nnodes="3", spares=1), *pods, pod(3, "", ready=None, waits=121))) is None
    ready_just_now = pod(0, DRAINING), pod(1), pod(2, ready=60)
    assert decided(seen(root(4, nnodes="2:3", spares=1), *ready_just_now, pod(3, "", ready=None, waits=121))) is None


def test_the_patience_begins_when_the_last_spare_is_gone() -> None:
    job, pods = root(5, nnodes="2:3", spares=2), (pod(0, DRAINING), pod(1), pod(2))
    lost_long_ago = pod(3, "", ready=None, waits=3600)
    assert decided(seen(job, *pods, lost_long_ago, pod(4, "", ready=None, waits=20))) is None
    assert evicted(seen(job, *pods, lost_long_ago, pod(4, "", ready=None, waits=121))) == "digits-0"
    assert decided(seen(job, *pods, lost_long_ago, pod(4, leaving=True))) is None


def test_a_spare_that_its_engine_does_not_create_is_awaited_as_long() -> None:
    job = seen(root(4, nnodes="2:3", spares=1), pod(0, DRAINING), pod(1), pod(2))
    assert decided(job) is None
    assert decided(replace(job, missing_since=NOW - 119)) is None
    assert evicted(replace(job, missing_since=NOW - 121)) == "digits-0"


def test_a_job_in_a_queue_is_not_enlarged_unless_kueue_resizes_it() -> None:
    pods = pod(0, DRAINING), pod(1)
    assert decided(seen(root(queue="team"), *pods)) is None
    assert decided(seen(root(queue="team", elastic=True, gated=False), *pods)) is None
    assert isinstance(decided(seen(root(queue="team", elastic=True), *pods)), Resize)


@pytest.mark.parametrize("engine", ["jobset", "trainjob"])
def test_an_engine_that_cannot_be_scaled_gives_up_pods_down_to_its_minimum(engine: str) -> None:
    pods = pod(0, DRAINING), pod(1), pod(2)
    assert evicted(seen(root(3, nnodes="2:3", engine=engine), *pods)) == "digits-0"
    assert decided(seen(root(3, nnodes="3", engine=engine), *pods)) is None
    assert evicted(seen(root(3, nnodes="3", engine=engine), *pods, store(DRAINING))) == "digits-store-0", "it may move"
    assert decided(seen(root(3, nnodes="2:3", engine=engine), pod(0, DRAINING), pod(1))) is None


def test_without_room_for_a_replacement_a_pod_leaves_after_the_patience_if_the_minimum_remains() -> None:
    pods = pod(0, DRAINING), pod(1), pod(2, "", ready=None)
    late = moving(2, seconds_ago=121)
    assert decided(seen(root(3, nnodes="1:2", annotations=moving(2)), *pods)) is None
    assert evicted(seen(root(3, nnodes="1:2", annotations=late), *pods)) == "digits-0"
    assert decided(seen(root(3, nnodes="2", annotations=late), *pods)) is None


def test_each_replacement_that_gets_ready_starts_the_patience_again() -> None:
    job = root(3, nnodes="1:2", annotations=moving(2, seconds_ago=300))
    assert decided(seen(job, pod(0, DRAINING), pod(1, ready=119), pod(2, "", ready=None))) is None
    assert decided(seen(job, pod(0, DRAINING), pod(1), pod(2, "", ready=None), store(runs=119))) is None
    assert evicted(seen(job, pod(0, DRAINING), pod(1, ready=121), pod(2, "", ready=None))) == "digits-0"


def test_a_move_whose_pods_never_settle_ends_after_the_patience() -> None:
    job = root(3, annotations=moving(2, seconds_ago=121))
    assert resized(seen(job, pod(0), pod(1), pod(2, ready=None))).size == 2


def test_a_suspended_job_and_one_that_is_over_are_left_alone() -> None:
    assert decided(seen(root(suspended=True), pod(0, DRAINING), pod(1))) is None
    over = root() | {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    assert decided(seen(over, pod(0, DRAINING), pod(1))) is None


@pytest.mark.parametrize(("has_joined", "ready", "leaves"), [(True, 20, True), (False, 90, False), (None, 20, False)])
def test_a_ready_replacement_that_has_not_joined_is_none(has_joined: bool | None, ready: float, leaves: bool) -> None:
    pods = (pod(0, DRAINING), pod(1), pod(2, ready=ready), store())
    snapshot = Snapshot(root(3, annotations=moving(2)), pods)
    job = running_job(snapshot, {DRAINING: "cordoned"}, lambda uid: has_joined if uid == "digits-2" else True)
    assert isinstance(decided(job), Evict) == leaves
    assert [item.name for item in job.pending_members(NOW)] == ([] if leaves else ["digits-2"])


def test_a_replacement_whose_metrics_cannot_be_read_counts_after_a_minute() -> None:
    pods = (pod(0, DRAINING), pod(1), pod(2, ready=61), store())
    job = running_job(Snapshot(root(3, annotations=moving(2)), pods), {DRAINING: "cordoned"}, lambda _: None)
    assert isinstance(decided(job), Evict)


def test_no_order_of_events_takes_the_group_below_its_world() -> None:
    """Every state of three pods: an eviction always leaves two that have settled."""
    states = [(node, ready) for node in (FINE, DRAINING) for ready in (None, 5.0, 60.0)]
    for combined in itertools.product(states, repeat=3):
        pods = [pod(index, node, ready=ready) for index, (node, ready) in enumerate(combined)]
        found = decided(seen(root(3, annotations=moving(2)), *pods))
        if isinstance(found, Evict):
            rest = [item for item in seen(root(), *pods).pods if item.name != found.pod.name]
            assert sum(item.is_settled(NOW, TIMING.settle) for item in rest) >= 2
