"""A job from submit to delete: no object is left, a taken name is refused, and a free name can be reused."""

from __future__ import annotations

from ddp_trainer.common.constants import Label
from tests.cluster.live_cluster import Namespace, until

CHEAP = ("--nnodes", "1:2", "--nproc", "1", "--cpu", "100m", "--memory", "256Mi", "--shm", "32Mi")
SLEEP = (*CHEAP, "--command", "sleep 3600")
"""A cheap job: the launcher and the store are real, the command only sleeps."""


def test_a_job_lives_from_submit_to_delete_and_leaves_nothing(space: Namespace) -> None:
    submit = ("submit", "--name", "nap", "--image", space.image, *SLEEP)
    first = space.ddp(*submit, "-o", "json").ok().json
    assert first["created"] is True

    again = space.ddp(*submit, "-o", "json").ok().json
    assert (again["created"], again["runId"]) == (False, first["runId"])
    taken = space.ddp(*submit, "--nproc", "2")
    assert taken.code == 1
    assert "There is another PyTorchJob 'nap'" in taken.err
    assert "Choose another --name" in taken.err

    def states() -> list[str]:
        return [pod["status"]["phase"] for pod in space.pods()]

    until("both workers running", lambda: states() == ["Running", "Running"])
    assert [job["name"] for job in space.ddp("list", "-o", "json").ok().json["items"]] == ["nap"]
    assert {pod["metadata"]["labels"][Label.RUN_ID] for pod in space.pods()} == {first["runId"]}

    space.ddp("scale", "nap", "--nnodes", "1").ok()
    until("one worker", lambda: states() == ["Running"])
    beyond = space.ddp("scale", "nap", "--nnodes", "3")
    assert (beyond.code, "between 1 and 2 nodes" in beyond.err) == (2, True)

    space.ddp("suspend", "nap").ok()
    until("no worker", lambda: not states())
    assert space.ddp("status", "nap", "-o", "json").ok().json["state"] == "Suspended"
    space.ddp("resume", "nap").ok()
    until("a worker again", lambda: states() == ["Running"])

    space.ddp("delete", "nap", "--yes").ok()
    second = space.ddp(*submit, "-o", "json").ok().json
    until("the workers of the second run", lambda: _running_pods(space, second["runId"]) == 2)
    space.ddp("delete", "nap", "--yes").ok()
    until("nothing left", lambda: not space.left())


def _running_pods(space: Namespace, run_id: str) -> int:
    """Number of running pods of a run; 0 while pods of another run exist."""
    pods = [pod for pod in space.pods() if "deletionTimestamp" not in pod["metadata"]]
    if {pod["metadata"]["labels"][Label.RUN_ID] for pod in pods} != {run_id}:
        return 0
    return sum(pod["status"]["phase"] == "Running" for pod in pods)
