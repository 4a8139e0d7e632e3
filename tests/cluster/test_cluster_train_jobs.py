"""TrainJobs that ``kubectl apply`` or Kubeflow's SDK creates for the platform's ClusterTrainingRuntimes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.drivers.kubeflow import ENGINE, elastic_job_sets, platform_runtimes, train_job
from bench.drivers.node_access import NodeAccess
from bench.drivers.node_drain import drain
from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.values.pod import RuntimeMount
from tests.cluster.live_cluster import Namespace, until
from tests.cluster.test_cluster_controller import controller
from tests.cluster.test_cluster_engines import need
from tests.cluster.test_cluster_faults import HURRY, NAME, PACE, PACED, Job

pytestmark = pytest.mark.alone  # the runtimes belong to the whole cluster


@pytest.fixture
def runtimes(api: Api, space: Namespace, controller_image: str, runtime_image: str) -> Iterator[None]:
    """The runtimes of the platform's chart, deleted afterwards."""
    need(space, ENGINE.name)
    images = {"trainer": space.image, "runtime": runtime_image, "controller": controller_image}
    with platform_runtimes(api, images, RuntimeMount.COPY):
        yield


def lose_drained_node(job: Job) -> None:
    """Drain a node: its pods leave once their replacements have joined, and training never starts over."""
    reached = max(rank["step"] for rank in job.ranks())
    pod = job.space.pods()[-1]
    drain(NAME, pod["spec"]["nodeName"])
    assert pod["metadata"]["uid"] not in {item["metadata"]["uid"] for item in job.space.pods()}
    job.wait("world-size=2")
    assert max(rank["step"] for rank in job.ranks()) > reached
    job.go_on()


def suspend_and_resume(job: Job) -> None:
    """Suspend the TrainJob, check that it has no pods, and resume it."""
    job.space.ddp("suspend", NAME).ok()
    until("no pods", lambda: not job.space.pods())
    assert job.space.ddp("status", NAME, "-o", "json").ok().json["state"] == "Suspended"
    job.space.ddp("resume", NAME).ok()
    job.wait("world-size=1")
    job.go_on()


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("runtimes")
def test_one_in_the_words_of_the_sdk_is_scaled_and_loses_pods_and_no_sample(
    space: Namespace, reach: NodeAccess
) -> None:
    script = f'read -r -d \'\' SCRIPT << EOM\n\n{PACED.read_text()}\nEOM\nprintf "%s" "$SCRIPT" > "paced.py"\n'
    flags = "--global-batch 64 --seed 0 --epochs 100000 --early-stop clock:1"
    job, command = Job(space, reach), ["bash", "-c", f"{script}torchrun paced.py {flags}"]
    with controller(space, "--ddpjobs"):
        env = [{"name": "HURRY", "value": HURRY}, {"name": "PACE", "value": PACE}]
        wanted = train_job(NAME, "ddp-torch-elastic", 1, {"image": space.image, "command": command, "env": env})
        space.api.create(space.path(ENGINE.api_version, ENGINE.plural), wanted)
        until("a job of the command line", lambda: space.ddp("status", NAME).code == 0)
        job.wait("world-size=1")
        job.go_on()
        suspend_and_resume(job)
        with elastic_job_sets(space.api):
            job.befall("scale")
        job.befall("pod", "launcher")
        lose_drained_node(job)  # the controller resizes it without the gate
        assert NAME in space.ddp("top", NAME, "--once").ok().out
        assert f"<title>{NAME}" in space.ddp("report", NAME, "-o", "-").ok().out
        assert "generation" in space.ddp("logs", NAME).ok().out
        assert "It does not hang" in space.ddp("hang", NAME).ok().out
        assert space.ddp("list").ok().out.count(NAME) == 1
        job.succeeds()
        found = space.api.get(space.path(ENGINE.api_version, ENGINE.plural, NAME))
        assert found["spec"] == found["spec"] | {key: wanted["spec"][key] for key in ("trainer",)}
        assert any(condition["type"] == "Complete" for condition in found["status"]["conditions"])
        space.ddp("delete", "-y", NAME).ok()
        until(
            "nothing left",
            lambda: not [condition for condition in space.left() if "ddp-namespace-key" not in condition],
        )
