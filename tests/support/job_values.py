"""Job files, drawn at random and mostly sound: every key, in every way of writing it."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from kubectl_ddp.code.archive import ARCHIVE, Code
from kubectl_ddp.engines.registry import ENGINES
from kubectl_ddp.spec.fields import FIELDS

Values = dict[str, Any]

WORDS: Final = (
    "train",
    "--epochs",
    "30",
    "",
    " two words ",
    "a\nb",
    "tab\there",
    "it's",
    '"quoted"',
    "back\\slash",
    "$HOME",
    "$(PRICE)",
    "$$5",
    "<a>&b",
    "yes: [1]",
    "# no comment",
    "{{ .Values }}",
    "Grüße",
    "漢字",
    "🙂",
    "nel\u0085x",
    "line\u2028end",
    "\ufeffbom",
    "\x1b[0m",
    "1e3",
    64,
    -1,
    "0o17",
    "null",
    "~",
    "- a",
    "%d%s",
    "trailing\n",
    "\n\n lead",
    "a: b\n  c: d",
    "'",
    "\\u2028",
)
MACHINES: Final = (
    "p5.48xlarge",
    "p4d.24xlarge",
    "p6-b200.48xlarge",
    "p6e-gb200.36xlarge",
    "a3-highgpu-8g",
    "a3-megagpu-8g",
    "a3-ultragpu-8g",
    "a4-highgpu-8g",
    "a4x-highgpu-4g",
    "a4x-maxgpu-4g-metal",
    "Standard_ND96isr_H100_v5",
    "BM.GPU.H100.8",
    "BM.GPU.B4.8",
    "gd-8xh100ib-i128",
    "gb200-4x",
    "gb300-4xe",
    "g6.48xlarge",
    "m7i.large",
)
ACCELERATORS: Final = ("nvidia-h100-80gb", "nvidia-h100-mega-80gb", "nvidia-h200-141gb", "nvidia-gb200", "nvidia-l4")
DEVICES: Final = (
    "rdma/ib=8",
    "rdma/roce=8",
    "vpc.amazonaws.com/efa=32",
    "nvidia.com/rdma-vf=16",
    "rdma/hca",
    "openshift.io/mlxnics=2",
)
OF_DEVICES: Final = {
    "ib": "rdma/ib=8",
    "roce": "rdma/roce=8",
    "aws-efa": "vpc.amazonaws.com/efa=32",
    "oci-roce": "nvidia.com/rdma-vf=16",
    "coreweave-roce": "rdma/roce=1",
    "gb200-mnnvl+ib": "rdma/ib",
    **dict.fromkeys(("azure-ib", "coreweave-ib", "nebius-ib", "together-ib", "crusoe-ib", "lambda-ib"), "rdma/ib=8"),
}
"""Fabrics that need devices, and such devices."""
FABRICS: Final = (
    *("none", "tcp", "aws-efa-dra", "gcp-tcpx", "gcp-tcpxo", "gcp-gib", "gcp-gib-dra"),
    *("gb200-mnnvl", "gb200-mnnvl+gcp-gib-dra", "single-node-nvlink"),
)
IMAGES: Final = (
    "registry.example.com/vision/train:1.4.2",
    "registry.example.com/train@sha256:" + "0123456789abcdef" * 4,
    "registry.example.com/nccl-tests:13.0-nccl2.18.5-1",
    "registry.example.com/nccl-tests:13.0-nccl2.28.7",
    "train:latest",
)
LABEL_KEYS: Final = ("example.com/pool", "topology.kubernetes.io/zone", "kubernetes.io/arch", "disk")
SCRIPTS: Final = (
    'import torch\n\nprint("Grüße, <rank> & $(HOME) {{ .Values }}")\n',
    "  print('indented')  \n\tprint('tab')\r\n",
    "print('🙂')\n\n\n",
    "print()",
)


@dataclass(frozen=True)
class Scenario:
    """One job, and what it is rendered with."""

    number: int
    values: Values
    """Keys of the job file."""
    code: Code | None
    release: str
    namespace: str
    api_servers: tuple[str, ...]


@dataclass
class Draw:
    """One scenario on its way: each part adds its keys."""

    random: Random
    values: Values = field(default_factory=dict)
    code: Code | None = None

    def chance(self, likelihood: float) -> bool:
        return self.random.random() < likelihood

    def some(self, likelihood: float, key: str, make: Callable[[], Any]) -> None:
        if self.chance(likelihood):
            self.values[key] = make()

    def one(self, choices: Any) -> Any:
        return self.random.choice(list(choices))

    def few(self, choices: Any, most: int) -> list[Any]:
        return self.random.sample(list(choices), self.random.randint(1, most))


def scenario(seed: int, number: int) -> Scenario:
    """The scenario of a number; the same for the same seed."""
    draw = Draw(Random(f"{seed}/{number}"))
    for part in (
        _program,
        _size,
        _machines,
        _environment,
        _endings,
        _placement,
        _volumes,
        _pods,
        _network,
        _layout,
    ):
        part(draw)
    release = draw.one(["digits", "vision-7", "run", "a" * 30])
    namespace = draw.one(["default", "team-a"])
    draw.values["name"] = draw.one([release, "named", "n", "x" * 40])
    draw.some(0.2, "namespace", lambda: namespace)
    api_servers = tuple(draw.few(["10.0.0.1", "10.0.0.2", "fd00::1"], 2)) if draw.chance(0.3) else ()
    draw.some(0.2, "compileCache", lambda: draw.one(["kernels", "/cache/kernels"]))
    draw.some(0.2, "spares", lambda: draw.one([0, 1, "2"]))
    return Scenario(number, draw.values, draw.code, release, namespace, api_servers)


def _program(draw: Draw) -> None:
    values = draw.values
    kind = draw.one(
        ["trainer", "trainer", "module", "command", "line", "script", "code", "codeModule", "claim", "packedScript"]
    )
    if kind == "trainer":
        values["module"] = "ddp_trainer"
        batch = draw.one([[], ["--global-batch", "4096"], ["--batch-slices=64"]])
        values["args"] = ["train", "--task", "digits", *batch]
    elif kind == "command":
        values["command"] = ["python", *draw.few(WORDS, 3)]
    elif kind == "line":
        values["command"] = "python  -u train.py --epochs 3 "
    elif kind in {"script", "code"}:
        values["script"] = draw.one(["train.py", "scripts/My_Train.v2.py", "./train.py"])
        draw.code = Code(values["script"].rpartition("/")[2], draw.one(SCRIPTS))
    if kind in {"module", "codeModule"}:
        values["module"] = "vision.train"
    if kind == "claim":
        values |= {"codeClaim": draw.one(["projects:vision", "projects:/", "a.b:x/y"]), "script": "scripts/train.py"}
    if kind == "packedScript":
        values["script"] = "scripts/train.py"
        draw.code = Code(ARCHIVE, base64.b64encode(b"a script and modules").decode())
    if kind.startswith("code"):
        values["code"] = "src"
        draw.code = Code(ARCHIVE, base64.b64encode(b"an archive").decode())
    if kind != "trainer":
        draw.some(0.6, "args", lambda: draw.few(WORDS, 6))


def _size(draw: Draw) -> None:
    draw.some(0.8, "nnodes", lambda: draw.one([1, "1", 2, "2:4", "1:2", "8", "4:4", "3:16"]))
    draw.some(0.5, "gpus", lambda: draw.one([0, 1, 2, 4, 8, 8, 8]))
    if "gpus" not in draw.values:
        draw.some(0.1, "mig", lambda: draw.one(["3g.40gb", "1g.10gb.me", "7g.80gb"]))
    most = draw.values.get("gpus") or (1 if "mig" in draw.values else 4)
    draw.some(0.4, "nproc", lambda: draw.random.randint(1, most))
    draw.some(0.5, "cpu", lambda: draw.one([1, "4", "500m", 1.5, "0.25", "96", "1500.000m"]))
    draw.some(
        0.5, "memory", lambda: draw.one(["2Gi", "1.5Gi", "900Gi", "3435973.8k", "3G", "512Mi", "0.123456789Ti", "7E"])
    )
    draw.some(0.2, "shm", lambda: draw.one(["64Mi", "1Gi", "1048.576k", "0.1Gi"]))
    draw.some(0.2, "preset", lambda: draw.one(["cpu-gloo", "gpu-nccl", "none"]))


def _machines(draw: Draw) -> None:
    values = draw.values
    if not (values.get("gpus") or "mig" in values):
        return
    selector = values.setdefault("nodeSelector", {})
    if draw.chance(0.4):
        selector["node.kubernetes.io/instance-type"] = draw.one(MACHINES)
    if draw.chance(0.2):
        selector["cloud.google.com/gke-accelerator"] = draw.one(ACCELERATORS)
    draw.some(0.4, "rdma", lambda: draw.one(DEVICES))
    draw.some(0.2, "gpuType", lambda: draw.one(["NVIDIA-H100-80GB-HBM3", "NVIDIA-GB200", "NVIDIA-GB300"]))
    draw.some(0.5, "fabric", lambda: draw.one([*OF_DEVICES, *FABRICS, "auto"]))
    if (devices := OF_DEVICES.get(values.get("fabric", ""))) and draw.chance(0.9):
        values["rdma"] = devices


def _environment(draw: Draw) -> None:
    draw.some(0.6, "image", lambda: draw.one(IMAGES))
    draw.some(0.1, "requirements", lambda: ["einops==0.8.1", "$(x) > 2"])
    draw.some(0.2, "launcher", lambda: "ddp")
    draw.some(0.2, "torchrunShim", lambda: draw.one([True, "false"]))
    draw.some(0.3, "runtimeImage", lambda: "registry.example.com/ddp-runtime:1")
    draw.some(0.3, "runtimeMount", lambda: draw.one(["image", "copy"]))
    draw.some(0.2, "python", lambda: draw.one(["python3.12", "/opt/conda/bin/python"]))
    names = ("A", "B_2", "HOME", "NCCL_DEBUG", "NCCL_NET", "OMP_NUM_THREADS", "DDP_PREFLIGHT", "_x", "LD_LIBRARY_PATH")
    draw.some(0.5, "env", lambda: {name: draw.one(WORDS) for name in draw.few(names, 4)})
    secret = ("TOKEN", "NCCL_SECRET", "Z")
    draw.some(
        0.3, "secretEnv", lambda: {name: draw.one(["hub:token", "s3.keys:a_b.C"]) for name in draw.few(secret, 2)}
    )
    draw.some(0.2, "envFrom", lambda: draw.few(["secret/hub", "configmap/settings.v1", "secret/other"], 2))


def _endings(draw: Draw) -> None:
    draw.some(0.4, "maxRestarts", lambda: draw.one([0, 1, 20, 10_000]))
    draw.some(0.4, "grace", lambda: draw.one([5, "90", "2m", "1h"]))
    draw.some(0.3, "deadline", lambda: draw.one(["7d", "3600s", 60]))
    draw.some(0.3, "ttl", lambda: draw.one(["1h", 0, "0", "2d"]))


def _placement(draw: Draw) -> None:
    draw.some(0.3, "priority", lambda: draw.one(["training", "high.v2"]))
    if draw.chance(0.4):
        labels = {key: draw.one(["gpu", "eu-1a", "", "A_b.c", 7]) for key in draw.few(LABEL_KEYS, 3)}
        draw.values["nodeSelector"] = {**draw.values.get("nodeSelector", {}), **labels}
    taints = ("dedicated=training:NoSchedule", "gone:NoExecute", "any", "example.com/soft=:PreferNoSchedule", "a=b")
    draw.some(0.3, "tolerations", lambda: draw.few(taints, 3))
    wishes = (
        "pack=topology.kubernetes.io/zone",
        "pack=example.com/rack:required",
        "spread=kubernetes.io/hostname:required",
        "spread=topology.kubernetes.io/zone:preferred",
    )
    draw.some(0.3, "topology", lambda: draw.few(wishes, 4))
    draw.some(0.9, "engine", lambda: draw.one([*ENGINES, "auto"]))
    draw.some(0.5, "gang", lambda: draw.one(["none", "auto", "kueue", "volcano", "scheduler-plugins", "kai", "native"]))
    likely = {"kueue": 0.9, "scheduler-plugins": 0.1}.get(draw.values.get("gang", ""), 0.4)
    draw.some(likely, "queue", lambda: draw.one(["team-a", "q.1"]))
    is_kueues = "queue" in draw.values and draw.values.get("gang") in {None, "none", "auto", "kueue", "native"}
    draw.some(0.4 if is_kueues else 0.02, "queuePriority", lambda: "urgent")
    is_indexed = draw.values.get("engine") == "job" and draw.values.get("gang") in {None, "none"}
    if is_kueues and is_indexed and ":" in str(draw.values.get("nnodes")):
        draw.values["queueResize"] = "running"
    draw.some(0.2, "scheduler", lambda: "bin-packer")


def _volumes(draw: Draw) -> None:
    draw.some(0.4, "checkpointClaim", lambda: "vision-checkpoints")
    mounts = (
        "pvc=data:/data",
        "pvc=more.data:/more//x/:ro",
        "configmap=settings:/etc/train",
        "emptydir=1.5Gi:/cache",
        "pvc=d:/d:rw",
    )
    draw.some(0.4, "mounts", lambda: draw.few(mounts, 4))
    draw.some(0.3, "secrets", lambda: draw.few(["hub:/secrets/hub", "s3.keys:/secrets/s3/"], 2))


def _pods(draw: Draw) -> None:
    draw.some(0.2, "serviceAccount", lambda: draw.one(["s3-reader", "a.b"]))
    draw.some(0.2, "imagePullSecrets", lambda: draw.few(["registry", "mirror.v2"], 2))
    draw.some(0.2, "imagePullPolicy", lambda: draw.one(["Always", "Never", "IfNotPresent"]))
    keys = ("team", "sidecar.istio.io/inject", "example.com/cost-center")
    draw.some(0.3, "labels", lambda: {key: draw.one(["vision", "true", "", 7]) for key in draw.few(keys, 3)})
    notes = (*keys, "karpenter.sh/do-not-disrupt", "cluster-autoscaler.kubernetes.io/safe-to-evict")
    draw.some(0.3, "annotations", lambda: {key: draw.one(WORDS) for key in draw.few(notes, 4)})
    draw.some(0.2, "runAsUser", lambda: draw.one([1000, "none", 2147483647]))
    draw.some(0.2, "runAsGroup", lambda: draw.one([0, "none", "1000"]))
    draw.some(0.2, "fsGroup", lambda: draw.one([0, "none", 2000]))
    terms = ({"key": "disk", "operator": "In", "values": ["ssd"]}, {"key": "gpu", "operator": "Exists"})
    required = {"nodeSelectorTerms": [{"matchExpressions": [term]} for term in terms]}
    pods = [{"weight": 5, "podAffinityTerm": {"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}}}]
    affinities = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required},
        "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": pods},
        "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": pods},
    }
    draw.some(0.2, "affinity", lambda: {key: affinities[key] for key in draw.few(affinities, 3)})


def _network(draw: Draw) -> None:
    draw.some(0.2, "networks", lambda: draw.few(["rdma-vf", "networks/rail-0", "rail@net1"], 3))
    readers = (
        "monitoring",
        "team=a_B",
        "10.0.0.0/24",
        "10.0.0.7",
        "*",
        "fd00::/64",
        "kubernetes.io/metadata.name=prom",
        "0.0.0.0/0",
    )
    draw.some(0.4, "metricsFrom", lambda: draw.few(readers, 3))
    draw.some(0.4, "egress", lambda: draw.one(["open", "closed", "unrestricted"]))
    servers = (
        "kube-system/k8s-app=kube-dns",
        "openshift-dns/dns.operator.openshift.io/daemonset-dns=default",
        "dns/empty=",
        "10.96.0.10",
        "fd00::/64",
        "10.96.0.0/16",
    )
    draw.some(0.4, "dns", lambda: draw.few(servers, 3))


def _layout(draw: Draw) -> None:
    layouts = (
        *("replicate=1:1000000", "shard=1:4096", " pp=1 , shard = 1:64,replicate=1:64", "tp=1:2,replicate=1:999"),
        *("replicate=1:64,shard=2", "shard=4", "replicate=1:3,shard=2:4,pp=1:2", "ddp=4", "tp=2:1"),
    )
    draw.some(0.3, "parallel", lambda: draw.one(layouts))


MAPS: Final = frozenset(key for key, field in FIELDS.items() if field.is_map)


def dotted(values: Mapping[str, Any], maps: frozenset[str] = MAPS) -> Values:
    """The values as a source of a job says them: entries of maps one by one."""
    flat: Values = {}
    for key, value in values.items():
        flat |= {f"{key}.{entry}": item for entry, item in value.items()} if key in maps else {key: value}
    return flat
