"""Objects of a job whose ranks the image's own torchrun starts, on every engine."""

from __future__ import annotations

from typing import Any

import pytest

from ddp_trainer.common.constants import Env
from kubectl_ddp.engines import ENGINES, Engine
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.render import Site, render
from kubectl_ddp.render.pod import TORCHRUN
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.values.pod import RuntimeMount
from kubectl_ddp.values.program import Launcher, Module
from kubectl_ddp.values.quantity import NodeRange
from tests.support.jobs import a_job
from tests.support.rendered import RUN, container, environment, worker_pod, worker_template

FIRST = {"pytorchjob": "digits-worker-0", "trainjob": "digits-node-0-0", "jobset": "digits-node-0-0", "job": "digits-0"}
"""Host name of the first worker, which is its pod's name without the part that the Job controller draws."""


def of_torchrun(**changes: Any) -> JobSpec:
    return a_job(launcher=Launcher.TORCHRUN, program=Module("mine.train"), args=("--lr", "1"), **changes)


def kinds(objects: list[Object]) -> set[tuple[str, str]]:
    return {(item["kind"], item["metadata"]["name"]) for item in objects if item is not job_kinds.root_of(objects)}


@pytest.mark.parametrize("engine", ENGINES)
def test_torchrun_of_the_image_gets_the_sizes_of_the_job_and_meets_at_worker_0(engine: str) -> None:
    objects = render(of_torchrun(engine=Engine(engine)), RUN)
    [found] = worker_template(objects)["spec"]["containers"]
    assert found["command"] == ["python3", "-c", TORCHRUN, "torch.distributed.run"]
    assert found["args"] == [
        *("--nnodes=1:2", "--nproc-per-node=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={FIRST[engine]}:29400"),
        *(f"--rdzv-id={RUN}", "--max-restarts=10", "--tee=3", "--rdzv-conf=read_timeout=600,join_timeout=600"),
        *("--local-addr=$(DDP_POD_IP)", "-m", "mine.train", "--lr", "1"),
    ]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_headless_service_names_worker_0_unless_the_operator_makes_one(engine: str) -> None:
    objects = render(of_torchrun(engine=Engine(engine)), RUN)
    services = {item["metadata"]["name"]: item["spec"] for item in objects if item["kind"] == "Service"}
    if engine == "pytorchjob":
        policy = job_kinds.root_of(objects)["spec"]["elasticPolicy"]
        assert (services, policy["rdzvHost"], policy["rdzvBackend"]) == ({}, "digits-worker-0", "c10d")
        return
    found = services[FIRST[engine]]
    assert (found["clusterIP"], found["publishNotReadyAddresses"], found["ports"][0]["port"]) == ("None", True, 29400)
    first = {"batch.kubernetes.io/job-completion-index": "0"}
    assert found["selector"] == {"ddp.dev/job": "digits", "ddp.dev/role": "worker", **first}


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_of_ours_is_in_the_pods_and_no_object_serves_our_launcher_alone(engine: str) -> None:
    own = kinds(render(a_job(engine=Engine(engine)), RUN))
    foreign = kinds(render(of_torchrun(engine=Engine(engine)), RUN))
    assert {kind for kind, _ in own - foreign} == {"Job", "Service", "Secret", "PodMonitor"}
    [policy] = [item for item in render(of_torchrun(), RUN) if item["kind"] == "NetworkPolicy"]
    assert len(policy["spec"]["ingress"]) == 1
    pod = worker_pod(of_torchrun(engine=Engine(engine)))
    assert {volume["name"] for volume in pod["volumes"]} == {"run", "checkpoints", "shm", "scratch"}
    assert "initContainers" not in pod
    assert [port["containerPort"] for port in pod["containers"][0]["ports"]] == [23456]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_mounted_runtime_serves_the_metrics_of_the_ranks(engine: str) -> None:
    job = of_torchrun(engine=Engine(engine), runtime_image="ddp-runtime:1", runtime_mount=RuntimeMount.COPY)
    assert "PodMonitor" in {kind for kind, _ in kinds(render(job, RUN))}
    pod = worker_pod(job)
    assert {volume["name"] for volume in pod["volumes"]} >= {"boards", "runtime"}
    assert [port["containerPort"] for port in pod["containers"][0]["ports"]] == [23456, 9464]
    assert environment(job)[Env.METRICS_DIR] == "/var/run/ddp/metrics"


def test_the_interpreter_of_the_job_runs_torchrun() -> None:
    assert container(of_torchrun(python="/opt/conda/bin/python"))["command"][0] == "/opt/conda/bin/python"


def test_runs_on_this_machine_have_ports_of_their_own() -> None:
    # torch's store listens at all addresses, so the one of another job would be met.
    def endpoint(run: str) -> str:
        [found] = worker_template(render(of_torchrun(), run, site=Site.LOCAL))["spec"]["containers"]
        assert found["command"][0] == "python"
        return next(word for word in found["args"] if word.startswith("--rdzv-endpoint="))

    assert endpoint("a").startswith("--rdzv-endpoint=digits-worker-0:2")
    assert len({endpoint(run) for run in "abcdefgh"}) == 8


@pytest.mark.parametrize(("nodes", "policy"), [(NodeRange(2, 2), "None"), (NodeRange(1, 2), "Running")])
def test_a_pytorchjob_of_a_fixed_size_keeps_the_pods_that_end_last(nodes: NodeRange, policy: str) -> None:
    root = job_kinds.root_of(render(of_torchrun(nnodes=nodes, engine=Engine.PYTORCHJOB), RUN))
    assert root["spec"]["runPolicy"]["cleanPodPolicy"] == policy
