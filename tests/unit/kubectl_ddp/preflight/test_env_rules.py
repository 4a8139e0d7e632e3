"""Each rule for a job: what makes it report, and what is so close to it that it must be silent."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ddp_trainer.common import lint
from kubectl_ddp.preflight import env_rules, env_values
from kubectl_ddp.preflight.env_rules import JOB_CHECKS
from tests.support.lint_rules import Case, assert_reports, findings_of

ROOT = Path(__file__).parents[4]

REPORTED: list[Case] = [
    ("N12", {"NCCL_IB_TIMEOUT": "32"}, {}, "NCCL_IB_TIMEOUT=32"),
    ("N12", {"NCCL_IB_TIMEOUT": "0"}, {}, "NCCL_IB_TIMEOUT=0"),
    ("N19", {"NCCL_SOCKET_NTHREADS": "16", "NCCL_NSOCKS_PERTHREAD": "8"}, {}, "=16 times NCCL_NSOCKS_PERTHREAD=8"),
    ("N27", {"NCCL_HOSTID": "a"}, {"nodes": 2}, "look like one host"),
    ("N33", {"NCCL_PROTO": "Simple,LL128"}, {}, "forces LL128, which corrupts"),
    ("N33", {"NCCL_PROTO": "simple;allreduce:ll128"}, {}, "forces LL128"),
    ("N35", {"NCCL_MIN_CTAS": "32", "NCCL_MAX_CTAS": "16"}, {}, "NCCL_MIN_CTAS=32 is more than NCCL_MAX_CTAS=16"),
    ("T02", {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}, {}, "=1: the flight recorder's dump is lost. Use torch's"),
    ("T02", {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}, {}, "=0: a lost peer becomes an endless hang"),
    ("T02", {"DDP_SURVIVE_ON_NCCL": "1", "TORCH_NCCL_DESYNC_DEBUG": "1"}, {}, "DESYNC_DEBUG=1: torch ends a process"),
    ("T02", {"DDP_SURVIVE_ON_NCCL": "1", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, {}, "DETAIL: torch ends a process"),
    ("T02", {"DDP_SURVIVE_ON_NCCL": "1", "TORCH_DIST_USE_NCCL2": "1"}, {}, "nccl2 refuses DDP_SURVIVE_ON_NCCL=1"),
    ("T02", {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3", "DDP_SURVIVE_ON_NCCL": "1"}, {}, "=3: torch ends a process that"),
    ("N01", {"NCCL_SOCKET_IFNAM": "eth0"}, {}, "Did you mean NCCL_SOCKET_IFNAME?"),
    ("N01", {"NCCL_TIMEOUT": "1"}, {}, "NCCL ignores NCCL_TIMEOUT"),
    ("N02", {"NCCL_IB_GDR_LEVEL": "3"}, {}, "NCCL_IB_GDR_LEVEL is renamed in 2.4. Use NCCL_NET_GDR_LEVEL."),
    ("N04", {"NCCL_P2P_DISABLE": "1"}, {}, "switches off NVLink"),
    ("N04", {"NCCL_SHM_DISABLE": "1"}, {}, "switches off shared memory"),
    ("N05", {"NCCL_ALGO": "Ring"}, {}, "NCCL_ALGO=Ring"),
    ("N06", {"NCCL_NET_GDR_LEVEL": "5"}, {}, "NCCL_NET_GDR_LEVEL=5 is a number"),
    ("N07", {"NCCL_SOCKET_IFNAME": "^lo,docker"}, {}, "so veth, cali, cni, pod-id-link become eligible"),
    ("N09", {"NCCL_IB_HCA": "mlx5_1"}, {}, "takes mlx5_1 for a prefix, and mlx5_10 to mlx5_19 match"),
    ("N09", {"NCCL_IB_HCA": "mlx5_0:1,mlx5_1:1"}, {}, "takes mlx5_1 for a prefix"),
    ("N10", {"NCCL_IB_GID_INDEX": "3"}, {}, "NCCL_IB_GID_INDEX=3: since NCCL 2.21"),
    ("N13", {"NCCL_NVLS_ENABLE": "0"}, {}, "gives up NVLink SHARP"),
    ("N15", {"NCCL_MNNVL_ENABLE": "1"}, {}, "without an IMEX channel"),
    ("N16", {"NCCL_DEBUG": "WARN,VERSION"}, {}, "NCCL_DEBUG=WARN,VERSION is not a level"),
    ("N18", {"NCCL_DEBUG_FILE": "/tmp/nccl.%h"}, {}, "one file for several processes"),
    ("N18", {"NCCL_DEBUG_FILE": "~/nccl.%h.%p"}, {}, "a ~ that is not expanded"),
    ("N22", {"RDMAV_FORK_SAFE": "1", "NCCL_NET": "AWS Libfabric"}, {}, "RDMAV_FORK_SAFE=1 is obsolete"),
    ("N31", {"NCCL_IB_RETRY_CNT": "8"}, {}, "NCCL_IB_RETRY_CNT=8 is out of range: it may be 0 to 7"),
    ("N31", {"NCCL_IB_DISABLE": "true"}, {}, "NCCL_IB_DISABLE=true is out of range: it may be 0 to 1"),
    ("N32", {"NCCL_SOCKET_FAMILY": "IPv4"}, {}, "NCCL_SOCKET_FAMILY=IPv4 is none of AF_INET, AF_INET6"),
    ("N32", {"NCCL_P2P_LEVEL": "NVLINK"}, {}, "NCCL_P2P_LEVEL=NVLINK is none of LOC, NVL"),
    ("N38", {"NCCL_DEBUG": "INFO"}, {"nodes": 2, "nproc": 8}, "the lines of 16 ranks"),
    ("N43", {"NCCL_RAS_ADDR": "0.0.0.0:28028"}, {}, "NCCL_RAS_ADDR=0.0.0.0:28028"),
    ("T04", {"TORCH_NCCL_BLOCKING_WAIT": "1"}, {}, "makes every wait block"),
    ("T05", {"TORCH_FR_BUFFER_SIZE": "2000"}, {}, "ends with the container"),
    ("T09", {"OMP_NUM_THREADS": "8"}, {"nproc": 4, "cpus": 16}, "=8 is too much for 4 workers and 16 cores"),
    ("T11", {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, {}, "puts all streams in one queue"),
    ("T17", {"TORCH_NCCL_BLOCKING_WIAT": "1"}, {}, "Did you mean TORCH_NCCL_BLOCKING_WAIT?"),
    ("T18", {"PYTORCH_ALLOC_CONF": "expandable_segment:True"}, {}, "Did you mean expandable_segments?"),
    ("T22", {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, {}, "TORCH_DISTRIBUTED_DEBUG=DETAIL is a debugging switch"),
    ("T22", {"CUDA_LAUNCH_BLOCKING": "1"}, {}, "CUDA_LAUNCH_BLOCKING=1 is a debugging switch"),
]

SILENT: list[tuple[str, dict[str, str], dict[str, Any]]] = [
    ("N12", {"NCCL_IB_TIMEOUT": "22"}, {}),
    ("N19", {"NCCL_SOCKET_NTHREADS": "8", "NCCL_NSOCKS_PERTHREAD": "8"}, {}),
    ("N27", {"NCCL_HOSTID": "a"}, {"nodes": 1}),
    ("N33", {"NCCL_PROTO": "^LL128"}, {}),
    ("N35", {"NCCL_MIN_CTAS": "16", "NCCL_MAX_CTAS": "16"}, {}),
    ("T02", {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}, {}),
    ("T02", {"DDP_SURVIVE_ON_NCCL": "1", "TORCH_DIST_USE_NCCL2": "0"}, {}),
    ("T02", {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "DDP_SURVIVE_ON_NCCL": "1"}, {}),
    ("N01", {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_FASTRAK_X": "1", "NCCL_VERSION": "2", "NCCL_BLOCKING_WAIT": "1"}, {}),
    ("N02", {"NCCL_MAX_CTAS": "16"}, {}),
    ("N04", {"NCCL_P2P_DISABLE": "0"}, {}),
    ("N05", {"NCCL_ALGO": "Ring", "NCCL_GPUDIRECTTCPX_CTRL_DEV": "eth0"}, {}),
    ("N05", {"NCCL_PROTO": "LL128"}, {}),
    ("N06", {"NCCL_NET_GDR_LEVEL": "PIX"}, {}),
    ("N07", {"NCCL_SOCKET_IFNAME": "^lo,docker,veth,cali,cni,pod-id-link"}, {}),
    ("N07", {"NCCL_SOCKET_IFNAME": "=eth0"}, {}),
    ("N09", {"NCCL_IB_HCA": "=mlx5_1"}, {}),
    ("N09", {"NCCL_IB_HCA": "mlx5_0,mlx5"}, {}),
    ("N10", {"NCCL_IB_GID_INDEX": "-1"}, {}),
    ("N13", {"NCCL_NVLS_ENABLE": "2"}, {}),
    ("N13", {"NCCL_NVLS_ENABLE": "0", "DDP_SURVIVE_ON_NCCL": "1"}, {}),
    ("N15", {"NCCL_MNNVL_ENABLE": "2"}, {}),
    ("N16", {"NCCL_DEBUG": "warn"}, {}),
    ("N18", {"NCCL_DEBUG_FILE": "/tmp/nccl.%h.%p"}, {}),
    ("N18", {"NCCL_DEBUG_FILE": "/dev/stderr"}, {}),
    ("N22", {"RDMAV_FORK_SAFE": "1", "NCCL_BUFFSIZE": "8388608"}, {}),
    ("N31", {"NCCL_IB_RETRY_CNT": "7", "NCCL_IB_DISABLE": "", "NCCL_IB_TC": "0x60"}, {}),
    ("N32", {"NCCL_SOCKET_FAMILY": "AF_INET", "NCCL_P2P_LEVEL": "nvl", "NCCL_NET_GDR_LEVEL": "5"}, {}),
    ("N38", {"NCCL_DEBUG": "INFO"}, {"nodes": 1, "nproc": 8}),
    ("N38", {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "/x"}, {"nodes": 2, "nproc": 8}),
    ("N43", {"NCCL_RAS_ADDR": "localhost:12345"}, {}),
    ("T04", {"TORCH_NCCL_BLOCKING_WAIT": "0"}, {}),
    ("T05", {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_FR_DUMP_TEMP_FILE": "/v/trace_"}, {}),
    ("T09", {"OMP_NUM_THREADS": "4"}, {"nproc": 4, "cpus": 16}),
    ("T09", {"OMP_NUM_THREADS": "1"}, {"nproc": 2, "cpus": 1}),
    ("T11", {"CUDA_DEVICE_MAX_CONNECTIONS": "16"}, {}),
    ("T17", {"TORCH_NCCL_SOMETHING_THAT_IS_NEW": "1", "TORCH_FR_BUFFER_SIZE": "1"}, {}),
    ("T18", {"PYTORCH_ALLOC_CONF": "roundup_power2_divisions:[256:1,512:2,>:4],max_split_size_mb:64"}, {}),
    ("T22", {"TORCH_NCCL_NAN_CHECK": "0", "TORCH_DISTRIBUTED_DEBUG": "INFO"}, {}),
]


@pytest.mark.parametrize("case", REPORTED)
def test_a_rule_reports_the_value_and_what_to_do(case: Case) -> None:
    assert_reports(JOB_CHECKS, case)


@pytest.mark.parametrize(("rule", "environment", "facts"), SILENT)
def test_a_rule_is_silent_beside_its_subject(rule: str, environment: dict[str, str], facts: dict[str, Any]) -> None:
    assert findings_of(JOB_CHECKS, rule, environment, facts) == []


def rules_in(module: ModuleType) -> set[str]:
    return set(re.findall(r'"([NT]\d\d)"', inspect.getsource(module)))


def test_every_rule_is_documented_and_seen_to_report_and_to_be_silent() -> None:
    assert {case[0] for case in REPORTED} == {case[0] for case in SILENT} == rules_in(env_rules) | rules_in(env_values)
    documented = re.findall(r"^\| ([NT]\d\d) \|", (ROOT / "docs/lint.md").read_text(), re.MULTILINE)
    assert sorted(documented) == sorted(rules_in(env_rules) | rules_in(env_values) | rules_in(lint))
