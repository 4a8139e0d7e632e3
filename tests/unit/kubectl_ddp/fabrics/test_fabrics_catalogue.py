"""Every fabric: the values it sets, their reasons and sources, and what the rules about the environment say of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from ddp_trainer.common.lint import Facts as Node
from ddp_trainer.common.lint import run_checks
from kubectl_ddp.fabrics.catalog import (
    ACCELERATORS,
    DEVICES,
    MACHINES,
    SET,
    EmitPolicy,
    FabricValue,
    NodeFacts,
    Target,
    choose,
    effective_entries,
    fabrics,
    nccl_of,
    profiles,
    suggest_name,
    too_new,
    version,
)
from kubectl_ddp.preflight.env_rules import JOB_CHECKS, known_names
from kubectl_ddp.spec.fields import FIELDS, PRESETS

ROOT = Path(__file__).parents[4]
OCI = {
    "NCCL_NET": "IB", "NCCL_IB_HCA": "mlx5", "NCCL_IB_GID_INDEX": "3", "NCCL_IB_TC": "41", "NCCL_IB_SL": "0",
    "NCCL_IB_TIMEOUT": "22", "NCCL_IB_SPLIT_DATA_ON_QPS": "0", "NCCL_NET_PLUGIN": "none", "NCCL_SOCKET_IFNAME": "eth0",
    "DDP_LINT_IGNORE": "N10",
}  # fmt: skip
GIB = {"NCCL_NET": "gIB", "DDP_LINT_IGNORE": "N10"}
COREWEAVE = {"NCCL_NET": "IB", "NCCL_NET_PLUGIN": "none", "NCCL_SOCKET_IFNAME": "eth0"}
AWS = {
    "p4d.24xlarge": 4, "p4de.24xlarge": 4, "p5.48xlarge": 32, "p5e.48xlarge": 32, "p5en.48xlarge": 16,
    "p5.4xlarge": 1, "p6-b200.48xlarge": 8, "p6-b300.48xlarge": 16, "p6e-gb200.36xlarge": 4, "g6.48xlarge": 1,
}  # fmt: skip
"""Machine → number of its adapters."""
ORACLE = {
    "BM.GPU4.8": 16, "BM.GPU.B4.8": 16, "BM.GPU.A100-v2.8": 16, "BM.GPU.H100.8": 16, "BM.GPU.H200.8": 8,
    "BM.GPU.B200.8": 8, "BM.GPU.B300.8": 16,
}  # fmt: skip
"""Shape → number of its virtual functions."""
ENVIRONMENTS: list[tuple[str, str, dict[str, str]]] = [
    ("gloo-cpu", "", {}),
    ("single-node-nvlink", "", {}),
    ("tcp", "", {"NCCL_NET": "Socket"}),
    ("ib", "", {"NCCL_NET": "IB"}),
    ("roce", "", {"NCCL_NET": "IB"}),
    ("aws-efa", "p5.48xlarge", {"NCCL_NET": "AWS Libfabric"}),
    ("aws-efa-dra", "p5.48xlarge", {"NCCL_NET": "AWS Libfabric"}),
    (
        "gcp-tcpx",
        "a3-highgpu-8g",
        {
            "NCCL_NET": "GPUDirectTCPX_v7", "NCCL_SOCKET_IFNAME": "eth0", "NCCL_ALGO": "Ring,Tree",
            "NCCL_PROTO": "Simple", "NCCL_CROSS_NIC": "0", "NCCL_NET_GDR_LEVEL": "PIX", "NCCL_P2P_PXN_LEVEL": "0",
            "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME": "eth1,eth2,eth3,eth4", "NCCL_GPUDIRECTTCPX_CTRL_DEV": "eth0",
            "NCCL_DYNAMIC_CHUNK_SIZE": "524288", "NCCL_P2P_NET_CHUNKSIZE": "524288",
            "NCCL_P2P_PCI_CHUNKSIZE": "524288", "NCCL_P2P_NVL_CHUNKSIZE": "1048576", "NCCL_BUFFSIZE": "4194304",
            "NCCL_NSOCKS_PERTHREAD": "4", "NCCL_SOCKET_NTHREADS": "1",
            "NCCL_GPUDIRECTTCPX_PROGRAM_FLOW_STEERING_WAIT_MICROS": "500000",
            "NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX": "/run/tcpx",
            "NCCL_GPUDIRECTTCPX_TX_BINDINGS":
                "eth1:8-21,112-125;eth2:8-21,112-125;eth3:60-73,164-177;eth4:60-73,164-177",
            "NCCL_GPUDIRECTTCPX_RX_BINDINGS":
                "eth1:22-35,126-139;eth2:22-35,126-139;eth3:74-87,178-191;eth4:74-87,178-191",
        },
    ),
    (
        "gcp-tcpxo",
        "a3-megagpu-8g",
        {
            "NCCL_NET": "FasTrak", "NCCL_LIB_DIR": "/usr/local/nvidia/lib64",
            "NCCL_FASTRAK_LLCM_DEVICE_DIRECTORY": "/dev/aperture_devices",
            "DDP_LINT_IGNORE": "N05,N33",
        },
    ),
    ("gcp-gib", "a4-highgpu-8g", GIB | {"NCCL_SOCKET_IFNAME": "=eth0"}),
    ("gcp-gib-dra", "a4-highgpu-8g", GIB),
    ("azure-ib", "Standard_ND96isr_H100_v5", {"NCCL_NET": "IB", "NCCL_IB_HCA": "^=mlx5_8"}),
    ("azure-ib", "Standard_ND96amsr_A100_v4", {"NCCL_NET": "IB"}),
    ("oci-roce", "BM.GPU.A100-v2.8", OCI | {"NCCL_IB_QPS_PER_CONNECTION": "4"}),
    ("oci-roce", "BM.GPU.H100.8", OCI | {"NCCL_CUMEM_ENABLE": "0", "NCCL_IGNORE_CPU_AFFINITY": "1"}),
    ("coreweave-ib", "gd-8xh100ib-i128", COREWEAVE | {"NCCL_IB_HCA": "ibp"}),
    (
        "coreweave-roce",
        "gb300-4x",
        COREWEAVE
        | {
            "NCCL_IB_ADDR_FAMILY": "AF_INET6", "NCCL_IB_ADDR_RANGE": "fd02::/16", "NCCL_IB_TC": "96",
            "NCCL_IB_ADAPTIVE_ROUTING": "1",
        },
    ),
    ("nebius-ib", "", {"NCCL_NET": "IB", "NCCL_IB_HCA": "mlx5"}),
    ("together-ib", "", {"NCCL_NET": "IB", "NCCL_IB_HCA": "mlx5"}),
    ("crusoe-ib", "", {"NCCL_NET": "IB", "NCCL_IB_HCA": "^=mlx5_0", "NCCL_IB_MERGE_VFS": "0"}),
    ("lambda-ib", "", {"NCCL_NET": "IB", "NCCL_IB_HCA": "^=mlx5_0"}),
    ("gb200-mnnvl", "", {}),
]  # fmt: skip
"""Fabric, type of machine, and every variable that the table of recipes has for it."""
NODE = Node(nodes=2, nproc=8, cpus=24)
THREADS = {"OMP_NUM_THREADS": "3"}
"""Every job has it."""
EVERYTHING = [pytest.param(entry, id=f"{name}-{entry.key}") for name, it in fabrics().items() for entry in it.entries]


def facts(machine: str = "", **more: object) -> NodeFacts:
    return NodeFacts(**{"nodes": 2, "gpus": 8, "machine": machine} | more)  # type: ignore[arg-type]


def environment(name: str, machine: str) -> dict[str, str]:
    return {entry.name: entry.value for entry in effective_entries(name, facts(machine)) if entry.target == "env"}


def other_values(name: str, machine: str = "") -> dict[str, str]:
    return {entry.key: entry.value for entry in effective_entries(name, facts(machine)) if entry.target != "env"}


@pytest.mark.parametrize(("name", "machine", "expected"), ENVIRONMENTS)
def test_a_fabric_sets_the_variables_of_its_recipe_and_no_others(
    name: str, machine: str, expected: dict[str, str]
) -> None:
    assert environment(name, machine) == expected


def test_every_fabric_has_its_variables_checked() -> None:
    assert {name for name, _, _ in ENVIRONMENTS} == set(fabrics())


@pytest.mark.parametrize(("machine", "count"), AWS.items())
def test_a_machine_of_aws_gives_all_its_adapters_and_huge_pages(machine: str, count: int) -> None:
    assert other_values("aws-efa", machine) == {
        "rdma": f"vpc.amazonaws.com/efa={count}",
        "resource.hugepages-2Mi": "5120Mi",
    }


@pytest.mark.parametrize(("shape", "count"), ORACLE.items())
def test_a_shape_of_oracle_gives_a_function_and_a_network_for_each_device(shape: str, count: int) -> None:
    assert other_values("oci-roce", shape) == {
        "rdma": f"nvidia.com/rdma-vf={count}",
        "networks": ",".join(["rdma-vf"] * count),
    }
    [listed] = [each for each in fabrics()["oci-roce"].entries if each.machines == (shape,) and "HCA" in each.key]
    assert (listed.emission, len(listed.value.split(","))) == (EmitPolicy.OFF, count)


@pytest.mark.parametrize(
    ("name", "first", "networks"),
    [("gcp-tcpx", 1, [f"vpc{n}" for n in range(1, 5)]), ("gcp-tcpxo", 1, [f"vpc{n}" for n in range(1, 9)]),
     ("gcp-gib", 2, [f"rdma-{n}" for n in range(8)])],
)  # fmt: skip
def test_googles_networks_are_attached_by_annotation(name: str, first: int, networks: list[str]) -> None:
    values = other_values(name)
    assert values["annotation.networking.gke.io/default-interface"] == "eth0"
    attached = json.loads(values["annotation.networking.gke.io/interfaces"])
    assert attached[0] == {"interfaceName": "eth0", "network": "default"}
    assert attached[1:] == [
        {"interfaceName": f"eth{number}", "network": network} for number, network in enumerate(networks, first)
    ]


def test_tcpxs_daemon_is_handed_the_devices() -> None:
    listed = yaml.safe_load(other_values("gcp-tcpx")["annotation.devices.gke.io/container.tcpx-daemon"])
    devices = [f"/dev/nvidia{number}" for number in range(8)]
    assert [each["path"] for each in listed] == [*devices, "/dev/nvidiactl", "/dev/nvidia-uvm"]


def test_other_values_are_those_of_the_recipes() -> None:
    assert other_values("aws-efa-dra") == {
        "claim.rdma": "efa.networking.k8s.aws=all",
        "resource.hugepages-2Mi": "5120Mi",
    }
    assert other_values("azure-ib") == {"rdma": "rdma/ib=8"}
    assert other_values("coreweave-ib") == {"rdma": "rdma/ib=1"}
    assert other_values("gcp-gib-dra")["claim.rdma"] == "mrdma.google.com=8"
    assert other_values("gcp-gib")["load"] == "/usr/local/gib/scripts/set_nccl_env.sh"
    assert other_values("gcp-gib")["libraryPath"] == "/usr/local/gib/lib64:/usr/local/nvidia/lib64"
    assert other_values("gcp-tcpxo")["load"] == "/usr/local/nvidia/lib64/nccl-env-profile.sh"
    for name in ("gloo-cpu", "single-node-nvlink", "tcp", "ib", "roce", "coreweave-roce", "nebius-ib"):
        assert other_values(name) == {}


def test_nvlink_between_machines_keeps_to_the_rack_alone_and_prefers_it_beside_another_fabric() -> None:
    alone, beside = other_values("gb200-mnnvl"), other_values("gb200-mnnvl+ib")
    assert alone == {
        "computeDomain": "0",
        "nodeLabel.nvidia.com/gpu.clique": "exists",
        "topology": "pack=nvidia.com/gpu.clique:required",
    }
    assert beside == alone | {"topology": "pack=nvidia.com/gpu.clique"}
    assert environment("gb200-mnnvl+ib", "") == {"NCCL_NET": "IB"}


@pytest.mark.parametrize("entry", EVERYTHING)
def test_every_value_has_a_reason_and_a_source(entry: FabricValue) -> None:
    assert len(entry.reason) > 10
    assert not entry.reason.endswith(".")
    assert entry.source.startswith("https://")
    assert entry.target in {*Target, *FIELDS}


@pytest.mark.parametrize("name", fabrics())
def test_every_need_and_every_warning_has_a_sentence_and_a_source(name: str) -> None:
    profile = fabrics()[name]
    assert profile.summary.endswith(".")
    assert profile.source.startswith("https://")
    for need in profile.needs:
        assert need.message.endswith(".")
        assert need.source.startswith("https://")
    for refusal in profile.refusals:
        assert not refusal.reason.endswith(".")
        assert refusal.source.startswith("https://")


@pytest.mark.parametrize("entry", EVERYTHING)
def test_every_variable_is_known_to_the_lint(entry: FabricValue) -> None:
    if entry.target == "env" and entry.emission in SET:
        names = known_names()
        is_nccls = entry.name[5:] in names["nccl"] or entry.name.startswith(tuple(names["others"]))
        assert is_nccls or entry.name in names["torch"] or entry.name == "DDP_LINT_IGNORE"


def test_no_variable_of_a_fabric_is_in_a_preset() -> None:
    theirs = {key for preset in PRESETS.values() for key in preset.settings}
    assert not theirs & {entry.key for profile in fabrics().values() for entry in profile.entries}
    assert {"env.NCCL_DEBUG", "env.TORCH_FR_BUFFER_SIZE", "env.TORCH_NCCL_TRACE_BUFFER_SIZE"} <= theirs


@pytest.mark.parametrize(("name", "machine", "_"), ENVIRONMENTS)
def test_the_environment_of_a_fabric_lints_clean(name: str, machine: str, _: dict[str, str]) -> None:
    told = environment(name, machine)
    preset = {key.partition(".")[2]: each.value for key, each in PRESETS["gpu-nccl"].settings.items() if "." in key}
    ignored = told.get("DDP_LINT_IGNORE", "")
    found = run_checks(JOB_CHECKS, preset | told | THREADS, NODE, ignored)
    assert [str(each) for each in found] == []


@pytest.mark.parametrize(
    ("name", "script"),
    [
        (
            "gcp-gib",
            {
                "NCCL_CROSS_NIC": "0", "NCCL_NET_GDR_LEVEL": "PIX", "NCCL_P2P_NET_CHUNKSIZE": "131072",
                "NCCL_P2P_PCI_CHUNKSIZE": "131072", "NCCL_P2P_NVL_CHUNKSIZE": "524288",
                "NCCL_NVLS_CHUNKSIZE": "524288", "NCCL_IB_GID_INDEX": "3", "NCCL_IB_ADAPTIVE_ROUTING": "1",
                "NCCL_IB_QPS_PER_CONNECTION": "4", "NCCL_IB_TC": "52", "NCCL_IB_FIFO_TC": "84",
                "NCCL_TUNER_CONFIG_PATH": "/usr/local/gib/configs/tuner_config_a4.txtpb",
            },
        ),
        (
            "gcp-tcpxo",
            {
                "NCCL_PROTO": "Simple,LL128", "NCCL_BUFFSIZE": "8388608", "NCCL_NET_GDR_LEVEL": "PIX",
                "NCCL_CROSS_NIC": "0", "NCCL_ALGO": "Ring,Tree", "NCCL_P2P_PXN_LEVEL": "0",
                "NCCL_TUNER_PLUGIN": "libnccl-tuner.so", "NCCL_FASTRAK_NUM_FLOWS": "2",
            },
        ),
    ],
)  # fmt: skip
def test_what_a_vendors_script_sets_lints_clean_where_the_pod_looks(name: str, script: dict[str, str]) -> None:
    told = {"NCCL_DEBUG": "WARN"} | environment(name, "") | script | THREADS
    assert [str(each) for each in run_checks(JOB_CHECKS, told, NODE, told["DDP_LINT_IGNORE"])] == []


def test_a_recipe_leaves_out_the_rules_that_it_breaks_and_no_others() -> None:
    for machine in ("BM.GPU.A100-v2.8", "BM.GPU.H100.8"):
        told = environment("oci-roce", machine)
        assert {each.rule for each in run_checks(JOB_CHECKS, told | THREADS, NODE)} == {told["DDP_LINT_IGNORE"]}


WITHOUT_RDMA = ("gloo-cpu", "single-node-nvlink", "tcp", "gb200-mnnvl")


@pytest.mark.parametrize("name", [name for name in fabrics() if name not in WITHOUT_RDMA])
def test_a_fabric_with_rdma_fails_closed(name: str) -> None:
    assert environment(name, "")["NCCL_NET"] not in {"", "Socket"}
    assert any("NCCL fails at the start" in entry.reason for entry in fabrics()[name].entries)


@pytest.mark.parametrize(
    ("nccl", "index"), [(None, []), (version("2.20.5"), ["3"]), (version("2.21"), []), (version("2.28.7"), [])]
)
def test_a_gid_index_is_set_only_for_an_image_that_says_it_is_older(
    nccl: tuple[int, ...] | None, index: list[str]
) -> None:
    found = effective_entries("roce", facts(nccl=nccl))
    assert [entry.value for entry in found if entry.name == "NCCL_IB_GID_INDEX"] == index


def test_values_newer_than_the_nccl_of_the_image_are_left_out_and_named() -> None:
    told = too_new("coreweave-roce", facts(nccl=version("2.18")))
    assert [entry.name for entry in told] == ["NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE"]
    assert too_new("coreweave-roce", facts(nccl=version("2.28"))) == too_new("coreweave-roce", facts()) == []


@pytest.mark.parametrize(
    ("image", "nccl"),
    [
        ("example.com/nccl-tests:cuda-13.1.1-ubuntu-24.04-nccl-2.29.3-020926.1", (2, 29, 3)),
        ("example.com/a:13.0-nccl2.28.7-1", (2, 28, 7)),
        ("example.com/train:1.4.2", None),
        ("example.com/nccl:1", None),
    ],
)
def test_the_name_of_an_image_may_say_its_nccl(image: str, nccl: tuple[int, ...] | None) -> None:
    assert nccl_of(image) == nccl


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ({"gpus": 0}, "gloo-cpu"),
        ({"nodes": 1}, "single-node-nvlink"),
        ({"nodes": 1, "machine": "p5.48xlarge"}, "single-node-nvlink"),
        ({}, "none"),
        ({"machine": "m7i.large"}, "none"),
        ({"machine": "p5en.48xlarge"}, "aws-efa"),
        ({"machine": "p5en.48xlarge", "gpus": 1}, "none"),
        ({"machine": "p6e-gb200.36xlarge"}, "gb200-mnnvl+aws-efa"),
        ({"accelerator": "nvidia-h100-mega-80gb"}, "gcp-tcpxo"),
        ({"accelerator": "nvidia-h100-mega-80gb", "gpus": 1}, "none"),
        ({"gpu_type": "NVIDIA-GB200"}, "gb200-mnnvl"),
        ({"gpu_type": "NVIDIA-GB300", "devices": "rdma/ib"}, "gb200-mnnvl+ib"),
        ({"gpu_type": "NVIDIA-H100-80GB-HBM3", "devices": "rdma/ib"}, "ib"),
        ({"devices": "vpc.amazonaws.com/efa"}, "aws-efa"),
        ({"devices": "nvidia.com/rdma-vf"}, "oci-roce"),
        ({"devices": "rdma/roce_gdr"}, "roce"),
        ({"devices": "rdma/rdma_shared_device_a"}, "ib"),
    ],
)
def test_the_jobs_other_words_choose_the_fabric(told: dict[str, object], name: str) -> None:
    assert choose(facts(**told)).name == name


def test_every_choice_is_a_fabric() -> None:
    for _, name in (*MACHINES, *ACCELERATORS.items(), *DEVICES):
        assert profiles(name)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("infiniband", "'infiniband' is not a fabric"),
        ("ib+roce", "'ib+roce' names ib and roce, and the nodes of a job have one of them"),
        ("gb200-mnnvl+gb200-mnnvl", "names a fabric twice"),
        ("gb200-mnnvl+auto", "'auto' is not a fabric"),
        ("", "'' is not a fabric"),
    ],
)
def test_a_name_that_is_no_fabric_is_refused(name: str, sentence: str) -> None:
    with pytest.raises(LookupError, match=sentence.replace("+", r"\+")):
        profiles(name)


def test_a_misspelt_name_is_recognized_and_another_gets_the_list() -> None:
    assert suggest_name("aws-efs") == "Did you mean 'aws-efa'?"
    assert suggest_name("zzz").startswith("There are gloo-cpu, ")
