"""Every fabric: the values that it sets, their reasons and sources, and the environment rules on them."""

from __future__ import annotations

import json

import pytest

from ddp_trainer.common.lint import Facts as Node
from ddp_trainer.common.lint import run_checks
from kubectl_ddp.fabrics import catalog
from kubectl_ddp.fabrics.catalog import FabricValue, NodeFacts, effective_entries, fabrics, too_new, version
from kubectl_ddp.preflight.env_rules import JOB_CHECKS, known_names
from kubectl_ddp.spec.fields import PRESETS

RECIPES: dict[tuple[str, str], dict[str, str]] = {
    ("ib", ""): {"NCCL_NET": "IB"},
    ("aws-efa", "p5.48xlarge"): {"NCCL_NET": "AWS Libfabric"},
    ("gcp-tcpxo", "a3-megagpu-8g"): {
        "NCCL_NET": "FasTrak",
        "NCCL_LIB_DIR": "/usr/local/nvidia/lib64",
        "NCCL_FASTRAK_LLCM_DEVICE_DIRECTORY": "/dev/aperture_devices",
        "DDP_LINT_IGNORE": "N05,N33",
    },
    ("azure-ib", "Standard_ND96isr_H100_v5"): {"NCCL_NET": "IB", "NCCL_IB_HCA": "^=mlx5_8"},
    ("azure-ib", "Standard_ND96amsr_A100_v4"): {"NCCL_NET": "IB"},
    ("coreweave-roce", "gb300-4x"): {
        "NCCL_NET": "IB",
        "NCCL_NET_PLUGIN": "none",
        "NCCL_SOCKET_IFNAME": "eth0",
        "NCCL_IB_ADDR_FAMILY": "AF_INET6",
        "NCCL_IB_ADDR_RANGE": "fd02::/16",
        "NCCL_IB_TC": "96",
        "NCCL_IB_ADAPTIVE_ROUTING": "1",
    },
    ("crusoe-ib", ""): {"NCCL_NET": "IB", "NCCL_IB_HCA": "^=mlx5_0", "NCCL_IB_MERGE_VFS": "0"},
    ("gb200-mnnvl", ""): {},
}
"""Fabric and type of machine → every variable of the vendor's recipe."""
TYPES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("aws-efa", "aws-efa-dra"), ("p5.48xlarge",)),
    **dict.fromkeys(("gcp-gib", "gcp-gib-dra"), ("a4-highgpu-8g",)),
    "gcp-tcpx": ("a3-highgpu-8g",),
    "gcp-tcpxo": ("a3-megagpu-8g",),
    "azure-ib": ("Standard_ND96isr_H100_v5", "Standard_ND96amsr_A100_v4"),
    "oci-roce": ("BM.GPU.A100-v2.8", "BM.GPU.H100.8"),
    "coreweave-ib": ("gd-8xh100ib-i128",),
    "coreweave-roce": ("gb300-4x",),
}
"""Types of machines of the fabrics that depend on them."""
ENVIRONMENTS = [(name, machine) for name in fabrics() for machine in TYPES.get(name, ("",))]
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


@pytest.mark.parametrize(("fabric", "expected"), RECIPES.items())
def test_a_fabric_sets_the_variables_of_its_recipe_alone(fabric: tuple[str, str], expected: dict[str, str]) -> None:
    assert environment(*fabric) == expected


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
def test_every_variable_is_known_to_the_lint(entry: FabricValue) -> None:
    if entry.target == "env" and entry.emission in catalog.SET:
        names = known_names()
        is_nccls = entry.name[5:] in names["nccl"] or entry.name.startswith(tuple(names["others"]))
        assert is_nccls or entry.name in names["torch"] or entry.name == "DDP_LINT_IGNORE"


@pytest.mark.parametrize(("name", "machine"), ENVIRONMENTS)
def test_the_environment_of_a_fabric_lints_clean(name: str, machine: str) -> None:
    variables = environment(name, machine)
    preset = {key.partition(".")[2]: item.value for key, item in PRESETS["gpu-nccl"].settings.items() if "." in key}
    ignored = variables.get("DDP_LINT_IGNORE", "")
    found = run_checks(JOB_CHECKS, preset | variables | THREADS, NODE, ignored)
    assert [str(item) for item in found] == []


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
    variables = {"NCCL_DEBUG": "WARN"} | environment(name, "") | script | THREADS
    assert [str(finding) for finding in run_checks(JOB_CHECKS, variables, NODE, variables["DDP_LINT_IGNORE"])] == []


@pytest.mark.parametrize("machine", TYPES["oci-roce"])
def test_a_recipe_leaves_out_the_rules_that_it_breaks_and_no_others(machine: str) -> None:
    variables = environment("oci-roce", machine)
    found = run_checks(JOB_CHECKS, variables | THREADS, NODE)
    assert {finding.rule for finding in found} == {variables["DDP_LINT_IGNORE"]}


WITHOUT_RDMA = ("gloo-cpu", "single-node-nvlink", "tcp", "gb200-mnnvl")


@pytest.mark.parametrize("name", [name for name in fabrics() if name not in WITHOUT_RDMA])
def test_a_fabric_with_rdma_fails_closed(name: str) -> None:
    assert environment(name, "")["NCCL_NET"] not in {"", "Socket"}
    assert any("NCCL fails at the start" in entry.reason for entry in fabrics()[name].entries)


@pytest.mark.parametrize(
    ("nccl", "index"), [(None, []), (version("2.20.5"), ["3"]), (version("2.21"), []), (version("2.28.7"), [])]
)
def test_a_gid_index_is_set_only_for_an_older_image(nccl: tuple[int, ...] | None, index: list[str]) -> None:
    found = effective_entries("roce", facts(nccl=nccl))
    assert [entry.value for entry in found if entry.name == "NCCL_IB_GID_INDEX"] == index


def test_values_newer_than_the_nccl_of_the_image_are_left_out_and_named() -> None:
    report = too_new("coreweave-roce", facts(nccl=version("2.18")))
    assert [entry.name for entry in report] == ["NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE"]
    assert too_new("coreweave-roce", facts(nccl=version("2.28"))) == too_new("coreweave-roce", facts()) == []


@pytest.mark.parametrize(
    ("image", "nccl"),
    [
        ("example.com/nccl-tests:cuda-13.1.1-ubuntu-24.04-nccl-2.29.3-020926.1", (2, 29, 3)),
        ("example.com/a:13.0-nccl2.28.7-1", (2, 28, 7)),
        ("example.com/nccl:1", None),
    ],
)
def test_the_name_of_an_image_may_say_its_nccl(image: str, nccl: tuple[int, ...] | None) -> None:
    assert catalog.nccl_of(image) == nccl


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ({"gpus": 0}, "gloo-cpu"),
        ({"nodes": 1}, "single-node-nvlink"),
        ({"nodes": 1, "machine": "p5.48xlarge"}, "single-node-nvlink"),
        ({}, "none"),
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
def test_the_jobs_other_words_choose_the_fabric(keys: dict[str, object], name: str) -> None:
    assert catalog.choose(facts(**keys)).name == name


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
        catalog.profiles(name)
