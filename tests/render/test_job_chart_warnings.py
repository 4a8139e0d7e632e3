"""What the plugin doubts about a job, a release of ``charts/ddp-job`` says in its notes."""

from __future__ import annotations

from typing import Any, Final

import pytest

from kubectl_ddp.spec.defaults import DefaultingContext
from kubectl_ddp.spec.resolve import resolve
from kubectl_ddp.spec.value_source import Given, Kind, Origin
from tests.support.helm import CHARTS, Helm
from tests.support.job_values import dotted

CHART: Final = CHARTS / "ddp-job"
GPUS: Final[dict[str, Any]] = {"gpus": 8, "nnodes": 2}
OLD: Final = "registry.example.com/nccl-tests:13.0-nccl2.18.5-1"
CASES: Final[tuple[dict[str, Any], ...]] = (
    {"gpus": 4, "nproc": 1},
    {"image": "vision:latest"},
    {"image": "registry.example.com:5000/vision"},
    {"mig": "1g.10gb", "nnodes": 2},
    {"env": {"NCCL_DEBUG": "INFO", "NCCL_IB_TC": "106"}},
    GPUS | {"fabric": "ib", "rdma": "rdma/ib=8", "env": {"NCCL_NET": "Socket", "NCCL_IB_GID_INDEX": "3"}},
    GPUS | {"fabric": "ib", "rdma": "rdma/ib=8", "env": {"NCCL_SOCKET_IFNAME": "ib0", "NCCL_IB_DISABLE": "1"}},
    GPUS | {"fabric": "roce", "rdma": "rdma/roce=8", "secretEnv": {"NCCL_IB_GID_INDEX": "net:index"}},
    GPUS | {"fabric": "aws-efa", "rdma": "vpc.amazonaws.com/efa=1", "env": {"NCCL_PROTO": "simple"}},
    GPUS | {"fabric": "aws-efa", "nodeSelector": {"node.kubernetes.io/instance-type": "p5.48xlarge"}},
    GPUS | {"fabric": "gcp-tcpx", "env": {"NCCL_ALGO": "Ring"}},
    GPUS | {"fabric": "gcp-tcpxo", "image": OLD},
    GPUS | {"fabric": "gcp-gib-dra", "env": {"NCCL_TUNER_CONFIG_PATH": "/x"}},
    GPUS | {"fabric": "coreweave-roce", "rdma": "rdma/roce=1", "image": OLD},
    GPUS | {"fabric": "azure-ib", "rdma": "rdma/ib=8", "image": OLD},
    GPUS | {"fabric": "gb200-mnnvl+ib", "gpus": 4, "rdma": "rdma/ib=4", "env": {"NCCL_MNNVL_ENABLE": "1"}},
    {"nnodes": 3, "nproc": 2, "parallel": "replicate=2,shard=3"},
    {"nnodes": "2:5", "nproc": 1, "parallel": "replicate=1:2,shard=1:5,pp=1:2"},
    {"nnodes": "2:9", "nproc": 2, "parallel": "replicate=1:9,shard=2,tp=1:2"},
    {"nnodes": "2:8", "nproc": 2, "parallel": "replicate=1:4,shard=4"},
    {"gpus": 8, "env": {"NCCL_P2P_DISABLE": "1"}},
)


@pytest.mark.parametrize("values", CASES, ids=lambda values: str(values.get("fabric", "+".join(values))))
def test_every_doubt_is_in_the_notes(helm: Helm, values: dict[str, Any]) -> None:
    if helm.major < 4:
        pytest.skip("Helm 3 makes notes with a cluster only.")
    said = {"module": "vision.train", "image": "registry.example.com/vision:1"} | values
    layer = {key: Given(value, Origin(Kind.FILE, "values")) for key, value in dotted(said).items()}
    doubts = resolve(
        [{"name": Given("run", Origin(Kind.FILE, "values"))} | layer], DefaultingContext(image="")
    ).warnings
    notes = helm.notes(CHART, said, release="run")
    for doubt in doubts:
        assert doubt.message in notes
    assert notes.count(" stands against ") == sum(" stands against " in doubt.message for doubt in doubts)
    assert notes.count("Yours is taken") == sum("Yours is taken" in doubt.hint for doubt in doubts)
