"""The additions of a fabric to the objects: the same on every engine, and without privileges."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ddp_trainer.common.constants import Exit
from kubectl_ddp.engines import Engine
from kubectl_ddp.fabrics.catalog import fabrics
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.render import Site, render
from kubectl_ddp.spec.job_key import Given, Origin, OriginKind
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.spec.resolve import DefaultingContext, resolve
from tests.support.jobs import ENGINES
from tests.support.programs import captured
from tests.support.rendered import RUN, store_job, worker_template

MACHINE = "nodeSelector.node.kubernetes.io/instance-type"
DEVICES = {
    "ib": "rdma/ib=8",
    "roce": "rdma/roce=8",
    "aws-efa": "vpc.amazonaws.com/efa=32",
    "oci-roce": "nvidia.com/rdma-vf=16",
    "coreweave-roce": "rdma/roce=1",
    **dict.fromkeys(("nebius-ib", "together-ib", "crusoe-ib", "lambda-ib"), "rdma/ib=8"),
}
ALL = [
    *(name for name, profile in fabrics().items() if profile.has_gpus and profile.largest is None),
    "gb200-mnnvl+gcp-gib-dra",
]


def job(fabric: str, engine: Engine = Engine.JOB, **text: Any) -> JobSpec:
    given = {"module": "vision", "name": "big", "nnodes": "2:4", "gpus": "8", "fabric": fabric, "engine": engine}
    given |= {"rdma": DEVICES[fabric]} if fabric in DEVICES else {}
    words = {key.replace("__", "."): value for key, value in (given | text).items() if value}
    layer = {key: Given(value, Origin(OriginKind.FLAG, key)) for key, value in words.items()}
    return resolve([layer], DefaultingContext(image="registry.example.com/vision:1.4.2")).spec


def pod_of(objects: list[Object]) -> Any:
    return worker_template(objects)["spec"]


def container_of(spec: JobSpec, **more: Any) -> Any:
    return pod_of(render(spec, RUN, **more))["containers"][0]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("fabric", ALL)
def test_every_fabric_says_the_same_on_every_engine(fabric: str, engine: Engine) -> None:
    expected, found = (render(job(fabric, entry), RUN) for entry in (Engine.JOB, engine))
    own = worker_template(expected)
    foreign = worker_template(found)
    assert foreign["metadata"] == own["metadata"]
    for key in ("resources", "env", "command", "securityContext"):
        assert foreign["spec"]["containers"][0][key] == own["spec"]["containers"][0][key]
    for key in ("resourceClaims", "affinity", "nodeSelector"):
        assert foreign["spec"].get(key) == own["spec"].get(key)
    groups = {"resource.nvidia.com/v1beta1", "resource.k8s.io/v1"}
    foreign, own = ([item for item in entry if item["apiVersion"] in groups] for entry in (found, expected))
    assert foreign == own


@pytest.mark.parametrize("fabric", ALL)
def test_no_fabric_leaves_pod_security_restricted(fabric: str) -> None:
    pod = pod_of(render(job(fabric), RUN))
    assert not {"hostNetwork", "hostPID", "hostIPC", "dnsPolicy", "initContainers"} & set(pod)
    assert not any("hostPath" in volume for volume in pod["volumes"])
    [container] = pod["containers"]
    closed = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert container["securityContext"] == closed
    assert container["resources"]["requests"] == container["resources"]["limits"]


def test_huge_pages_and_adapters_are_requested_and_limited() -> None:
    limits = container_of(job("aws-efa"))["resources"]["limits"]
    assert (limits["hugepages-2Mi"], limits["vpc.amazonaws.com/efa"], limits["memory"]) == ("5120Mi", "32", "96Gi")


def test_the_store_has_nothing_of_the_fabric() -> None:
    store = store_job(render(job("gb200-mnnvl+gcp-gib-dra"), RUN))["spec"]["template"]
    assert "resourceClaims" not in store["spec"]
    assert "hugepages-2Mi" not in str(store_job(render(job("aws-efa"), RUN)))
    assert "networking.gke.io" not in str(store_job(render(job("gcp-gib"), RUN)))


def test_a_compute_domain_names_the_template_of_which_every_pod_claims_a_channel() -> None:
    objects = render(job("gb200-mnnvl", gpus="4", namespace="ml"), RUN)
    [domain] = [item for item in objects if item["kind"] == "ComputeDomain"]
    assert domain["metadata"]["namespace"] == "ml"
    assert domain["spec"] == {"numNodes": 0, "channel": {"resourceClaimTemplate": {"name": "big-channel"}}}
    pod = pod_of(objects)
    assert pod["resourceClaims"] == [{"name": "channel", "resourceClaimTemplateName": "big-channel"}]
    assert pod["containers"][0]["resources"]["claims"] == [{"name": "channel"}]
    [term] = pod["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "nvidia.com/gpu.clique"
    [selected] = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert selected == {"matchExpressions": [{"key": "nvidia.com/gpu.clique", "operator": "Exists"}]}


def test_network_devices_are_claimed_from_a_template_that_comes_with_the_job() -> None:
    objects = render(job("gcp-gib-dra"), RUN)
    [template] = [item for item in objects if item["kind"] == "ResourceClaimTemplate"]
    assert template["metadata"]["name"] == "big-rdma"
    [request] = template["spec"]["spec"]["devices"]["requests"]
    exactly = {"deviceClassName": "mrdma.google.com", "allocationMode": "ExactCount", "count": 8}
    assert request == {"name": "devices", "exactly": exactly}
    assert pod_of(objects)["resourceClaims"] == [{"name": "rdma", "resourceClaimTemplateName": "big-rdma"}]


def test_all_devices_of_a_machine_are_claimed_without_a_count() -> None:
    [template] = [item for item in render(job("aws-efa-dra"), RUN) if item["kind"] == "ResourceClaimTemplate"]
    [request] = template["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"] == {"deviceClassName": "efa.networking.k8s.aws", "allocationMode": "All"}


def test_networks_are_attached_by_annotation_googles_as_multus() -> None:
    google = worker_template(render(job("gcp-gib"), RUN))["metadata"]["annotations"]
    assert len(json.loads(google["networking.gke.io/interfaces"])) == 9
    multus = worker_template(render(job("roce", networks=["net/rail-0", "net/rail-1"]), RUN))["metadata"]["annotations"]
    assert multus["k8s.v1.cni.cncf.io/networks"] == "net/rail-0,net/rail-1"
    functions = job("oci-roce", rdma=None, **{MACHINE: "BM.GPU.H200.8"})
    annotations = worker_template(render(functions, RUN))["metadata"]["annotations"]
    assert annotations["k8s.v1.cni.cncf.io/networks"] == ",".join(["rdma-vf"] * 8)


def test_this_machine_gets_none_of_it() -> None:
    objects = render(job("gb200-mnnvl+gcp-gib", networks=["rail-0"]), RUN, site=Site.LOCAL)
    assert "ComputeDomain" not in {item["kind"] for item in objects}
    pod = worker_template(objects)
    assert pod["spec"]["containers"][0]["command"] == ["ddp-launch"]
    assert "resourceClaims" not in pod["spec"]
    assert not any("network" in key for key in pod["metadata"]["annotations"])


def started(command: list[str], tmp_path: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs a container's command as the kubelet would, with the vendor's files below ``tmp_path``."""
    (tmp_path / "bin").mkdir(exist_ok=True)
    launcher = tmp_path / "bin" / "ddp-launch"
    launcher.write_text('#!/bin/sh\necho "pid $$"\nenv\necho "args $*"\n')
    launcher.chmod(0o755)
    expanded = [word.replace("$$", "$").replace("/usr/local", str(tmp_path)) for word in command]
    report = environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    return captured([*expanded, "--nnodes=2", "a b"], env=report)


def test_the_vendors_script_is_read_and_what_the_job_says_outlasts_it(tmp_path: Path) -> None:
    spec = job("gcp-gib", env__NCCL_IB_TC="7 $(x)")
    scripts = tmp_path / "gib" / "scripts"
    scripts.mkdir(parents=True)
    # Ends like many of them: with a test that fails.
    (scripts / "set_nccl_env.sh").write_text("export NCCL_IB_TC=52 NCCL_CROSS_NIC=0\nfalse\n")
    done = started(container_of(spec)["command"], tmp_path, **spec.env, LD_LIBRARY_PATH="/mine")
    lines = done.stdout.splitlines()
    assert {"NCCL_IB_TC=7 $(x)", "NCCL_CROSS_NIC=0", "NCCL_NET=gIB"} <= set(lines)
    assert f"LD_LIBRARY_PATH={tmp_path}/gib/lib64:{tmp_path}/nvidia/lib64:/mine" in lines
    assert lines[-1] == "args --nnodes=2 a b"
    assert (done.returncode, done.stderr) == (0, "")


def test_without_the_vendors_script_the_pod_ends_at_once_and_is_not_made_anew(tmp_path: Path) -> None:
    done = started(container_of(job("gcp-tcpxo"))["command"], tmp_path, **job("gcp-tcpxo").env)
    assert (done.returncode, done.stdout) == (Exit.DO_NOT_RESTART, "")
    assert done.stderr.count("\n") == 1
    assert "nccl-env-profile.sh is not there" in done.stderr


def test_a_path_of_libraries_alone_needs_no_script(tmp_path: Path) -> None:
    done = started(container_of(job("gcp-tcpx"))["command"], tmp_path)
    assert f"LD_LIBRARY_PATH={tmp_path}/nvidia/lib64" in done.stdout.splitlines()
    assert container_of(job("ib"))["command"] == ["ddp-launch"]
