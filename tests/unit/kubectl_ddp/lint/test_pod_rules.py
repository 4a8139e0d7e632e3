"""Each rule about pods: what makes it speak, and what is so close to it that it must be silent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubectl_ddp.errors import UsageError
from kubectl_ddp.lint.manifests import find_workloads, parse_manifest, unknown_kinds, without_pods
from kubectl_ddp.lint.registry import RULES, check, unknown_ids

ROOT = Path(__file__).parents[4]
SHM = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}
MOUNT = [{"name": "shm", "mountPath": "/dev/shm/"}]
IB = {"rdma/ib": 8}
EFA = {"vpc.amazonaws.com/efa": 32, "hugepages-2Mi": "5120Mi"}
TYPE = "node.kubernetes.io/instance-type"
NOT_ROOT = {"runAsNonRoot": True}
LOCK = {"capabilities": {"add": ["IPC_LOCK"]}}


def pod(gpus: int = 8, shm: Any = SHM, **more: Any) -> dict[str, Any]:
    """A pod template as somebody might write it, with everything right; dotted words change its container."""
    limits = {"nvidia.com/gpu": gpus, "memory": "64Gi"} | more.pop("devices", {})
    one = {"name": "pytorch", "image": "a", "resources": {"limits": limits}} | more.pop("container", {})
    if shm:
        one["volumeMounts"] = MOUNT
    labels = {"sidecar.istio.io/inject": "false", "app": "train"}
    metadata = {"labels": labels} | more.pop("metadata", {})
    return {"metadata": metadata, "spec": {"containers": [one], "volumes": [shm] if shm else [], **more}}


def job(template: Any = None, *, master: Any = None, worker_count: int = 4, masters: int = 1, **metadata: Any) -> Any:
    replicas = {"Worker": {"replicas": worker_count, "template": template or pod()}}
    if master:
        replicas = {"Master": {"replicas": masters, "template": master}} | replicas
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "train", **metadata},
        "spec": {"pytorchReplicaSpecs": replicas, "runPolicy": {"schedulingPolicy": {"queue": "q"}}},
    }


def env(**variables: str) -> dict[str, Any]:
    return {"container": {"env": [{"name": name, "value": value} for name, value in variables.items()]}}


def namespace(**labels: str) -> dict[str, Any]:
    spelled = {key.replace("__", "/").replace("_", "-"): value for key, value in labels.items()}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml", "labels": spelled}}


def policy(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "closed"},
        "spec": {"podSelector": {}, **spec},
    }


def service(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "nodes"},
        "spec": {"selector": {"app": "train"}} | spec,
    }


DOMAIN = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "ComputeDomain",
    "metadata": {"name": "rack"},
    "spec": {"channel": {"resourceClaimTemplate": {"name": "rack-channel"}}},
}
CLAIM = {"resourceClaims": [{"name": "channel", "resourceClaimTemplateName": "rack-channel"}]}
CLIQUE = {"podAffinity": {"requiredDuringScheduling": [{"topologyKey": "nvidia.com/gpu.clique"}]}}
FROM_APP = [{"from": [{"podSelector": {"matchLabels": {"app": "train"}}}]}]
PORT = [{"from": [{"podSelector": {}}], "ports": [{"port": 29500}]}]
WIDE = [{"ports": [{"port": 30000, "endPort": 60999}]}]
DAEMON = {"name": "tcpxo-daemon", "restartPolicy": "Always", "image": "tcpgpudmarxd-dev:v1"}
QUEUED = {"labels": {"app": "train", "kueue.x-k8s.io/queue-name": "q"}}

Case = tuple[str, Sequence[Any], str]


def made_by_job(template: Any, **more: Any) -> Any:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j"},
        "spec": {"parallelism": 4, "template": template} | more,
    }


SPEAKS: list[Case] = [
    ("K01", [job(pod(shm=None))], "Container pytorch has 8 GPUs and no volume at /dev/shm"),
    ("K02", [job(pod(shm={"name": "shm", "emptyDir": {}}))], "The volume shm at /dev/shm of container pytorch is"),
    ("K03", [job(pod(shm={"name": "shm", "hostPath": {"path": "/dev/shm"}}))], "has the machine's /dev/shm"),
    ("K04", [job(pod(devices=IB))], "requests rdma/ib and may not lock memory"),
    ("K05", [job(pod(container={"securityContext": {**NOT_ROOT, **LOCK}}))], "pytorch is not root, so IPC_LOCK"),
    ("K06", [job(pod(container={"securityContext": {"privileged": True}}))], "may do everything"),
    ("K07", [job(pod(devices=EFA | {"vpc.amazonaws.com/efa": 4}, nodeSelector={TYPE: "p5.48xlarge"}))], "has 32"),
    (
        "K08",
        [job(pod(container={"resources": {"requests": IB, "limits": {"rdma/ib": 4}}}))],
        "rdma/ib: 8 and is limited to 4",
    ),
    ("K08", [job(pod(container={"resources": {"requests": {"hugepages-2Mi": "1Gi"}}}))], "is limited to nothing"),
    ("K09", [job(pod(devices=IB, nodeSelector={"gpu.nvidia.com/class": "H100"}))], "on CoreWeave it is 1"),
    ("K09", [job(pod(devices={"rdma/ib": 1}, nodeSelector={"agentpool": "nd"}))], "on Azure it counts adapters"),
    ("K10", [namespace(istio_injection="enabled"), job(pod(metadata={"labels": {}}))], "Istio's proxy"),
    (
        "K11",
        [job(pod(metadata={"labels": {}}), annotations={"sidecar.istio.io/inject": "false"})],
        "only on the PyTorchJob",
    ),
    ("K12", [job(pod(hostNetwork=True))], "with dnsPolicy not set its resolver"),
    ("K13", [job(pod(hostNetwork=True))], "shares its machine's ports"),
    ("K14", [policy(), job()], "The NetworkPolicy closed allows the pods no ingress"),
    ("K14", [policy(ingress=PORT), job()], "the rendezvous port is not enough"),
    ("K14", [policy(ingress=FROM_APP, policyTypes=["Ingress", "Egress"]), job()], "allows the pods no egress"),
    ("K15", [job(master=pod(), masters=2)], "The Master has 2 replicas"),
    ("K16", [job(pod(4), master=pod(8))], "The pods of Worker have 4 GPUs of any type, and Master has 8 GPUs"),
    ("K17", [job(pod(4, devices=IB))], "4 GPUs are requested with RDMA"),
    ("K18", [job(pod(devices=IB))], "The 4 pods have no placement constraint"),
    ("K19", [made_by_job(pod())], "The 4 pods are scheduled one by one"),
    ("K21", [DOMAIN, job(pod(**CLAIM))], "within one nvidia.com/gpu.clique"),
    ("K24", [job(pod(1, shm=None))], "no volume at /dev/shm"),
    (
        "K25",
        [job(pod(shm={"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}}))],
        "the limit of that is 64Gi",
    ),
    ("K26", [job(pod(devices=EFA))], "requests vpc.amazonaws.com/efa without IPC_LOCK"),
    ("K27", [job(pod(devices=IB, securityContext=NOT_ROOT))], "is not root, so the container runtime"),
    ("K28", [job(pod(devices={"vpc.amazonaws.com/efa": 32}))], "requests EFA without huge pages"),
    ("K29", [job(pod(metadata={"labels": {}}))], "Where the namespace has Istio"),
    ("K30", [service(), job(pod(subdomain="nodes"))], "it lacks clusterIP: None and publishNotReadyAddresses: true"),
    ("K30", [service(clusterIP="None"), job(pod(**env(MASTER_ADDR="j-0.nodes")))], "it lacks publishNotReadyAddresses"),
    ("K31", [job(pod(initContainers=[DAEMON]))], "NCCL may start before tcpxo-daemon is ready"),
    (
        "K32",
        [job(pod(container={"command": ["bash", "-c", "torchrun --node_rank=1 train.py"]}))],
        "--node_rank 1 is the same in all 4",
    ),
    ("K32", [job(pod(container={"args": ["--machine-rank", "0"]}))], "--machine-rank 0 is the same in all 4 pods"),
    ("K32", [job(pod(**env(PET_NODE_RANK="1")))], "PET_NODE_RANK 1 is the same"),
    (
        "K32",
        [
            job(
                pod(container={"args": ["--node_rank=0"]}),
                master=pod(container={"args": ["--node_rank=0"]}),
                worker_count=1,
            )
        ],
        "--node_rank 0 is the same in all 2 pods",
    ),
    ("K39", [job(pod(container={"name": "trainer"}))], "No container has the name pytorch (only trainer)"),
    (
        "K40",
        [job(pod(container={"args": ["torchrun --nnodes=4 --rdzv_endpoint=localhost:29500 train.py"]}))],
        "--rdzv_endpoint localhost:29500 is another place in each pod",
    ),
    ("K40", [job(pod(**env(PET_RDZV_ENDPOINT="127.0.0.1:29400")))], "PET_RDZV_ENDPOINT 127.0.0.1:29400"),
    ("K33", [job(pod(**env(MASTER_ADDR="train-master-0")))], "MASTER_ADDR=train-master-0 is set by the operator"),
    ("K34", [job(pod(container={"args": ["--rdzv-backend", "etcd-v2"]}))], "--rdzv-backend etcd-v2 speaks only"),
    ("K34", [job(pod(**env(PET_RDZV_BACKEND="etcd")))], "--rdzv-backend etcd speaks only"),
    ("K35", [job(pod(**env(NCCL_ALGO="Ring")), master=pod())], "NCCL_ALGO is Ring here and not set in Master"),
    ("K36", [job(pod(devices=IB, **env(NCCL_IB_DISABLE="1")))], "NCCL_IB_DISABLE=1 leaves rdma/ib idle"),
    ("K37", [job(pod(devices=IB))], "NCCL falls back to TCP without a warning if rdma/ib"),
    ("K38", [job(pod(**CLAIM, **env(NCCL_CUMEM_ENABLE="0")))], "NCCL_CUMEM_ENABLE=0 switches off"),
]

LEVEL = "pod-security.kubernetes.io/enforce"


def enforced(level: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml", "labels": {LEVEL: level}}}


SAFE = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
SPEAKS += [
    (
        "K23",
        [enforced("baseline"), job(pod(container={"securityContext": LOCK}))],
        "the capability IPC_LOCK of pytorch",
    ),
    ("K23", [enforced("baseline"), job(pod(hostNetwork=True))], "refuses the pods for hostNetwork"),
    (
        "K23",
        [enforced("baseline"), job(pod(shm={"name": "shm", "hostPath": {"path": "/x"}}))],
        "the hostPath of volume shm",
    ),
    ("K23", [enforced("restricted"), job()], "no runAsNonRoot: true of pytorch, no allowPrivilegeEscalation: false"),
]

SILENT: list[Case] = [
    ("K01", [job(pod(shm=None, hostIPC=True)), job(pod(1, shm=None)), job(pod(0, shm=None))], ""),
    ("K04", [job(pod(devices=IB, container={"resources": {"limits": IB}, "securityContext": LOCK}))], ""),
    ("K04", [job(pod(devices=IB, securityContext=NOT_ROOT)), job(pod(devices=EFA))], ""),
    ("K05", [job(pod(container={"securityContext": LOCK}))], ""),
    ("K07", [job(pod(devices=EFA, nodeSelector={TYPE: "p5.48xlarge"})), job(pod(devices=EFA))], ""),
    (
        "K08",
        [job(pod(container={"resources": {"requests": {"cpu": 1, "rdma/ib": 8}, "limits": {"rdma/ib": "8"}}}))],
        "",
    ),
    ("K09", [job(pod(devices=IB, nodeSelector={"agentpool": "nd"})), job(pod(devices=IB))], ""),
    ("K10", [namespace(istio_injection="enabled"), job()], ""),
    ("K11", [job(annotations={"sidecar.istio.io/inject": "false", "team": "nlp"})], ""),
    ("K12", [job(pod(hostNetwork=True, dnsPolicy="ClusterFirstWithHostNet"))], ""),
    ("K13", [job(pod(hostNetwork=True, **env(NCCL_RAS_ADDR="localhost:31000")))], ""),
    ("K14", [policy(ingress=FROM_APP), job()], ""),
    ("K14", [policy(ingress=WIDE), job()], ""),
    ("K14", [policy(), policy(ingress=[{}]), job()], ""),
    ("K14", [policy(podSelector={"matchExpressions": [{"key": "db", "operator": "Exists"}]}), job()], ""),
    (
        "K14",
        [
            policy(ingress=[{"from": [{"podSelector": {"matchLabels": {"training.kubeflow.org/job-name": "train"}}}]}]),
            job(),
        ],
        "",
    ),
    ("K14", [policy(), job(worker_count=1)], ""),
    ("K16", [job(pod(8), master=pod(8))], ""),
    ("K19", [made_by_job(pod(schedulerName="volcano")), made_by_job(pod(metadata=QUEUED)), made_by_job(pod(0))], ""),
    ("K21", [DOMAIN, job(pod(**CLAIM, affinity=CLIQUE))], ""),
    ("K23", [enforced("privileged"), job(pod(hostNetwork=True))], ""),
    ("K23", [enforced("restricted"), job(pod(securityContext=NOT_ROOT, container={"securityContext": SAFE}))], ""),
    ("K25", [job()], ""),
    ("K30", [service(clusterIP="None", publishNotReadyAddresses=True), job(pod(subdomain="nodes"))], ""),
    ("K30", [service(selector={"app": "web"}), service(), job()], ""),
    ("K31", [job(pod(initContainers=[DAEMON | {"startupProbe": {}}]))], ""),
    ("K32", [job(pod(container={"args": ["--node_rank", "1"]}), worker_count=1)], ""),
    (
        "K32",
        [
            job(
                pod(container={"args": ["--node_rank=1"]}),
                master=pod(container={"args": ["--node_rank=0"]}),
                worker_count=1,
            )
        ],
        "",
    ),
    ("K39", [job(pod(container={"name": "pytorch"}))], ""),
    ("K40", [job(pod(container={"args": ["torchrun --standalone --rdzv-endpoint=localhost:0 evaluate.py"]}))], ""),
    ("K40", [job(pod(container={"args": ["--rdzv-endpoint=localhost:29500"]}), worker_count=1)], ""),
    ("K32", [job(pod(container={"args": ["--node-rank=$(JOB_COMPLETION_INDEX)"]}))], ""),
    ("K33", [made_by_job(pod(**env(MASTER_ADDR="j-0.nodes")))], ""),
    ("K34", [job(pod(container={"args": ["--rdzv-backend=c10d"]}))], ""),
    ("K35", [job(pod(**env(A="1")), master=pod(**env(A="2")))], ""),
    ("K36", [job(pod(devices=EFA, **env(NCCL_IB_DISABLE="1"))), job(pod(devices=IB, **env(NCCL_IB_DISABLE="0")))], ""),
    ("K37", [job(pod(devices=IB, **env(NCCL_NET="IB")))], ""),
]


def said(objects: Sequence[Any]) -> list[tuple[str, str]]:
    return [(found.rule, str(found)) for each in find_workloads(list(objects)) for found in check(each)]


@pytest.mark.parametrize(("rule", "objects", "sentence"), SPEAKS)
def test_a_rule_speaks(rule: str, objects: Sequence[Any], sentence: str) -> None:
    sentences = [text for each, text in said(objects) if each == rule]
    assert any(sentence in text for text in sentences), said(objects)


@pytest.mark.parametrize(("rule", "objects", "_"), SILENT)
def test_a_rule_is_silent(rule: str, objects: Sequence[Any], _: str) -> None:
    assert rule not in {each for each, _ in said(objects)}


def test_every_rule_has_something_that_makes_it_speak_and_a_number_of_its_own() -> None:
    assert {rule.id for rule in RULES} == {rule for rule, *_ in SPEAKS}
    assert len({rule.id for rule in RULES}) == len(RULES)
    assert all(rule.source.startswith("https://") for rule in RULES)


def test_nothing_is_said_of_a_job_that_has_everything() -> None:
    template = pod(**env(NCCL_DEBUG="WARN"))
    assert said([job(template, master=template)]) == []


KINDS = {
    "Pod": ("v1", {"spec": pod()["spec"]}, 1),
    "Job": ("batch/v1", {"spec": {"completions": 3, "template": pod()}}, 3),
    "CronJob": ("batch/v1", {"spec": {"jobTemplate": {"spec": {"parallelism": 2, "template": pod()}}}}, 2),
    "StatefulSet": ("apps/v1", {"spec": {"replicas": 5, "template": pod()}}, 5),
    "NewSet": ("sets.example.com/v1", {"spec": {"replicas": 4, "template": pod()}}, 4),
    "MPIJob": (
        "kubeflow.org/v2beta1",
        {"spec": {"mpiReplicaSpecs": {"Worker": {"replicas": 2, "template": pod()}}}},
        2,
    ),
    "JobSet": (
        "jobset.x-k8s.io/v1alpha2",
        {
            "spec": {
                "replicatedJobs": [
                    {"name": "w", "replicas": 2, "template": {"spec": {"parallelism": 3, "template": pod()}}}
                ]
            }
        },
        6,
    ),
    "ClusterTrainingRuntime": (
        "trainer.kubeflow.org/v1alpha1",
        {
            "spec": {
                "mlPolicy": {"numNodes": 7},
                "template": {"spec": {"replicatedJobs": [{"name": "node", "template": {"spec": {"template": pod()}}}]}},
            }
        },
        7,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_pods_are_found_in_every_kind_that_makes_them(kind: str) -> None:
    version, body, count = KINDS[kind]
    item = {"apiVersion": version, "kind": kind, "metadata": {"name": "x"}, **body}
    for text in (yaml.safe_dump(item), yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [item]})):
        [found] = find_workloads(parse_manifest("f", text))
        assert (found.where, found.count, found.pods[0].gpus) == (f"{kind}/x", count, 8)


def test_a_train_job_says_how_many_nodes_its_runtime_has() -> None:
    version, body, _ = KINDS["ClusterTrainingRuntime"]
    runtime = {"apiVersion": version, "kind": "TrainingRuntime", "metadata": {"name": "x"}, **body}
    spec = {"runtimeRef": {"name": "x"}, "trainer": {"numNodes": 12}}
    train = {"apiVersion": version, "kind": "TrainJob", "metadata": {"name": "t"}, "spec": spec}
    assert [(each.where, each.count) for each in find_workloads([runtime, train])] == [("TrainJob/t", 12)]
    assert (without_pods([runtime, train]), without_pods([train])) == ([], ["TrainJob/t"])


def test_a_train_job_is_laid_over_its_runtime() -> None:
    version, body, _ = KINDS["ClusterTrainingRuntime"]
    runtime = {"apiVersion": version, "kind": "TrainingRuntime", "metadata": {"name": "x"}, **body}
    patch = {"spec": {"nodeSelector": {"pool": "b"}, "volumes": [{"name": "more", "emptyDir": {}}]}}
    inside = {"template": {"spec": {"template": {"spec": {"hostNetwork": True}}}}}
    spec = {
        "runtimeRef": {"name": "x"},
        "trainer": {
            "command": ["torchrun", "t.py"],
            "env": [{"name": "NCCL_PROTO", "value": "LL128"}],
            "resourcesPerNode": {"limits": {"nvidia.com/gpu": 2}},
        },
        "podTemplateOverrides": [
            {"targetJobs": [{"name": "node"}], **patch},
            {"targetJobs": [{"name": "y"}], "spec": {"nodeSelector": {"pool": "c"}}},
        ],
        "runtimePatches": [
            {"trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [{"name": "node", **inside}]}}}}
        ],
    }
    train = {"apiVersion": version, "kind": "TrainJob", "metadata": {"name": "t"}, "spec": spec}
    [found] = find_workloads([runtime, train])
    [pods] = found.pods
    assert (pods.count, pods.gpus, pods.node_selector, pods.is_on_host_network) == (7, 2, {"pool": "b"}, True)
    assert (pods.volume("shm"), pods.volume("more")) == (SHM, {"name": "more", "emptyDir": {}})
    assert "N33" in {each.rule for each in check(found)}


ODD = [
    {"spec": None},
    {"spec": "x"},
    {"spec": {"containers": "x", "volumes": 3}},
    {"spec": {"containers": [None, {"env": "x", "resources": [], "args": {"a": 1}, "volumeMounts": [1]}]}},
    {
        "metadata": [],
        "spec": {"containers": [{"env": [{"value": 1}, {"name": 3, "value": None}], "securityContext": 1}]},
    },
    {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "x", "rdma/ib": None, "memory": []}}}]}},
]


@pytest.mark.parametrize("template", ODD)
def test_what_is_of_another_type_than_it_should_be_counts_as_not_there(template: Any) -> None:
    odd = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": None, "spec": []}
    [found] = find_workloads([made_by_job(template, parallelism="x"), odd, namespace() | {"metadata": None}])
    check(found)


def test_a_file_without_objects_is_refused() -> None:
    for text in ("", "a: 1", "[]", "apiVersion: v1\nkind: List\nitems: []"):
        with pytest.raises(UsageError, match="holds no Kubernetes objects"):
            parse_manifest("f", text)


def test_rules_are_left_out_by_name_and_all_at_once() -> None:
    [found] = find_workloads([job(pod(shm=None, **env(NCCL_PROTO="LL128")))])
    assert {each.rule for each in check(found)} >= {"K01", "N33"}
    assert "K01" not in {each.rule for each in check(found, "k01")}
    assert check(found, "all") == []
    assert unknown_ids("K01,n33,K99,all") == ["K99"]


def test_a_kind_whose_pods_cannot_be_found_is_named_and_is_not_called_clean() -> None:
    volcano = {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "train"},
        "spec": {"tasks": [{"replicas": 2, "template": pod()}]},
    }
    assert unknown_kinds([volcano, job()]) == ["Job of batch.volcano.sh/v1alpha1"]
    assert unknown_kinds([job(), {"apiVersion": "v1", "kind": "Service", "spec": {"ports": []}}]) == []
