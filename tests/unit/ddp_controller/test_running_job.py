"""A job from its objects: what users can write into its annotations never ends the controller."""

from __future__ import annotations

import pytest

from ddp_controller.pod_move import budget_size, decide_move
from ddp_controller.running_job import Move
from kubectl_ddp.kube.objects import timestamp
from tests.unit.ddp_controller.controller_jobs import DRAINING, NOW, TIMING, moving, pod, root, seen

MALFORMED = [
    "move",
    "[" * 100_000,
    '{"size": "x", "since": "x"}',
    '{"size": [2], "since": {}}',
    '{"size": -2, "since": -1}',
    '{"size": Infinity, "since": NaN}',
    f'{{"size": 1{"0" * 400}, "since": 1{"0" * 400}}}',
]


@pytest.mark.parametrize("note", MALFORMED)
def test_a_malformed_annotation_of_the_controller_counts_as_missing(note: str) -> None:
    job = seen(root(3, annotations={"ddp.dev/move": note, "ddp.dev/size": note}), pod(0, DRAINING), pod(1), pod(2))
    assert (job.move, job.resized_at) == (None, 0)
    assert decide_move(job, NOW, TIMING) is not None
    assert budget_size(job, NOW, TIMING) == 2


def test_a_move_whose_start_is_malformed_is_a_move_since_ever() -> None:
    assert seen(root(3, annotations={"ddp.dev/move": '{"size": 2, "since": "x"}'})).move == Move(size=2, since=0)
    assert seen(root(3, annotations=moving(2, seconds_ago=20))).move == Move(size=2, since=NOW - 20)


@pytest.mark.parametrize("nnodes", ["many", "0:2", "3:2", "-1:2", f"1:1{'0' * 12}"])
def test_a_job_with_an_impossible_number_of_nodes_is_malformed(nnodes: str) -> None:
    with pytest.raises(ValueError, match=nnodes.partition(":")[0]):
        seen(root(nnodes=nnodes))


def test_a_pod_that_has_no_node_has_waited_since_its_creation() -> None:
    """The kubelet of a node sets the condition Ready first."""
    pending = pod(0, "", ready=None)
    pending["status"] = {"phase": "Pending"}
    pending["metadata"]["creationTimestamp"] = timestamp(NOW - 90)
    lost = pod(1, ready=None, waits=30)
    lost["metadata"]["creationTimestamp"] = timestamp(NOW - 900)
    assert [item.changed_at for item in seen(root(), pending, lost).pods] == [NOW - 90, NOW - 30]


@pytest.mark.parametrize("nproc", ["0", "auto", 0, [1]])
def test_an_impossible_number_of_processes_counts_as_one(nproc: object) -> None:
    assert [*seen(root(nnodes="1:4", nproc=nproc, parallel="replicate=1:4,shard=2")).sizes] == [2, 4]


def test_a_number_of_processes_that_python_does_not_read_is_malformed() -> None:
    with pytest.raises(ValueError, match="digits"):
        seen(root(nnodes="1:4", nproc="9" * 5000, parallel="replicate=1:4,shard=2"))
