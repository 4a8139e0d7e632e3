"""What the API server says to the objects: every spec passes, nothing is left over, refusals are sentences."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ddp_trainer.common.constants import Label
from tests.cluster.live_cluster import Namespace, until

CHEAP = ("--nnodes", "1:2", "--nproc", "1", "--cpu", "100m", "--memory", "256Mi", "--shm", "32Mi")
SLEEP = (*CHEAP, "--command", "sleep 3600")
"""A job that costs nothing: the launcher and the store are real, the program only sleeps."""


@pytest.mark.parametrize(
    "flags",
    [
        ("--nnodes", "1:2", "--nproc", "2", "--module", "ddp_trainer"),
        ("--nnodes", "2:8", "--gpus", "8", "--module", "ddp_trainer"),
        (
            *("--nnodes", "3", "--gpus", "4", "--egress", "closed", "--deadline", "2h", "--ttl", "1d"),
            *("--toleration", "dedicated=training:NoSchedule", "--node-selector", "disk=ssd", "--module", "app.train"),
            *("--env", "A=b", "--secret-env", "TOKEN=hub:token", "--env-from", "configmap/settings"),
            *("--checkpoint-claim", "shared", "--grace", "2m", "--max-restarts", "3"),
        ),
    ],
    ids=["cpu", "gpu", "everything"],
)
def test_the_api_server_accepts_every_object_of_a_job(space: Namespace, flags: tuple[str, ...]) -> None:
    done = space.ddp("submit", "--name", "job", "--image", space.image, "--dry-run=server", *flags, "--", "train").ok()
    created = done.out.splitlines()
    assert created[0] == "pytorchjob.kubeflow.org/job created (server dry run)"
    assert len(created) == 6 - ("PodMonitor is left out" in done.err)
    assert not space.left()


def test_a_script_travels_with_its_job(space: Namespace, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('hello')\n")
    done = space.ddp("submit", str(script), "--name", "job", "--image", space.image, "--dry-run=server", *CHEAP).ok()
    assert "configmap/" in done.out


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
    until("nothing left", lambda: not space.left())


def test_a_name_that_is_free_again_can_be_used_at_once(space: Namespace) -> None:
    submit = ("submit", "--name", "nap", "--image", space.image, *SLEEP)
    space.ddp(*submit).ok()
    until("the workers running", lambda: [pod["status"]["phase"] for pod in space.pods()] == ["Running"] * 2)
    space.ddp("delete", "nap", "--yes").ok()
    second = space.ddp(*submit, "-o", "json").ok().json
    until(
        "the workers of the second run running",
        lambda: (
            [
                (pod["status"]["phase"], pod["metadata"]["labels"][Label.RUN_ID])
                for pod in space.pods()
                if "deletionTimestamp" not in pod["metadata"]
            ]
            == [("Running", second["runId"])] * 2
        ),
    )


def test_a_name_that_something_else_has_is_said_to_be_taken_and_theirs_is_left_alone(space: Namespace) -> None:
    service = {"metadata": {"name": "nap-store"}, "spec": {"ports": [{"port": 80}]}}
    theirs = space.api.create(space.path("v1", "services"), service)
    done = space.ddp("submit", "--name", "nap", "--image", space.image, *SLEEP)
    assert (done.code, done.out) == (1, "")
    assert "There is another Service 'nap-store'" in done.err
    assert space.api.get(space.path("v1", "services", "nap-store")) == theirs
    until("the rest withdrawn", lambda: not space.left())


def test_who_may_not_is_told_what_and_where_and_exits_5(space: Namespace) -> None:
    kubeconfig = str(space.kubeconfig_of_nobody())
    listed = space.ddp("list", "--kubeconfig", kubeconfig)
    assert listed.code == 5
    assert f"does not let context 'nobody' list pytorchjobs.kubeflow.org in namespace '{space.name}'" in listed.err
    submitted = space.ddp("submit", "--kubeconfig", kubeconfig, "--name", "nap", "--image", space.image, *SLEEP)
    assert submitted.code == 5
    assert "create pytorchjobs.kubeflow.org" in submitted.err
    assert [done.err.count("error: ") for done in (listed, submitted)] == [1, 1]
    assert "Traceback" not in listed.err + submitted.err


def test_what_the_api_server_finds_wrong_is_passed_on(space: Namespace) -> None:
    done = space.ddp("submit", "--name", "nap", "--image", space.image, *SLEEP, "--priority", "Not_A_Name")
    assert done.code == 2
    assert "Not_A_Name" in done.err


def test_a_cluster_that_does_not_answer_is_named_in_one_sentence(space: Namespace, tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        server = f"https://127.0.0.1:{unused.getsockname()[1]}"
    text = space.kubeconfig_of_nobody().read_text().replace(space.api.connection.server, server)
    path = tmp_path / "gone.kubeconfig"
    path.write_text(text)
    done = space.ddp("list", "--kubeconfig", str(path))
    assert done.code == 1
    assert f"The API server {server} of context 'nobody' cannot be reached: connection refused." in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_a_job_that_does_not_exist_exits_3(space: Namespace) -> None:
    for command in ("status", "logs", "delete", "wait", "scale"):
        more = {"wait": ["--for=complete"], "scale": ["--nnodes", "1"]}.get(command, [])
        done = space.ddp(command, "nope", *more)
        assert (command, done.code) == (command, 3)
        assert f"There is no job 'nope' in namespace '{space.name}'" in done.err
