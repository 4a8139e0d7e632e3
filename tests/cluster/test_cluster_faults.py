"""Faults on a real cluster during training: the job succeeds, no sample is lost or repeated, accuracy is the same.

The API server cannot kill containers, so pods on the nodes do. Nodes are lost if ``DDP_TEST_NODE_COMMAND`` names a
command that takes them down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bench.drivers.node_access import NODE_COMMAND, NodeAccess, node_command, without
from ddp_trainer.common.constants import Env, Role
from ddp_trainer.launch.config import FORK_SERVER_DELAY_SECONDS
from tests.cluster.live_cluster import Json, Namespace, until
from tests.cluster.test_cluster_engines import need

NAME = "digits"
SIZE = ("--nproc", "1", "--cpu", "500m", "--memory", "1Gi", "--shm", "64Mi", "--max-restarts", "100")
PACED = Path(__file__).parents[1] / "scripts" / "paced.py"
HURRY = "/tmp/hurry"
PACE = "0.002"
"""Seconds of a step for each sample of a rank: a job that waits for a fault leaves the processors to others."""
WITH_FORK_SERVER = "pytorchjob"
"""Engine whose pods keep the default fork server. Restarted workers of the others import torch again."""
TRAIN = (
    *("--env", f"HURRY={HURRY}", "--env", f"PACE={PACE}", str(PACED)),
    *("--", "--global-batch", "64", "--seed", "0", "--epochs", "100000", "--early-stop", "clock:1"),
)
STEPS_PER_EPOCH = 23
LEARNED = 300
"""Steps after which a model trained without faults has an accuracy of 0.96."""
BETWEEN = 20
"""Steps between two faults."""


@dataclass
class Job:
    """A training job, and the faults injected into it."""

    space: Namespace
    reach: NodeAccess
    befell: list[str] = field(default_factory=list)

    def submit(self, engine: str, nnodes: str, *more: str) -> None:
        flags = ("--name", NAME, "--image", self.space.image, "--engine", engine, "--nnodes", nnodes, *more, *SIZE)
        forks = ("--env", f"{Env.FORK_SERVER}={FORK_SERVER_DELAY_SECONDS:g}") if engine == WITH_FORK_SERVER else ()
        self.space.ddp("submit", *flags, *forks, *TRAIN).ok()

    def wait(self, goal: str) -> None:
        done = self.space.ddp("wait", NAME, f"--for={goal}", "--timeout", "2m")
        assert done.code == 0, f"after {self.befell}: {done.err}\n{self.space.ddp('logs', NAME).out[-3000:]}"

    def ranks(self) -> list[Json]:
        ranks: list[Json] = self.space.ddp("status", NAME, "--ranks", "-o", "json").ok().json["ranks"]
        return [rank for rank in ranks if rank["state"] == "up"]

    def spare(self) -> str:
        """Return the spare pod that waits while two others train; empty without one."""
        state = self.space.ddp("status", NAME, "--ranks", "-o", "json").ok().json
        waiting = {pod["metadata"]["name"] for pod in self.space.pods()} - {rank["pod"] for rank in state["ranks"]}
        return waiting.pop() if len(waiting) == state["nodes"]["spares_ready"] == 1 else ""

    def go_on(self) -> None:
        """Wait until the job has completed more steps."""
        reached = max((rank["step"] or 0 for rank in self.ranks()), default=0)  # a new process has completed none
        self.wait(f"step={reached + BETWEEN}")

    def pod_of_rank_0(self) -> Json:
        [name] = {rank["pod"] for rank in self.ranks() if rank["rank"] == 0}
        [pod] = [pod for pod in self.space.pods() if pod["metadata"]["name"] == name]
        return pod

    def running(self) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.space.pods() if pod["status"]["phase"] == "Running"}

    def delete(self, pod: Json) -> None:
        metadata = pod["metadata"]
        self.space.api.delete(self.space.path("v1", "pods", metadata["name"]), uid=metadata["uid"])
        until("the pod gone", lambda: metadata["uid"] not in {p["metadata"]["uid"] for p in self.space.pods()})

    # ------------------------------------------------------------------------------------------------------- faults

    def lose_pod(self) -> None:
        self.delete(self.space.pods()[-1])
        self.wait("world-size=2")

    def lose_container(self) -> None:
        pod = self.pod_of_rank_0()
        self.reach.kill(pod)
        until("the pod given up", lambda: pod["metadata"]["uid"] not in self.running())
        self.wait("world-size=2")

    def crash_launcher(self) -> None:
        """Kill the launcher of rank 0; its pod restarts it."""
        pod, crashes = self.pod_of_rank_0(), self.restarts("failure")
        self.reach.kill_launcher(pod)
        until("the crash counted", lambda: self.restarts("failure") > crashes)
        self.wait("world-size=2")
        [same] = [one for one in self.space.pods() if one["metadata"]["uid"] == pod["metadata"]["uid"]]
        assert [status["restartCount"] for status in same["status"]["containerStatuses"]] == [0]

    def restarts(self, cause: str) -> int:
        status = self.space.ddp("status", NAME, "-o", "json").ok().json
        return int((status["restarts"] or {}).get(cause, 0))

    def lose_store(self) -> None:
        """Delete the store's pod, train without it, then kill a worker: the group re-forms on the next store."""
        [store] = self.space.pods(Role.STORE)
        self.space.api.delete(self.space.path("v1", "pods", store["metadata"]["name"]), uid=store["metadata"]["uid"])
        self.go_on()
        self.lose_container()

    def scale(self) -> None:
        for nodes in (3, 2):
            self.space.ddp("scale", NAME, "--nnodes", str(nodes)).ok()
            self.wait(f"world-size={nodes}")
            self.go_on()

    def befall(self, *faults: str) -> None:
        every: dict[str, Callable[[], None]] = {
            "pod": self.lose_pod,
            "container": self.lose_container,
            "launcher": self.crash_launcher,
            "store": self.lose_store,
            "scale": self.scale,
        }
        for fault in faults:
            self.befell.append(fault)
            every[fault]()
            self.go_on()

    def succeeds(self) -> Json:
        """Let the job finish its current epoch, and check that it succeeds."""
        self.wait(f"step={LEARNED}")
        self.space.ddp("exec", NAME, "--", "touch", HURRY).ok()
        done = self.space.ddp("wait", NAME, "--for=complete", "--timeout", "4m", seconds=300)
        assert done.code == 0, done.err + self.space.ddp("logs", NAME).out[-3000:]
        state = self.space.ddp("status", NAME, "-o", "json").ok().json
        summary: Json = state["summary"]
        assert (state["state"], summary["result"]) == ("Succeeded", "succeeded")
        assert (summary["samples_lost"], summary["samples_repeated"]) == (0, 0)
        assert summary["steps"] == summary["epochs"] * STEPS_PER_EPOCH
        assert summary["accuracy"] >= 0.95
        return summary


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("engine", "nnodes", "faults"),
    [
        ("pytorchjob", "1:3", ("pod", "container", "launcher", "store", "scale")),
        ("job", "1:3", ("container", "scale")),
        # A TrainJob is a JobSet underneath, and test_cluster_train_jobs.py takes pods, a launcher and a node from one.
        pytest.param("jobset", "1:2", ("pod",), marks=pytest.mark.long),
        pytest.param("trainjob", "1:2", ("container",), marks=pytest.mark.long),
    ],
)
def test_a_job_outlives_pods_containers_its_store_and_a_change_of_scale(
    space: Namespace, reach: NodeAccess, engine: str, nnodes: str, faults: tuple[str, ...]
) -> None:
    need(space, engine)
    job = Job(space, reach)
    job.submit(engine, nnodes)
    if nnodes == "1:3":
        space.ddp("scale", NAME, "--nnodes", "2").ok()
    job.wait("world-size=2")
    job.go_on()
    job.befall(*faults)
    summary = job.succeeds()
    assert sum(summary["restarts"].values()) >= len(faults)
    assert [listed["name"] for listed in space.ddp("list", "-o", "json").ok().json["items"]] == [NAME]
    space.ddp("delete", NAME, "--yes").ok()
    until("nothing left", lambda: not space.left())


@pytest.mark.timeout(300)
def test_a_spare_takes_the_place_of_a_deleted_pod_whose_successor_is_the_next_spare(
    space: Namespace, reach: NodeAccess
) -> None:
    need(space, "pytorchjob")
    job = Job(space, reach)
    job.submit("pytorchjob", "2", "--spares", "1")
    job.wait("world-size=2")
    spare = until("a spare", job.spare)
    lost = next(pod for pod in reversed(space.pods()) if pod["metadata"]["name"] != spare)
    job.delete(lost)
    until("the spare in the group", lambda: spare in {rank["pod"] for rank in job.ranks()})
    assert until("the next spare", job.spare) == lost["metadata"]["name"]
    job.succeeds()
    assert "Failed" not in {pod["status"]["phase"] for pod in space.pods()}


@pytest.mark.alone
@pytest.mark.timeout(400)
def test_a_job_outlives_a_machine_that_dies_and_one_that_is_cut_off(space: Namespace, reach: NodeAccess) -> None:
    if node_command() is None:
        pytest.skip(f"{NODE_COMMAND} names no command that takes machines down.")
    job = Job(space, reach)
    job.submit("pytorchjob", "1:2", "--topology", "spread=kubernetes.io/hostname:required")
    job.wait("world-size=2")
    job.go_on()
    [store] = space.pods(Role.STORE)
    for by in ("kill", "cut"):
        victim = next(pod for pod in space.pods() if pod["spec"]["nodeName"] != store["spec"]["nodeName"])
        with without(space.api, victim["spec"]["nodeName"], by=by):
            until("one rank alone", lambda: len(job.ranks()) == 1)
            job.go_on()
        job.wait("world-size=2")
    summary = job.succeeds()
    assert sum(summary["restarts"].values()) >= 2
