"""Each rule: what makes it speak, and what is so close to it that it must be silent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddp_trainer.common.lint import model, names
from ddp_trainer.common.lint.model import Facts, Finding, Severity
from ddp_trainer.common.lint.registry import RULES, check, unknown_ids

ROOT = Path(__file__).parents[5]
BY_ID = {rule.id: rule for rule in RULES}

Case = tuple[str, dict[str, str], dict[str, Any], str]
"""A rule, variables, facts, and what its sentence must say; nothing where it must be silent."""

ETH = {"interfaces": frozenset({"lo", "eth0", "eth1", "eth10"})}
IB = {"rdma_devices": ("mlx5_0", "mlx5_1", "mlx5_10")}
NONE = {"rdma_devices": ()}

SPEAKS: list[Case] = [
    ("N01", {"NCCL_SOCKET_IFNAM": "eth0"}, {}, "Did you mean NCCL_SOCKET_IFNAME?"),
    ("N01", {"NCCL_TIMEOUT": "1"}, {}, "NCCL ignores NCCL_TIMEOUT"),
    ("N02", {"NCCL_IB_GDR_LEVEL": "3"}, {}, "NCCL_IB_GDR_LEVEL is renamed in 2.4. Use NCCL_NET_GDR_LEVEL."),
    ("N03", {"NCCL_NTHREADS": "256"}, {}, "NCCL_NTHREADS=256 is a debugging switch"),
    ("N03", {"NCCL_IB_DISABLE": "1"}, {}, "NCCL_IB_DISABLE=1 is a debugging switch"),
    ("N04", {"NCCL_P2P_DISABLE": "1"}, {}, "switches off NVLink"),
    ("N04", {"NCCL_SHM_DISABLE": "1"}, {}, "switches off shared memory"),
    ("N05", {"NCCL_ALGO": "Ring"}, {}, "NCCL_ALGO=Ring"),
    ("N05", {"NCCL_PROTO": "Simple"}, {}, "NCCL_PROTO=Simple"),
    ("N06", {"NCCL_NET_GDR_LEVEL": "5"}, {}, "NCCL_NET_GDR_LEVEL=5 is a number"),
    ("N07", {"NCCL_SOCKET_IFNAME": "^lo,docker"}, {}, "so veth, cali, cni, pod-id-link become eligible"),
    ("N08", {"NCCL_SOCKET_IFNAME": "=lo"}, {}, "is the loopback"),
    ("N08", {"GLOO_SOCKET_IFNAME": "lo"}, {"nodes": 2}, "GLOO_SOCKET_IFNAME=lo is the loopback"),
    (
        "T23",
        {"GLOO_SOCKET_IFNAME": "eth1"},
        ETH | {"route": "eth0"},
        "=eth1, and the way to the other nodes is by eth0",
    ),
    ("N09", {"NCCL_IB_HCA": "mlx5_1"}, {}, "takes mlx5_1 for a prefix, and mlx5_10 to mlx5_19 match"),
    ("N09", {"NCCL_IB_HCA": "mlx5_0:1,mlx5_1:1"}, IB, "takes mlx5_1 for a prefix, and mlx5_10 match"),
    ("N10", {"NCCL_IB_GID_INDEX": "3"}, {}, "NCCL_IB_GID_INDEX=3: since NCCL 2.21"),
    ("N11", {"NCCL_IB_TC": "106"}, {}, "NCCL_IB_TC=106 is one fabric's own"),
    ("N12", {"NCCL_IB_TIMEOUT": "32"}, {}, "NCCL_IB_TIMEOUT=32"),
    ("N12", {"NCCL_IB_TIMEOUT": "0"}, {}, "NCCL_IB_TIMEOUT=0"),
    ("N13", {"NCCL_NVLS_ENABLE": "0"}, {}, "gives up NVLink SHARP"),
    ("N14", {"NCCL_CUMEM_ENABLE": "0", "NCCL_MNNVL_ENABLE": "1"}, {}, "needs what NCCL_CUMEM_ENABLE=0 switches off"),
    ("N15", {"NCCL_MNNVL_ENABLE": "1"}, {}, "without an IMEX channel"),
    ("N16", {"NCCL_DEBUG": "WARN,VERSION"}, {}, "NCCL_DEBUG=WARN,VERSION is not a level"),
    ("N17", {"NCCL_DEBUG_SUBSYS": "INIT,GPU"}, {}, "names GPU, which is not a subsystem"),
    ("N18", {"NCCL_DEBUG_FILE": "/tmp/nccl.%h"}, {}, "one file for several processes"),
    ("N18", {"NCCL_DEBUG_FILE": "~/nccl.%h.%p"}, {}, "a ~ that is not expanded"),
    ("N19", {"NCCL_SOCKET_NTHREADS": "16", "NCCL_NSOCKS_PERTHREAD": "8"}, {}, "=16 times NCCL_NSOCKS_PERTHREAD=8"),
    ("N20", {"NCCL_TOPO_FILE": ""}, {}, "is empty"),
    ("N20", {"NCCL_TOPO_FILE": "/nope.xml"}, {"exists": lambda _: False}, "NCCL_TOPO_FILE=/nope.xml is not there"),
    ("N21", {"NCCL_IB_HCA": "mlx5", "NCCL_NET": "Socket"}, {}, "NCCL_IB_HCA=mlx5 has no effect with Socket"),
    ("N21", {"NCCL_IB_TC": "1", "FI_PROVIDER": "efa"}, {}, "NCCL_IB_TC=1 has no effect with EFA"),
    ("N21", {"FI_LOG_LEVEL": "warn", "NCCL_NET": "IB"}, {}, "FI_LOG_LEVEL=warn has no effect with IB"),
    ("N22", {"FI_EFA_USE_DEVICE_RDMA": "1"}, {}, "FI_EFA_USE_DEVICE_RDMA=1 is obsolete"),
    ("N22", {"RDMAV_FORK_SAFE": "1", "NCCL_NET": "AWS Libfabric"}, {}, "RDMAV_FORK_SAFE=1 is obsolete"),
    ("N23", {}, IB | {"nodes": 2}, "if mlx5_0"),
    ("N24", {"NCCL_NET_PLUGIN": "none", "NCCL_NET": "gIB"}, {}, "keeps the plugin of this fabric"),
    ("N25", {}, IB | {"nodes": 2}, "hang instead of failing"),
    ("N26", {"NCCL_SOCKET_FAMILY": "AF_INET6", "DDP_POD_IP": "10.0.0.1"}, {}, "not the family of DDP_POD_IP=10.0.0.1"),
    ("N26", {"NCCL_SOCKET_FAMILY": "AF_INET", "MASTER_ADDR": "fd00::1"}, {}, "not the family of MASTER_ADDR=fd00::1"),
    ("N27", {"NCCL_HOSTID": "a"}, {"nodes": 2}, "look like one host"),
    ("N28", {"NCCL_COMM_ID": "10.0.0.1:1"}, {}, "has no part in a torch job"),
    ("N29", {"UCX_TLS": "tcp"}, {}, "UCX_TLS=tcp is for MPI"),
    ("N30", {"NCCL_IB_DISABLE": "0"}, {}, "NCCL_IB_DISABLE=0 is what NCCL does anyway"),
    ("N31", {"NCCL_IB_RETRY_CNT": "8"}, {}, "NCCL_IB_RETRY_CNT=8 is out of range: it may be 0 to 7"),
    ("N31", {"NCCL_IB_DISABLE": "true"}, {}, "NCCL_IB_DISABLE=true is out of range: it may be 0 to 1"),
    ("N31", {"NCCL_SOCKET_RETRY_CNT": "0"}, {}, "it may be at least 1"),
    ("N32", {"NCCL_SOCKET_FAMILY": "IPv4"}, {}, "NCCL_SOCKET_FAMILY=IPv4 is none of AF_INET, AF_INET6"),
    ("N32", {"NCCL_P2P_LEVEL": "NVLINK"}, {}, "NCCL_P2P_LEVEL=NVLINK is none of LOC, NVL"),
    ("N33", {"NCCL_PROTO": "Simple,LL128"}, {}, "forces LL128, which corrupts"),
    ("N33", {"NCCL_PROTO": "simple;allreduce:ll128"}, {}, "forces LL128"),
    ("N34", {"NCCL_ALGO": "Ring,Treee"}, {}, "NCCL_ALGO names treee"),
    ("N35", {"NCCL_MIN_CTAS": "32", "NCCL_MAX_CTAS": "16"}, {}, "NCCL_MIN_CTAS=32 is more than NCCL_MAX_CTAS=16"),
    ("N36", {"NCCL_CUMEM_ENABLE": "0"}, {}, "gives up registered buffers"),
    ("N37", {"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "NVL"}, {}, "NCCL_P2P_LEVEL=NVL has no effect"),
    ("N38", {"NCCL_DEBUG": "INFO"}, {"nodes": 2, "nproc": 8}, "the lines of 16 ranks"),
    ("N39", {"NCCL_DEBUG_SUBSYS": "INIT"}, {}, "NCCL_DEBUG is not set, so nothing is written"),
    ("N40", {}, {"gpus": 8, "nodes": 2}, "NCCL does not say why something failed"),
    ("N41", {"NCCL_SOCKET_IFNAME": "eth1"}, ETH, "NCCL_SOCKET_IFNAME=eth1 is a prefix, and eth10 match it too"),
    ("N42", {"NCCL_SOCKET_IFNAME": "=ens5"}, ETH, "matches no interface of this node, which has eth0, eth1, eth10, lo"),
    ("N42", {"NCCL_SOCKET_IFNAME": "=eth"}, ETH, "=eth matches no interface"),
    ("N43", {"NCCL_RAS_ADDR": "0.0.0.0:28028"}, {}, "NCCL_RAS_ADDR=0.0.0.0:28028"),
    ("N44", {"NCCL_IB_TIMEOUT": "14"}, {}, "gives up sooner than NCCL's own 20"),
    ("N45", {"NCCL_NET": "IB", "NCCL_IB_DISABLE": "1"}, {}, "NCCL_IB_DISABLE=1"),
    ("N46", {"NCCL_IB_DISABLE": "1"}, IB, "leaves mlx5_0, mlx5_1, mlx5_10 idle"),
    ("N47", {"NCCL_NET": "IB"}, NONE, "NCCL_NET=IB"),
    ("N48", {"NCCL_IB_HCA": "=mlx5_2"}, IB, "=mlx5_2 matches none of this node's devices"),
    ("T01", {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, {}, "a second collective before every collective"),
    (
        "T02",
        {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"},
        {},
        "=1: the flight recorder's dump is lost. Use torch's",
    ),
    ("T02", {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}, {}, "=0: a lost peer becomes an endless hang"),
    ("T02", {"DDP_SURVIVE_ON_NCCL": "1", "TORCH_NCCL_DESYNC_DEBUG": "1"}, {}, "DESYNC_DEBUG=1: torch ends a process"),
    ("T02", {"DDP_SURVIVE_ON_NCCL": "1", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, {}, "DETAIL: torch ends a process"),
    ("T02", {"DDP_SURVIVE_ON_NCCL": "1", "TORCH_DIST_USE_NCCL2": "1"}, {}, "nccl2 refuses DDP_SURVIVE_ON_NCCL=1"),
    (
        "T02",
        {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3", "DDP_SURVIVE_ON_NCCL": "1"},
        {},
        "=3: torch ends a process that could outlive its group",
    ),
    ("T03", {"NCCL_ASYNC_ERROR_HANDLING": "1"}, {}, "Rename it to TORCH_NCCL_ASYNC_ERROR_HANDLING=1."),
    ("T04", {"TORCH_NCCL_BLOCKING_WAIT": "1"}, {}, "makes every wait block"),
    ("T05", {"TORCH_FR_BUFFER_SIZE": "2000"}, {}, "ends with the container"),
    ("T06", {"TORCH_FR_BUFFER_SIZE": "0"}, {}, "TORCH_FR_BUFFER_SIZE=0: a hang leaves no evidence"),
    ("T06", {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}, {}, "TORCH_NCCL_DUMP_ON_TIMEOUT=0: a hang leaves no evidence"),
    ("T07", {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "30"}, {}, "=30 kills a process"),
    ("T08", {"GLOO_SOCKET_IFNAME": "^lo"}, {}, "GLOO_SOCKET_IFNAME=^lo has NCCL's syntax"),
    (
        "T09",
        {"OMP_NUM_THREADS": "8"},
        {"nproc": 4, "cpus": 16},
        "OMP_NUM_THREADS=8 is too much for 4 workers and 16 cores",
    ),
    ("T10", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, {}, "deprecated since torch 2.9"),
    ("T11", {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, {}, "puts all streams in one queue"),
    ("T12", {"CUDA_LAUNCH_BLOCKING": "1"}, {}, "waits for every kernel"),
    ("T13", {"LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "x"}, {}, "another launcher's worker starts this one"),
    (
        "T14",
        {"TORCH_FR_DUMP_TEMP_FILE": "/a", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/b"},
        {},
        "TORCH_FR_DUMP_TEMP_FILE=/a and TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/b name two places",
    ),
    ("T15", {"TORCH_NCCL_ENABLE_MONITORING": "false"}, {}, "a watchdog that is stuck is never noticed"),
    ("T16", {}, {"nproc": 2, "cpus": 16}, "Set OMP_NUM_THREADS=8"),
    ("T17", {"TORCH_NCCL_BLOCKING_WIAT": "1"}, {}, "Did you mean TORCH_NCCL_BLOCKING_WAIT?"),
    ("T17", {"GLOO_SOCKET_IFNAMES": "eth0"}, {}, "Did you mean GLOO_SOCKET_IFNAME?"),
    ("T18", {"PYTORCH_ALLOC_CONF": "expandable_segment:True"}, {}, "Did you mean expandable_segments?"),
    (
        "T19",
        {"GLOO_SOCKET_IFNAME": "ens5"},
        ETH,
        "GLOO_SOCKET_IFNAME names ens5, and the interfaces of this node are eth0",
    ),
    ("T20", {"TORCH_DISTRIBUTED_DEBUG": "TRACE"}, {}, "TORCH_DISTRIBUTED_DEBUG=TRACE is refused"),
    ("T21", {"CUDA_VISIBLE_DEVICES": "0,1"}, {"nproc": 4}, "fewer devices than this node has workers (4 workers)"),
    ("T22", {"TORCH_NCCL_NAN_CHECK": "1"}, {}, "TORCH_NCCL_NAN_CHECK=1 is a debugging switch"),
    (
        "T24",
        {"TORCH_DIST_USE_NCCL2": "1", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"},
        {},
        "TORCH_NCCL_DUMP_ON_TIMEOUT=1 has no effect on nccl2",
    ),
]

SILENT: list[Case] = [
    (
        "N01",
        {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_FASTRAK_X": "1", "NCCL_VERSION": "2.27", "NCCL_BLOCKING_WAIT": "1"},
        {},
        "",
    ),
    ("N02", {"NCCL_MAX_CTAS": "16"}, {}, ""),
    ("N03", {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_DISABLE": "0", "NCCL_RAS_ENABLE": "0"}, {}, ""),
    ("N04", {"NCCL_P2P_DISABLE": "0"}, {}, ""),
    ("N05", {"NCCL_ALGO": "Ring", "NCCL_GPUDIRECTTCPX_CTRL_DEV": "eth0"}, {}, ""),
    ("N05", {"NCCL_PROTO": "LL128"}, {}, ""),
    ("N06", {"NCCL_NET_GDR_LEVEL": "PIX"}, {}, ""),
    ("N07", {"NCCL_SOCKET_IFNAME": "^lo,docker,veth,cali,cni,pod-id-link"}, {}, ""),
    ("N07", {"NCCL_SOCKET_IFNAME": "=eth0"}, {}, ""),
    ("N08", {"NCCL_SOCKET_IFNAME": "lo"}, {"nodes": 1}, ""),
    ("T23", {"GLOO_SOCKET_IFNAME": "eth0"}, ETH | {"route": "eth0"}, ""),
    ("T23", {"GLOO_SOCKET_IFNAME": "eth1"}, ETH | {"route": "eth0", "nodes": 1}, ""),
    ("T23", {"GLOO_SOCKET_IFNAME": "eth1"}, ETH, ""),
    ("T24", {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}, {}, ""),
    ("T24", {"TORCH_DIST_USE_NCCL2": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}, {}, ""),
    ("N08", {"GLOO_SOCKET_IFNAME": "lo"}, {"nodes": 2, "is_one_machine": True}, ""),
    ("N09", {"NCCL_IB_HCA": "=mlx5_1"}, {}, ""),
    ("N09", {"NCCL_IB_HCA": "mlx5_0,mlx5"}, {}, ""),
    ("N09", {"NCCL_IB_HCA": "mlx5_10"}, IB, ""),
    ("N10", {"NCCL_IB_GID_INDEX": "-1"}, {}, ""),
    ("N11", {"NCCL_IB_TC": "0"}, {}, ""),
    ("N12", {"NCCL_IB_TIMEOUT": "22"}, {}, ""),
    ("N13", {"NCCL_NVLS_ENABLE": "2"}, {}, ""),
    ("N13", {"NCCL_NVLS_ENABLE": "0", "DDP_SURVIVE_ON_NCCL": "1"}, {}, ""),
    ("N14", {"NCCL_CUMEM_ENABLE": "0", "NCCL_MNNVL_ENABLE": "2"}, {}, ""),
    ("N15", {"NCCL_MNNVL_ENABLE": "2"}, {}, ""),
    ("N16", {"NCCL_DEBUG": "warn"}, {}, ""),
    ("N17", {"NCCL_DEBUG_SUBSYS": "^init,NET"}, {}, ""),
    ("N18", {"NCCL_DEBUG_FILE": "/tmp/nccl.%h.%p"}, {}, ""),
    ("N18", {"NCCL_DEBUG_FILE": "/dev/stderr"}, {}, ""),
    ("N19", {"NCCL_SOCKET_NTHREADS": "8", "NCCL_NSOCKS_PERTHREAD": "8"}, {}, ""),
    ("N20", {"NCCL_TOPO_FILE": "/topo.xml"}, {}, ""),
    ("N20", {"NCCL_TOPO_FILE": "/topo.xml"}, {"exists": lambda _: True}, ""),
    ("N21", {"NCCL_IB_HCA": "mlx5", "NCCL_NET": "IB"}, {}, ""),
    ("N21", {"FI_LOG_LEVEL": "warn", "NCCL_NET": "AWS Libfabric"}, {}, ""),
    ("N22", {"RDMAV_FORK_SAFE": "1", "NCCL_BUFFSIZE": "8388608"}, {}, ""),
    ("N23", {"NCCL_NET": "IB"}, IB | {"nodes": 2}, ""),
    ("N23", {}, {"nodes": 2}, ""),
    ("N24", {"NCCL_NET_PLUGIN": "none", "NCCL_NET": "IB"}, {}, ""),
    ("N25", {"NCCL_IGNORE_NET_MISMATCH": "0"}, IB | {"nodes": 2}, ""),
    ("N26", {"NCCL_SOCKET_FAMILY": "AF_INET", "DDP_POD_IP": "10.0.0.1", "MASTER_ADDR": "node-0"}, {}, ""),
    ("N27", {"NCCL_HOSTID": "a"}, {"nodes": 1}, ""),
    ("N28", {"NCCL_COMM_BLOCKING": "1"}, {}, ""),
    ("N29", {"UCXX": "tcp"}, {}, ""),
    ("N30", {"NCCL_IB_DISABLE": "1"}, {}, ""),
    ("N30", {"NCCL_IB_SL": "0", "NCCL_IB_TC": "0"}, {}, ""),
    ("N31", {"NCCL_IB_RETRY_CNT": "7", "NCCL_IB_DISABLE": "", "NCCL_IB_TC": "0x60"}, {}, ""),
    ("N32", {"NCCL_SOCKET_FAMILY": "AF_INET", "NCCL_P2P_LEVEL": "nvl", "NCCL_NET_GDR_LEVEL": "5"}, {}, ""),
    ("N33", {"NCCL_PROTO": "^LL128"}, {}, ""),
    ("N34", {"NCCL_ALGO": "ring,collnetdirect;allreduce:^tree,NVLSTree", "NCCL_PROTO": "LL,Simple"}, {}, ""),
    ("N35", {"NCCL_MIN_CTAS": "16", "NCCL_MAX_CTAS": "16"}, {}, ""),
    ("N36", {"NCCL_CUMEM_ENABLE": "0", "NCCL_MNNVL_ENABLE": "1"}, {}, ""),
    ("N37", {"NCCL_P2P_LEVEL": "NVL"}, {}, ""),
    ("N38", {"NCCL_DEBUG": "INFO"}, {"nodes": 1, "nproc": 8}, ""),
    ("N38", {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "/x"}, {"nodes": 2, "nproc": 8}, ""),
    ("N39", {"NCCL_DEBUG_SUBSYS": "INIT", "NCCL_DEBUG": "INFO"}, {}, ""),
    ("N40", {}, {"gpus": 0, "nodes": 2}, ""),
    ("N40", {"NCCL_DEBUG": "WARN"}, {"gpus": 8, "nodes": 2}, ""),
    ("N41", {"NCCL_SOCKET_IFNAME": "=eth1"}, ETH, ""),
    ("N41", {"NCCL_SOCKET_IFNAME": "eth"}, ETH, ""),
    ("N42", {"NCCL_SOCKET_IFNAME": "eth,ens"}, ETH, ""),
    ("N42", {"NCCL_SOCKET_IFNAME": "^ens"}, ETH, ""),
    ("N42", {"NCCL_SOCKET_IFNAME": "=ens5"}, {}, ""),
    ("N43", {"NCCL_RAS_ADDR": "localhost:12345"}, {}, ""),
    ("N44", {"NCCL_IB_TIMEOUT": "22"}, {}, ""),
    ("N45", {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"}, {}, ""),
    ("N46", {"NCCL_IB_DISABLE": "1"}, NONE, ""),
    ("N47", {"NCCL_NET": "IB"}, {}, ""),
    ("N48", {"NCCL_IB_HCA": "mlx5"}, IB, ""),
    ("N48", {"NCCL_IB_HCA": "^mlx5_9"}, IB, ""),
    ("T01", {"TORCH_DISTRIBUTED_DEBUG": "INFO"}, {}, ""),
    ("T02", {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}, {}, ""),
    ("T02", {"DDP_SURVIVE_ON_NCCL": "1", "TORCH_DIST_USE_NCCL2": "0"}, {}, ""),
    ("T02", {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "DDP_SURVIVE_ON_NCCL": "1"}, {}, ""),
    ("T03", {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}, {}, ""),
    ("T04", {"TORCH_NCCL_BLOCKING_WAIT": "0"}, {}, ""),
    ("T05", {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_FR_DUMP_TEMP_FILE": "/v/trace_"}, {}, ""),
    ("T06", {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}, {}, ""),
    ("T07", {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "480"}, {}, ""),
    ("T08", {"GLOO_SOCKET_IFNAME": "eth0,eth1"}, {}, ""),
    ("T09", {"OMP_NUM_THREADS": "4"}, {"nproc": 4, "cpus": 16}, ""),
    ("T09", {"OMP_NUM_THREADS": "1"}, {"nproc": 2, "cpus": 1}, ""),
    ("T10", {"PYTORCH_CUDA_ALLOC_CONF": "x", "PYTORCH_ALLOC_CONF": "x"}, {}, ""),
    ("T11", {"CUDA_DEVICE_MAX_CONNECTIONS": "16"}, {}, ""),
    ("T12", {"CUDA_LAUNCH_BLOCKING": "0"}, {}, ""),
    ("T13", {"LOCAL_RANK": "1"}, {}, ""),
    ("T14", {"TORCH_FR_DUMP_TEMP_FILE": "/a", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/a"}, {}, ""),
    ("T15", {"TORCH_NCCL_ENABLE_MONITORING": "1"}, {}, ""),
    ("T16", {"OMP_NUM_THREADS": "1"}, {"nproc": 2, "cpus": 16}, ""),
    ("T16", {}, {"nproc": 2, "cpus": 2}, ""),
    ("T17", {"TORCH_NCCL_SOMETHING_THAT_IS_NEW": "1", "TORCH_FR_BUFFER_SIZE": "1"}, {}, ""),
    ("T18", {"PYTORCH_ALLOC_CONF": "roundup_power2_divisions:[256:1,512:2,>:4],max_split_size_mb:64"}, {}, ""),
    ("T19", {"GLOO_SOCKET_IFNAME": "eth0"}, ETH, ""),
    ("T20", {"TORCH_DISTRIBUTED_DEBUG": "detail"}, {}, ""),
    ("T21", {"CUDA_VISIBLE_DEVICES": ""}, {"nproc": 4}, ""),
    ("T21", {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, {"nproc": 4}, ""),
    ("T22", {"TORCH_NCCL_NAN_CHECK": "0"}, {}, ""),
]


def found(case: Case) -> list[Finding]:
    rule, environment, facts, _ = case
    return BY_ID[rule].check(environment, Facts(**facts))


def ids(case: Case) -> str:
    return f"{case[0]}-{'-'.join(f'{name}={value}' for name, value in case[1].items())[:60]}"


@pytest.mark.parametrize("case", SPEAKS, ids=ids)
def test_a_rule_speaks_with_the_value_and_what_to_do(case: Case) -> None:
    assert any(case[3] in str(finding) for finding in found(case)), [str(each) for each in found(case)]
    assert all("{" not in str(finding) and finding.fix.endswith((".", "?")) for finding in found(case))


@pytest.mark.parametrize("case", SILENT, ids=ids)
def test_a_rule_is_silent_next_to_what_it_is_about(case: Case) -> None:
    assert [str(finding) for finding in found(case)] == []


def test_every_rule_is_seen_to_speak_and_to_be_silent() -> None:
    assert {case[0] for case in SPEAKS} == set(BY_ID) == {case[0] for case in SILENT}
    assert len(BY_ID) == len(RULES)


@pytest.mark.parametrize("case", [case for case in SPEAKS if BY_ID[case[0]].needs_node], ids=ids)
def test_what_needs_the_node_is_not_claimed_without_it(case: Case) -> None:
    assert BY_ID[case[0]].check(case[1], Facts(nodes=2, nproc=8, gpus=8, cpus=64)) == []


def test_a_clean_environment_has_no_findings() -> None:
    environment = {"PATH": "/bin", "NCCL_SOCKET_IFNAME": "=eth0", "GLOO_SOCKET_IFNAME": "eth0", "NCCL_DEBUG": "WARN"}
    facts = Facts(nodes=4, nproc=8, gpus=8, cpus=8, interfaces=frozenset({"lo", "eth0"}), rdma_devices=())
    assert check(environment, facts) == []


def test_the_worst_comes_first_and_rules_can_be_left_out() -> None:
    environment = {"NCCL_IB_DISABLE": "0", "NCCL_P2P_DISABLE": "1", "NCCL_PROTO": "LL128"}
    assert [finding.rule for finding in check(environment, Facts())] == ["N33", "N04", "N30"]
    assert [finding.rule for finding in check(environment, Facts(), "n33, N30")] == ["N04"]
    assert check(environment, Facts(), "all") == []
    assert unknown_ids("N33,all,N99") == ["N99"]


def test_one_variable_is_not_blamed_by_two_rules_for_the_same() -> None:
    for name in names.NCCL_DEBUGGING:
        rules = {finding.rule for finding in check({name: "1"}, Facts()) if finding.severity is Severity.WARNING}
        assert "N03" not in rules or rules <= {"N03", "N05", "N06"}, name


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_gives_its_source(rule: model.Rule) -> None:
    assert rule.source.startswith("https://")
    assert rule.looks_for
