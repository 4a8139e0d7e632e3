"""Values of ``charts/ddp-job`` that cannot be meant: a sentence with the value and the way out, from Helm 3 and 4."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.helm import CHARTS, Helm

CHART = CHARTS / "ddp-job"
DIGITS: dict[str, Any] = {"module": "ddp_trainer", "args": ["train", "--task", "digits"]}
KUBERNETES = "1.34.0"


def refusal(helm: Helm, **values: Any) -> str:
    said = helm.error_response(CHART, DIGITS | values, release="run", namespace="team-a", kubernetes=KUBERNETES)
    assert "goroutine" not in said
    return " ".join(said.split())


def test_nothing_to_run_is_said(each_helm: Helm) -> None:
    said = each_helm.error_response(CHART, {}, release="run", kubernetes=KUBERNETES)
    assert "Nothing says what to run. Set module, command or script." in said


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"nodes": 2}, "nodes"),
        ({"gpus": "8"}, "gpus"),
        ({"gpus": 65}, "64"),
        ({"nproc": 0}, "1"),
        ({"engine": "slurm"}, "pytorchjob"),
        ({"egress": "shut"}, "closed"),
        ({"env": {"A": 1.5}}, "string"),
        ({"args": [True]}, "string"),
        ({"args": [2**60]}, "9"),
        ({"env": ["A=1"]}, "object"),
        ({"podMonitor": True}, "never"),
        ({"maxRestarts": -1}, "0"),
        ({"kind": "Pod"}, "kind"),
    ],
)
def test_what_is_no_value_is_refused_by_the_schema(each_helm: Helm, values: dict[str, Any], words: str) -> None:
    said = refusal(each_helm, **values)
    assert "don't meet the specifications of the schema" in said
    assert next(iter(values)) in said
    assert words in said


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"memory": 16}, "memory: '16' has no unit. Write it with one, for example '16Gi'."),
        ({"shm": "17179869184"}, "shm: '17179869184' has no unit."),
        ({"memory": "4gb"}, "memory: '4gb' is no amount of memory. Write it as '4Gi' or '512Mi'."),
        ({"memory": "0Gi"}, "memory: '0Gi' is no amount of memory that a machine has. Write it as '4Gi'."),
        ({"memory": "8Ei"}, "memory: '8Ei' is no amount of memory that a machine has."),
        ({"memory": "99999999999999999999k"}, "is no amount of memory."),
        ({"cpu": "0.0001"}, "cpu: '0.0001' is no number of cores."),
        ({"cpu": 0}, "cpu: '0' is no number of cores that a machine has."),
        ({"cpu": "2000000"}, "cpu: '2000000' is no number of cores that a machine has."),
        ({"nnodes": "4:2"}, "asks for at least 4 nodes and at most 2. Write the smaller number first: '2:4'."),
        ({"nnodes": 0}, "nnodes: '0' is no number of nodes. A job has between 1 and 100000 nodes."),
        ({"nnodes": "many"}, "nnodes: 'many' is no number of nodes."),
        ({"grace": "1w"}, "grace: '1w' is no duration. Write it as '90s', '2m', '1h' or '7d'."),
        ({"grace": 4}, "4 seconds of grace are too few to finish a step and save. Use 5 or more."),
        ({"deadline": 0}, "A deadline of 0 seconds would stop the job before it starts."),
        ({"shm": "4Gi", "memory": "4Gi"}, "charged to the memory of its node: shm 4Gi leaves nothing of 4Gi."),
        ({"name": "Big_Run"}, "name: 'Big_Run' is no name for a job. Use lower case letters"),
        (
            {"name": "x" * 49},
            "is 1 character too long: the names of its pods would not fit 63 characters. Use at most 48.",
        ),
        (
            {"namespace": "team-b"},
            "the release is in 'team-a'. Install it with --namespace team-b, or leave namespace out.",
        ),
        ({"module": "train.py!"}, "module: 'train.py!' is no Python module."),
        ({"command": ["python"]}, "module and command exclude each other. Keep the one to run."),
        ({"module": "", "command": "python 'a b'"}, "holds quotes, which a chart does not take apart."),
        ({"module": "", "command": ["-u"]}, "command: '-u' is no program."),
        ({"module": "", "script": "train.py"}, "does not travel by itself. Add --set-file scriptText=train.py."),
        ({"code": "src"}, "add --set-file codeArchive=code.b64."),
        ({"scriptText": "print()"}, "Name them: script, or code."),
        ({"gpus": 1, "nproc": 2}, "2 processes cannot share 1 GPU: NCCL before 2.30 refuses two ranks on one."),
        ({"mig": "3g.40gb", "gpus": 2}, "and nproc is 2: NCCL before 2.30 does not join slices of one GPU."),
        ({"mig": "half"}, "mig: 'half' is no MIG profile."),
        ({"gpuType": "NVIDIA-L4"}, "gpuType is 'NVIDIA-L4', and the job asks for no GPU."),
        ({"env": {"RANK": "0"}}, "The environment variable RANK is set by the launcher for each rank."),
        ({"env": {"DDP_JOB": "a"}}, "The environment variable DDP_JOB is set by the launcher"),
        ({"env": {"1A": "x"}}, "env: '1A' is no environment variable."),
        ({"env": {"A": "x"}, "secretEnv": {"A": "hub:t"}}, "A is given twice, in env and in secretEnv. Keep one."),
        ({"secretEnv": {"A": "token"}}, "secretEnv.A: 'token' names no entry of a Secret. Write it as 'SECRET:KEY'"),
        ({"envFrom": ["vault/x"]}, "envFrom: 'vault/x' names no source of variables."),
        (
            {"args": ["train", "--global-batch", "3"], "nnodes": 4},
            "A batch of 3 samples cannot feed 4 ranks (4 nodes of 1 process).",
        ),
        ({"parallel": "4"}, "parallel: '4' is no layout; write dimension=size with commas, as in replicate=2,shard=4."),
        ({"parallel": "fsdp=4"}, "parallel: 'fsdp' is no dimension of a layout; use replicate, shard, tp and pp"),
        ({"parallel": "shard=2,shard=2"}, "parallel: 'shard=2,shard=2' names shard twice; name it once."),
        (
            {"parallel": "shard=0"},
            "shard=0 is no size of a dimension; give a whole number from 1 to 1000000, as shard=2.",
        ),
        ({"parallel": "shard=1:2:3"}, "parallel: shard=1:2:3 is no size of a dimension"),
        ({"parallel": "tp=" + "9" * 30}, "is no size of a dimension"),
        ({"parallel": "tp=2:1"}, "parallel: tp=2:1 begins above its end; write tp=1:2."),
        ({"parallel": "shard=1:64,pp=1:65"}, "allows 4160 kinds of replica; narrow shard, tp and pp to 4096."),
        (
            {"parallel": "shard=4", "nnodes": 3},
            "parallel 'shard=4' has no layout of 3 ranks, which 3 nodes of 1 process",
        ),
        ({"parallel": "shard=2", "nnodes": "1:2"}, "and parallel 'shard=2' always takes 2. Let a dimension change"),
        ({"parallel": "replicate=1:2,shard=2", "nnodes": "1:4"}, "has no layout of 1 rank, which 1 node of 1 process"),
        ({"parallel": "tp=4", "nnodes": 4}, "allows tp=4, and a node has 1 process: slices of a tensor stay in a pod."),
        (
            {"args": ["train", "--batch-slices", "1"], "nproc": 4, "parallel": "shard=2,tp=2"},
            "A batch of 1 slice cannot feed the 2 replicas and shards of 'shard=2,tp=2' (1 node of 4 processes).",
        ),
        ({"args": ["train", "--shards", "4"]}, "--shards is now --batch-slices."),
        ({"args": ["train", "--workers=2"]}, "--workers is now --loader-workers."),
        ({"tolerations": ["a b"]}, "tolerations: 'a b' is no taint."),
        ({"tolerations": ["a:Never"]}, "EFFECT one of NoSchedule, PreferNoSchedule, NoExecute."),
        ({"topology": ["near=zone"]}, "topology: 'near=zone' is no wish about the nodes' places."),
        ({"topology": ["pack=zone", "pack=zone:required"]}, "The topology 'pack=zone' is given twice."),
        ({"mounts": ["hostPath=x:/data"]}, "which Pod Security 'restricted' refuses."),
        ({"mounts": ["nfs=x:/data"]}, "mounts: 'nfs' is no kind of volume."),
        ({"mounts": ["pvc=x:data"]}, "mounts: 'data' is no absolute path."),
        ({"mounts": ["pvc=x:/usr/"]}, "A mount at '/usr' would hide the image's own files."),
        ({"mounts": ["pvc=x:/data:wo"]}, "ends in 'wo'. Write ':ro' to mount it read-only."),
        ({"mounts": ["configmap=x:/a:rw"]}, "asks to write to a ConfigMap."),
        ({"mounts": ["pvc=a:/data", "pvc=b:/data/"]}, "The mounts 'pvc=a:/data' and 'pvc=b:/data' have the same path."),
        ({"mounts": ["emptydir=1Gi:/dev/shm/x"]}, "is in the way of /dev/shm, which every job has."),
        ({"secrets": ["hub"]}, "secrets: 'hub' mounts no Secret."),
        ({"rdma": "ib"}, "rdma: 'ib' names no RDMA resource."),
        ({"networks": ["Rail 0"]}, "networks: 'Rail 0' is no network."),
        ({"nodeSelector": {"a b": "x"}}, "nodeSelector: 'a b' is no label."),
        ({"nodeSelector": {"a": "x y"}}, "nodeSelector.a: 'x y' is no value of a label."),
        ({"dns": ["kube-dns"]}, "dns: 'kube-dns' names no DNS server. Write NAMESPACE/LABEL=VALUE"),
        ({"dns": ["10.0.0.1/24"]}, "dns: '10.0.0.1/24' names no DNS server."),
        ({"metricsFrom": []}, "metricsFrom: the list is empty."),
        ({"metricsFrom": ["10.0.0.1/24"]}, "metricsFrom: '10.0.0.1/24' is nobody who could read metrics."),
        ({"apiServers": ["kubernetes.default"]}, "apiServers: 'kubernetes.default' is no address."),
        ({"gang": "kueue"}, "Kueue starts nothing that is in no queue. Add queue: NAME, a LocalQueue."),
        ({"queuePriority": "urgent"}, "The queue priority 'urgent' is a class of Kueue's, and the job is in no queue"),
        ({"gang": "scheduler-plugins", "queue": "q"}, "The scheduler plugins have no queues, and the queue is 'q'."),
        ({"fabric": "token-ring"}, "fabric: 'token-ring' is no fabric. There are aws-efa,"),
        ({"fabric": "ib+roce"}, "names ib and roce, and the nodes of a job have one of them."),
        ({"fabric": "ib"}, "The fabric ib joins GPUs, and the job asks for none."),
        ({"fabric": "ib", "gpus": 8, "nnodes": 2}, "The fabric ib needs RDMA devices, and the job asks for none."),
        ({"preset": "tpu"}, "preset: there is no preset 'tpu'; those of a cluster are known where one is asked"),
        ({"runId": "a b"}, "runId: 'a b' is no value of a label."),
        ({"runSecret": "A_B"}, "runSecret: 'A_B' is no name of an object."),
    ],
)
def test_what_cannot_be_meant_is_refused_in_a_sentence(helm: Helm, values: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(helm, **values)


PLANTED = "correct-horse-battery"


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"env": {"HF_TOKEN": PLANTED}}, "The value of HF_TOKEN"),
        ({"env": {"HARMLESS": f"https://me:{PLANTED}@example.com"}}, "The value of HARMLESS"),
        ({"args": ["--password", PLANTED]}, "The value of --password"),
        ({"args": [f"--hf-token={PLANTED}"]}, "The value of --hf-token"),
        ({"args": ["a", f"https://me:{PLANTED}@example.com"]}, "Word 2 of the program"),
    ],
)
def test_a_secret_in_clear_is_refused_and_not_repeated(helm: Helm, values: dict[str, Any], what: str) -> None:
    said = helm.error_response(CHARTS / "ddp-job", {"module": "train", "image": "train:1", **values})
    assert f"{what} looks like a secret" in said
    assert PLANTED not in said


def test_what_has_only_the_name_of_a_secret_is_let_through(helm: Helm) -> None:
    words = ["--pad-token", "<pad>", "--max-tokens=4096", "--password-file", "/secrets/db/password"]
    env = {"MAX_TOKENS": "2048", "HF_TOKEN": "/secrets/hub/token", "USE_TOKEN": "True"}
    assert helm.template(CHARTS / "ddp-job", {"module": "train", "image": "train:1", "args": words, "env": env})
