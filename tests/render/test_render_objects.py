"""The content of the rendered objects of any job."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import ipaddress
import json
import pathlib
import random
import re
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given

from ddp_trainer.common.constants import NAME_LENGTH, Annotation, Env, Label, Path, Port, Role
from kubectl_ddp.code import pack
from kubectl_ddp.code.archive import PART_BYTES, read_back
from kubectl_ddp.kube.job_kinds import root_of
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.render import Code, render
from kubectl_ddp.render.objects import PLACEHOLDER, placeholder_run_id
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.spec.rules import longest_suffix
from kubectl_ddp.spec.serialization import spec_from_dict
from kubectl_ddp.values.network_peers import DnsServer, Reader
from kubectl_ddp.values.parsers import Egress
from kubectl_ddp.values.program import Command, Script
from kubectl_ddp.values.quantity import NodeRange
from tests.support.jobs import ANY_JOB, a_job, jobs
from tests.support.rendered import RUN, container, environment, expanded, templates


def by_kind(spec: JobSpec, **more: Any) -> dict[str, Object]:
    return {item["kind"]: item for item in render(spec, RUN, **more)}


@given(jobs())
@ANY_JOB
def test_any_valid_job_renders_and_its_texts_arrive_as_they_were(spec: JobSpec) -> None:
    objects = render(spec, RUN)
    found = environment(spec)
    assert {name: expanded(found[name]) for name in spec.env} == dict(spec.env)
    arguments = [expanded(word) for word in container(spec)["args"]]
    assert arguments[len(arguments) - len(spec.args) :] == list(spec.args)
    if isinstance(spec.program, Command):
        start = len(arguments) - len(spec.args) - len(spec.program.words)
        assert arguments[start - 1 : start + len(spec.program.words)] == ["--no-python", *spec.program.words]
    assert spec_from_dict(json.loads(root_of(objects)["metadata"]["annotations"][Annotation.SPEC])) == spec


@given(jobs())
@ANY_JOB
def test_any_valid_job_renders_names_that_kubernetes_takes(spec: JobSpec) -> None:
    for item in render(spec, RUN):
        name = item["metadata"]["name"]
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)
        assert len(name) <= NAME_LENGTH
        assert item["metadata"].get("namespace") == spec.namespace
    assert len(spec.name) + longest_suffix(spec.nnodes.maximum) <= NAME_LENGTH


@given(jobs())
@ANY_JOB
def test_every_pod_meets_pod_security_restricted(spec: JobSpec) -> None:
    for template in templates(render(spec, RUN)):
        pod = template["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"].get("runAsUser", 1) > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert all(
            set(volume) - {"name"} <= {"emptyDir", "persistentVolumeClaim", "configMap", "secret", "image"}
            for volume in pod.get("volumes", [])
        )
        for item in pod["containers"]:
            assert item["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


@given(jobs())
@ANY_JOB
def test_no_list_of_named_things_has_a_name_twice(spec: JobSpec) -> None:
    """A server-side apply refuses it, though ``create`` does not."""
    for template in templates(render(spec, RUN)):
        [item] = template["spec"]["containers"]
        for key in ("env", "ports", "volumeMounts"):
            names = [entry.get("name") for entry in item.get(key, [])]
            assert len(names) == len(set(names))
        volumes = [volume["name"] for volume in template["spec"].get("volumes", [])]
        assert len(volumes) == len(set(volumes))
        assert {mount["name"] for mount in item.get("volumeMounts", [])} == set(volumes)


def test_the_same_job_renders_to_the_same_objects() -> None:
    assert render(a_job(), RUN, run_secret=PLACEHOLDER) == render(a_job(), RUN, run_secret=PLACEHOLDER)
    assert placeholder_run_id(a_job()) == placeholder_run_id(a_job())
    assert placeholder_run_id(a_job()) != placeholder_run_id(a_job(max_restarts=3))


def test_every_object_and_pod_carries_our_labels_and_none_the_operators() -> None:
    objects = render(a_job(), RUN)
    for item in [*objects, *templates(objects)]:
        labels = item["metadata"]["labels"]
        assert (labels[Label.JOB], labels[Label.RUN_ID], labels[Label.MANAGED_BY]) == ("digits", RUN, "kubectl-ddp")
        assert not any(key.startswith("training.kubeflow.org/") for key in labels)
    assert [template["metadata"]["labels"][Label.ROLE] for template in templates(objects)] == [Role.WORKER, Role.STORE]


@pytest.mark.parametrize(("restarts", "limit"), [(0, 8), (1, 8), (10, 80)])
def test_one_incident_on_every_node_does_not_use_up_the_backoff(restarts: int, limit: int) -> None:
    policy = by_kind(a_job(nnodes=NodeRange(2, 8), max_restarts=restarts))["PyTorchJob"]["spec"]["runPolicy"]
    assert policy == {"cleanPodPolicy": "Running", "suspend": False, "backoffLimit": limit}


def test_the_store_is_a_job_that_is_made_again_wherever_it_is_lost() -> None:
    store = by_kind(a_job())["Job"]
    assert store["metadata"]["name"] == "digits-store"
    assert store["spec"]["backoffLimit"] == 2**31 - 1
    assert store["spec"]["podReplacementPolicy"] == "TerminatingOrFailed"
    assert "activeDeadlineSeconds" not in store["spec"]
    pod = store["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "OnFailure"
    [item] = pod["containers"]
    assert item["command"] + item["args"] == ["python", "-m", "ddp_trainer", "store", "--port", "29400"]
    names = {variable["name"] for variable in item["env"]}
    assert {Env.RUN_ID, Env.JOB, Env.POD_IP} <= names


def test_the_store_keeps_away_from_the_workers_and_from_their_machines() -> None:
    kept = {"kubernetes.io/arch": "arm64", "topology.kubernetes.io/zone": "a"}
    spec = a_job(node_selector=kept | {"nvidia.com/gpu.product": "H100"})
    worker, store = (template["spec"] for template in templates(render(spec, RUN)))
    assert worker["nodeSelector"] == dict(spec.node_selector)
    assert store["nodeSelector"] == kept
    [term] = store["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"]["labelSelector"]["matchLabels"] == {Label.JOB: "digits", Label.ROLE: Role.WORKER}


def test_only_pods_of_the_same_job_reach_its_ports_and_prometheus_its_metrics() -> None:
    policy = by_kind(a_job())["NetworkPolicy"]["spec"]
    own = {"podSelector": {"matchLabels": {Label.JOB: "digits"}}}
    assert policy["podSelector"] == own["podSelector"]
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    metrics = {"ports": [{"port": Port.METRICS, "protocol": "TCP"}], "from": [monitoring]}
    assert policy["ingress"] == [{"from": [own]}, metrics]


DNS_PORTS = [{"port": port, "protocol": kind} for port in (53, 5353) for kind in ("UDP", "TCP")]


def test_open_egress_leaves_out_the_credentials_that_clouds_hand_to_machines_and_keeps_dns() -> None:
    policy = by_kind(a_job())["NetworkPolicy"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    everywhere, dns = policy["egress"]
    assert dns == {"ports": DNS_PORTS}
    pods, *blocks = everywhere["to"]
    assert pods == {"namespaceSelector": {}}, "some networks match no pod by an address"

    def is_reached(address: str) -> bool:
        where = ipaddress.ip_address(address)
        return any(
            where in ipaddress.ip_network(block["cidr"])
            and not any(where in ipaddress.ip_network(item) for item in block["except"])
            for block in (item["ipBlock"] for item in blocks)
        )

    refused = {"169.254.169.254", "fd00:ec2::254", "2001:db8::1"}
    reached = {"8.8.8.8", "10.0.0.1", "169.254.20.10", "169.254.170.23"}
    assert {item for item in refused | reached if is_reached(item)} == reached
    unrestricted = by_kind(a_job(egress=Egress.UNRESTRICTED))["NetworkPolicy"]["spec"]
    assert unrestricted["policyTypes"] == ["Ingress"]
    assert "egress" not in unrestricted


def test_metrics_open_to_whom_the_job_names_and_to_the_api_servers() -> None:
    readers = tuple(map(Reader.parse, ("team=watchers", "10.2.0.0/16")))
    policy = by_kind(a_job(metrics_from=readers), api_servers=("10.0.0.7", "fd00::7"))["NetworkPolicy"]["spec"]
    team, *blocks = policy["ingress"][1]["from"]
    assert team == {"namespaceSelector": {"matchLabels": {"team": "watchers"}}}
    assert blocks == [{"ipBlock": {"cidr": cidr}} for cidr in ("10.2.0.0/16", "10.0.0.7/32", "fd00::7/128")]


def test_metrics_open_to_everybody_where_the_job_says_so() -> None:
    policy = by_kind(a_job(metrics_from=(Reader.parse("*"),)))["NetworkPolicy"]["spec"]
    assert policy["ingress"][1] == {"ports": [{"port": Port.METRICS, "protocol": "TCP"}]}


KUBE_DNS = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
    "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
}


@pytest.mark.parametrize(
    ("servers", "peers"),
    [
        ((), [KUBE_DNS, {"ipBlock": {"cidr": "169.254.20.10/32"}}]),
        (("10.96.0.10",), [{"ipBlock": {"cidr": "10.96.0.10/32"}}]),
    ],
)
def test_closed_egress_leaves_the_job_and_dns_servers(servers: tuple[str, ...], peers: list[dict[str, Any]]) -> None:
    job = a_job(egress=Egress.CLOSED, dns=tuple(map(DnsServer.parse, servers)))
    policy = by_kind(job)["NetworkPolicy"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    own, dns = policy["egress"]
    assert own == {"to": [{"podSelector": {"matchLabels": {Label.JOB: "digits"}}}]}
    assert dns == {"to": peers, "ports": DNS_PORTS}


def test_a_script_travels_as_a_config_map_of_its_own() -> None:
    text = "print('$(HOME) é')\n# \x85 \u2028 end\n"
    objects = by_kind(a_job(program=Script("src/train.py"), args=()), code=Code("train.py", text))
    name = f"digits-code-{hashlib.sha256(text.encode()).hexdigest()[:10]}"
    assert objects["ConfigMap"]["metadata"]["name"] == name
    assert objects["ConfigMap"]["immutable"] is True
    assert objects["ConfigMap"]["data"] == {"train.py": text}
    pod = objects["PyTorchJob"]["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    assert {"name": "code", "configMap": {"name": name}} in pod["volumes"]
    assert {"name": "code", "mountPath": str(Path.CODE), "readOnly": True} in pod["containers"][0]["volumeMounts"]


def test_a_directory_travels_packed_and_an_init_container_unpacks_it_where_the_program_works() -> None:
    spec = a_job(program=Script("lib/train.py"), args=(), code="project")
    objects = by_kind(spec, code=Code("code.tar.gz", "H4sIAAAA"))
    assert objects["ConfigMap"]["binaryData"] == {"code.tar.gz": "H4sIAAAA"}
    pod = objects["PyTorchJob"]["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    [unpack], [program] = pod["initContainers"], pod["containers"]
    assert (program["workingDir"], program["args"][-1]) == (str(Path.CODE), f"{Path.CODE}/lib/train.py")
    assert unpack["command"][-2:] == [str(Path.CODE_ARCHIVE), str(Path.CODE)]
    assert unpack["securityContext"] == program["securityContext"]
    assert unpack["resources"]["limits"] == program["resources"]["limits"]
    mounts = {entry["mountPath"]: entry for entry in unpack["volumeMounts"]}
    assert mounts[Path.CODE_ARCHIVE]["readOnly"] is True
    assert {"name": "code", "mountPath": str(Path.CODE), "readOnly": False} in program["volumeMounts"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["code"] == {"name": "code", "emptyDir": {}}
    sources = [{"configMap": {"name": objects["ConfigMap"]["metadata"]["name"]}}]
    assert volumes["code-archive"]["projected"] == {"sources": sources}


def test_a_large_directory_travels_in_several_config_maps_and_is_whole_in_the_pod(tmp_path: pathlib.Path) -> None:
    project, mounted, target = (tmp_path / name for name in ("project", "mounted", "target"))
    for directory in (project, mounted, target):
        directory.mkdir()
    noise = random.Random(0).randbytes(2 * PART_BYTES)
    (project / "table.bin").write_bytes(noise)
    code = pack(str(project))
    made = render(a_job(args=(), code="project"), RUN, code=code)
    maps = [item for item in made if item["kind"] == "ConfigMap"]
    names = [f"digits-code-{code.hash}{end}" for end in ("", "-1", "-2")]
    assert [item["metadata"]["name"] for item in maps] == names
    assert all(item["immutable"] for item in maps)
    assert read_back(maps[::-1]) == dataclasses.replace(code, files=0)
    pod = made[0]["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    [volume] = [volume for volume in pod["volumes"] if volume["name"] == "code-archive"]
    assert [source["configMap"]["name"] for source in volume["projected"]["sources"]] == names
    for item in maps:
        [(name, text)] = item["binaryData"].items()
        assert len(base64.b64decode(text)) <= PART_BYTES
        (mounted / name).write_bytes(base64.b64decode(text))
    [unpack] = pod["initContainers"]
    command = [sys.executable, *unpack["command"][1:-2], str(mounted), str(target)]
    subprocess.run(command, check=True)
    assert (target / "table.bin").read_bytes() == noise
