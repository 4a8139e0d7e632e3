"""Values of the chart as a person reads and edits them; ``tests/render/test_job_chart_parity.py`` compares objects."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given

from ddp_trainer.common.layout_range import LayoutRange
from kubectl_ddp.cli.run import run
from kubectl_ddp.code.archive import ARCHIVE, Code
from kubectl_ddp.render.helm_values import helm_values, to_text
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.values.dns import DnsServer
from kubectl_ddp.values.engine import Engine, Gang, QueueResize
from kubectl_ddp.values.metrics_ingress import Reader
from kubectl_ddp.values.node_requirements import Rdma, Topology
from kubectl_ddp.values.parsers import Egress, SecretKey
from kubectl_ddp.values.program import Command, Script
from kubectl_ddp.values.quantity import Nodes
from kubectl_ddp.values.volumes import Mount
from tests.support.jobs import a_job, jobs

PLAIN = {
    "name": "digits",
    "image": "ddp-trainer:1",
    "module": "ddp_trainer",
    "args": ["train", "--task", "digits"],
    "nnodes": "1:2",
    "nproc": 2,
    "cpu": "2",
    "memory": "2Gi",
    "shm": "512Mi",
    "maxRestarts": 10,
    "backoffLimit": 20,
    "terminationGracePeriodSeconds": 30,
}


def more_of(**changes: Any) -> dict[str, Any]:
    """The values that differ from those of a plain job."""
    values = helm_values(a_job(**changes))
    return {key: value for key, value in values.items() if PLAIN.get(key) != value}


def test_a_plain_job_has_plain_values_alone() -> None:
    assert helm_values(a_job()) == PLAIN
    assert helm_values(a_job(nnodes=Nodes(3, 3)))["nnodes"] == 3


@pytest.mark.parametrize(
    ("changes", "values"),
    [
        ({"engine": Engine.JOBSET}, {"engine": "jobset"}),
        ({"env": {"A": "b"}}, {"env": {"A": "b"}}),
        (
            {"secret_env": {"TOKEN": SecretKey("hub", "token")}},
            {"secretEnv": {"TOKEN": {"name": "hub", "key": "token"}}},
        ),
        (
            {"gpus": 2, "rdma": Rdma("rdma/ib", 2)},
            {"gpus": 2, "resources": {"rdma/ib": "2"}, "jobFile": {"rdma": "rdma/ib=2"}},
        ),
        (
            {"gpus": 1, "nproc": 1, "mig": "3g.40gb"},
            {"gpus": 1, "nproc": 1, "gpuResource": "nvidia.com/mig-3g.40gb", "jobFile": {"mig": "3g.40gb"}},
        ),
        (
            {"gpus": 2, "gpu_type": "NVIDIA-H100-80GB-HBM3"},
            {
                "gpus": 2,
                "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
                "jobFile": {"gpuType": "NVIDIA-H100-80GB-HBM3", "nodeSelector": {}},
            },
        ),
        ({"parallel": LayoutRange.parse("replicate=1:2,shard=2")}, {"parallel": "replicate=1:2,shard=2"}),
        ({"queue": "q", "engine": Engine.JOB}, {"engine": "job", "kueue": {"queue": "q", "partialAdmission": True}}),
        (
            {"queue": "q", "engine": Engine.JOB, "queue_resize": QueueResize.RUNNING},
            {"engine": "job", "kueue": {"queue": "q", "elastic": True}},
        ),
        (
            {"queue": "q", "queue_priority": "urgent", "nnodes": Nodes(2, 2)},
            {"kueue": {"queue": "q", "priorityClass": "urgent"}, "nnodes": 2},
        ),
        (
            {"gang": Gang.VOLCANO, "queue": "q"},
            {
                "schedulerName": "volcano",
                "podGroup": {"apiVersion": "scheduling.volcano.sh/v1beta1", "spec": {"minMember": 1, "queue": "q"}},
                "schedulingPolicy": {"minAvailable": 1, "queue": "q"},
                "podAnnotations": {"scheduling.k8s.io/group-name": "digits"},
                "jobFile": {"gang": "volcano", "queue": "q"},
            },
        ),
        (
            {"gang": Gang.NATIVE, "priority": "high"},
            {
                "priorityClassName": "high",
                "podGroup": {
                    "apiVersion": "scheduling.k8s.io/v1alpha2",
                    "spec": {"schedulingPolicy": {"gang": {"minCount": 1}}, "priorityClassName": "high"},
                },
                "schedulingPolicy": {"minAvailable": 1, "priorityClass": "high"},
                "jobFile": {"gang": "native"},
            },
        ),
        (
            {"mounts": (Mount.parse("pvc=data:/data:ro"),)},
            {
                "volumes": [{"name": "mount-0", "persistentVolumeClaim": {"claimName": "data", "readOnly": True}}],
                "volumeMounts": [{"name": "mount-0", "mountPath": "/data", "readOnly": True}],
                "jobFile": {"mounts": ["pvc=data:/data:ro"]},
            },
        ),
        (
            {"topology": (Topology.parse("pack=rack:required"), Topology.parse("spread=zone"))},
            {
                "topology": {"pack": [{"topologyKey": "rack", "required": True}], "spread": [{"topologyKey": "zone"}]},
                "jobFile": {"topology": ["pack=rack:required", "spread=zone"]},
            },
        ),
        (
            {"metrics_from": (Reader.parse("*"),)},
            {"networkPolicy": {"metricsFrom": []}, "jobFile": {"metricsFrom": ["*"]}},
        ),
        (
            {"egress": Egress.CLOSED, "dns": (DnsServer.parse("10.96.0.10"),)},
            {
                "networkPolicy": {"egress": "closed", "dns": [{"ipBlock": {"cidr": "10.96.0.10/32"}}]},
                "jobFile": {"dns": ["10.96.0.10/32"]},
            },
        ),
        ({"namespace": "team-a"}, {"jobFile": {"namespace": "team-a"}}),
        ({"deadline_seconds": 60, "ttl_seconds": 0}, {"activeDeadlineSeconds": 60, "ttlSecondsAfterFinished": 0}),
    ],
    ids="+".join,
)
def test_each_key_becomes_values_that_a_person_reads(changes: dict[str, Any], values: dict[str, Any]) -> None:
    assert more_of(**changes) == values


def test_addresses_of_api_servers_become_blocks() -> None:
    policy = helm_values(a_job(), api_servers=("10.0.0.1", "fd00::1"))["networkPolicy"]
    assert policy == {"apiServers": ["10.0.0.1/32", "fd00::1/128"]}


@pytest.mark.parametrize(
    ("changes", "code", "values"),
    [
        (
            {"program": Script("src/train.py")},
            Code("train.py", "a\nb\n"),
            {"script": "src/train.py", "scriptText": "a\nb\n"},
        ),
        (
            {"program": Script("train.py"), "code": "src"},
            Code(ARCHIVE, "YQ=="),
            {"script": "train.py", "code": "src", "codeArchive": "YQ=="},
        ),
        ({"program": Command(("python", "-u"))}, None, {"command": ["python", "-u"]}),
    ],
)
def test_a_program_is_what_it_was_in_the_job_file(
    changes: dict[str, Any], code: Code | None, values: dict[str, Any]
) -> None:
    found = helm_values(a_job(**changes), code)
    assert {key: found.get(key) for key in values} == values
    assert "module" not in found


@given(jobs())
def test_yaml_reads_every_text_back(spec: JobSpec) -> None:
    spec = replace(spec, pod_template=None)  # refused
    values = helm_values(spec, Code("train.py", "\n".join(spec.args)))
    assert yaml.safe_load(to_text(values)) == json.loads(json.dumps(values))


def test_a_script_stands_as_it_was_written() -> None:
    script = "import torch\n\n  print('Grüße')\n"
    assert "scriptText: |\n  import torch\n\n    print('Grüße')\n" in to_text({"scriptText": script})
    assert "|" not in to_text({"scriptText": "a\n\x85b\n"})


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a script, and no cluster."""
    (tmp_path / "train.py").write_text("print('hello')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBECTL_DDP_IMAGE", raising=False)
    return tmp_path


@pytest.mark.usefixtures("here")
def test_render_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["render", "train.py", "--name", "x", "-o", "helm-values", "--image", "registry.example.com/t:1"]) == 0
    told = capsys.readouterr()
    values = yaml.safe_load(told.out)
    assert (values["name"], values["script"], values["scriptText"]) == ("x", "train.py", "print('hello')\n")
    assert told.err == ""


@pytest.mark.usefixtures("here")
def test_values_for_this_machine_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["render", "train.py", "--local", "-o", "helm-values"]) == 2
    assert (
        "-o helm-values writes values for a cluster, and the job is local. Leave --local out."
        in capsys.readouterr().err
    )


@pytest.mark.usefixtures("here")
def test_a_secret_in_clear_becomes_no_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["render", "train.py", "-o", "helm-values", "--env", "HUB_TOKEN=abc"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "HUB_TOKEN" in told.err
