"""Checks of GPUs and RDMA: each problem has one finding, on its node."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from ddp_preflight.checks.all_checks import run_all_checks
from ddp_preflight.checks.gpu_checks import MOST_IDLE_MIB
from ddp_preflight.collector import rdma
from ddp_preflight.gpu_health import check_gpus
from ddp_preflight.nvml import NvmlReport
from ddp_preflight.schema import Facts, Finding, Gpu, Rdma, Software, Status
from tests.support.preflight_reports import WHOLE_GPU as WHOLE
from tests.support.preflight_reports import a_report, bad, facts_of


def node_of(*gpus: Gpu, **versions: str) -> Facts:
    software = Software(versions={"cuda": "13.0", "driver": "580.65.06", "driver_cuda": "13.0", **versions})
    both = tuple(replace(gpu, index=index) for index, gpu in enumerate(gpus))
    other = tuple(replace(WHOLE, index=index) for index in range(len(gpus)))
    healthy = a_report(0, gpus=other, has_driver=True, software=software)
    return facts_of(healthy, a_report(1, gpus=both, has_driver=True, software=software))


def test_healthy_and_unknown_gpus_have_no_finding() -> None:
    assert bad(node_of(WHOLE, WHOLE)) == []
    unknown = Gpu(index=0, name="H100")
    assert bad(node_of(unknown, unknown)) == []


HEALTH = "gpu-health"
LINKS = "gpu-links"
USE = "gpu-use"
FAIL, WARN = Status.FAIL, Status.WARN
IN_USE = MOST_IDLE_MIB + 1
NOT_JOINED = "has not joined the fabric of its NVSwitches"


@pytest.mark.parametrize(
    ("changed", "check", "status", "trouble"),
    [
        ({"is_lost": True, "unread": {"device": "GPU is lost"}}, HEALTH, FAIL, "cannot be reached (GPU is lost)"),
        ({"uncorrected_errors": 3}, HEALTH, FAIL, "had 3 uncorrected errors"),
        ({"needs_reset": True}, HEALTH, FAIL, "is to be reset"),
        ({"remap_failed": True}, HEALTH, FAIL, "could not replace a bad row of its memory"),
        ({"recovery_action": "reboot it"}, HEALTH, FAIL, "needs to be recovered, by its driver: reboot it"),
        ({"xids": (31, 48, 79)}, HEALTH, FAIL, "had Xids 48, 79 in the last two hours"),
        ({"slowdowns": ("power brake",)}, HEALTH, WARN, "is slowed down (power brake)"),
        ({"unread": {"uuid": "Unknown Error"}}, HEALTH, WARN, "does not tell all of itself (uuid: Unknown Error)"),
        ({"fabric_state": "in progress"}, LINKS, FAIL, f"{NOT_JOINED} (in progress), and CUDA does not start there"),
        ({"fabric_faults": ("an unhealthy route",)}, LINKS, FAIL, "has a fabric with an unhealthy route"),
        ({"nvlinks_up": 17}, LINKS, FAIL, "has 17 NVLinks up, others of this node 18"),
        ({"nvlink_errors": 9}, LINKS, WARN, "had 9 replays and recoveries of NVLinks"),
        ({"pcie_width": 8}, LINKS, WARN, "uses 8 of 16 lanes of PCI"),
        ({"pcie_generation": 3}, LINKS, WARN, "is at PCI generation 3, and could be at 5"),
        ({"processes": (4711,)}, USE, WARN, "is in use by process 4711"),
        ({"memory_used_mib": IN_USE}, USE, WARN, f"has {IN_USE} MiB in use, and no process that is seen from here"),
    ],
)  # fmt: skip
def test_a_fault_of_a_gpu_is_reported_once(
    changed: dict[str, object], check: str, status: Status, trouble: str
) -> None:
    [finding] = bad(node_of(WHOLE, replace(WHOLE, **changed)))  # type: ignore[arg-type]
    assert (finding.check, finding.status, finding.node) == (check, status, "node-1")
    assert finding.message == f"GPU 1 (H100) {trouble}"
    assert finding.hint


@pytest.mark.parametrize(
    "changed",
    [
        {"xids": (13, 31, 43, 45)},  # errors of programs
        {"pcie_generation": 1, "performance_state": 8},  # it saves power
        {"fabric_state": "not supported"},
        {"memory_used_mib": MOST_IDLE_MIB},
        {"memory_used_mib": MOST_IDLE_MIB + 1, "processes": None},  # whose it is cannot be known
    ],
)
def test_states_of_normal_use_have_no_finding(changed: dict[str, object]) -> None:
    assert bad(node_of(WHOLE, replace(WHOLE, **changed))) == []  # type: ignore[arg-type]


def test_gpus_of_which_none_has_links_up_are_those_of_a_machine_without_bridges() -> None:
    alone = replace(WHOLE, nvlinks=12, nvlinks_up=0)
    assert bad(node_of(alone, alone)) == []


@pytest.mark.parametrize(
    ("capability", "cuda", "fails"),
    [((7, 0), "13.0", True), ((7, 0), "12.9", False), ((7, 5), "13.2", False), ((), "13.0", False)],
)
def test_torchs_cuda_must_have_code_for_the_gpu(capability: tuple[int, ...], cuda: str, fails: bool) -> None:
    gpu = replace(WHOLE, name="Tesla V100-SXM2-32GB", compute_capability=capability)
    found = bad(node_of(gpu, driver_cuda="13.2", cuda=cuda))
    expected = "GPU 0 (Tesla V100-SXM2-32GB) has compute capability 7.0, and CUDA 13 needs 7.5"
    assert [finding.message for finding in found if "capability" in finding.message] == [expected] * fails


@pytest.mark.parametrize(
    ("cuda", "torch_cuda", "fails"), [("12.4", "13.0", True), ("13.0", "13.2", False), ("13.1", "12.8", False)]
)
def test_a_driver_must_run_the_major_version_of_torchs_cuda(cuda: str, torch_cuda: str, fails: bool) -> None:
    found = bad(node_of(WHOLE, driver_cuda=cuda, cuda=torch_cuda))
    assert [finding.check for finding in found] == ["gpus", "gpus"] * fails
    if fails:
        assert found[1].message == "driver 580.65.06 runs CUDA up to 12.4, and torch was built with 13.0"


def a_gpu(index: int, **more: object) -> Gpu:
    return replace(WHOLE, index=index, uuid=f"GPU-{index}{index}ab", **more)  # type: ignore[arg-type] # any field


@pytest.mark.parametrize(
    ("devices", "ill"),
    [(["0", "1"], []), (["0", "2", "3"], [2, 3]), (["GPU-33ab"], [3]), (["GPU-22"], [2]), (["MIG-5f"], [2, 3])],
)
def test_other_gpus_of_the_machine_do_not_count(devices: list[str], ill: list[int]) -> None:
    cards = NvmlReport(gpus=(a_gpu(0), a_gpu(1), a_gpu(2, needs_reset=True), a_gpu(3, is_lost=True)))
    found = check_gpus("worker-1", cards, devices)
    assert [finding.message.split(" (")[0] for finding in found] == [f"GPU {index}" for index in ill]
    assert all((finding.node, finding.status) == ("worker-1", Status.FAIL) for finding in found)


def test_links_count_and_processes_do_not() -> None:
    cards = NvmlReport(gpus=(a_gpu(0, nvlinks_up=18, processes=(7,)), a_gpu(1, nvlinks_up=17, processes=(8,))))
    assert [finding.check for finding in check_gpus("w", cards, ["0", "1"])] == ["gpu-links"]


@pytest.mark.parametrize(("has_driver", "fails"), [(True, True), (False, False)])
def test_a_driver_that_does_not_answer_fails_and_one_that_is_not_there_does_not(has_driver: bool, fails: bool) -> None:
    cards = NvmlReport(error="NVML does not answer within 20 s", has_driver=has_driver)
    assert [finding.status for finding in check_gpus("w", cards, ["0"])] == ([Status.FAIL] if fails else [])


PORTS = {"mlx5_0/1": "ACTIVE", "mlx5_1/1": "ACTIVE"}
COMPLETE = Rdma(libraries={"libibverbs.so.1": ""}, providers=9, ports=PORTS, device_files=2, huge_page_bytes=5 << 30)


def test_a_node_with_devices_is_read_from_its_files(tmp_path: Path) -> None:
    for file, content in {
        "proc/self/status": "Name:\tpython\nCapEff:\t0000000000004000\n",
        "usr/lib/x86_64-linux-gnu/libibverbs/libmlx5-rdmav34.so": "",
        "usr/lib/x86_64-linux-gnu/libibverbs/libefa-rdmav34.so": "",
        "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
        "sys/class/infiniband/mlx5_1/ports/1/state": "1: DOWN\n",
        "dev/infiniband/uverbs0": "",
        "dev/infiniband/rdma_cm": "",
        "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "2560\n",
        "sys/fs/cgroup/hugetlb.2MB.max": "1073741824\n",
    }.items():
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    found = rdma(tmp_path, ("libc.so.6", "libnot-there.so.1"))
    assert (found.may_lock_memory, found.libraries["libc.so.6"]) == (True, "")
    assert "libnot-there.so.1" in found.libraries["libnot-there.so.1"]
    assert (found.providers, found.device_files, found.huge_page_bytes) == (2, 1, 1 << 30)
    assert found.ports == {"mlx5_0/1": "ACTIVE", "mlx5_1/1": "DOWN"}


def test_a_node_without_any_of_it_has_none(tmp_path: Path) -> None:
    found = asdict(rdma(tmp_path, ()))
    del found["locked_memory_bytes"]
    assert not any(found.values())


def asks(net: str, **changed: object) -> Facts:
    software = replace(a_report().software, environment={"NCCL_NET": net} if net else {})
    return facts_of(a_report(software=software, rdma=replace(COMPLETE, **changed)))  # type: ignore[arg-type]


def of_rdma(facts: Facts) -> list[Finding]:
    return [finding for finding in run_all_checks(facts) if finding.check == "rdma"]


@pytest.mark.parametrize(
    ("changed", "status", "message"),
    [
        ({"locked_memory_bytes": 65536}, Status.FAIL, "a process may lock 64 KiB of memory"),
        ({"locked_memory_bytes": 1 << 32}, Status.WARN, "a process may lock 4194304 KiB of memory"),
        ({"libraries": {"libx.so": "no such file"}}, Status.FAIL, "libx.so cannot be loaded (no such file)"),
        ({"providers": 0}, Status.FAIL, "libibverbs has no driver here"),
        ({"ports": {}}, Status.FAIL, "there is no InfiniBand, RoCE or EFA device"),
        ({"device_files": 0}, Status.FAIL, "no file /dev/infiniband/uverbs* can be opened"),
        ({"ports": {"mlx5_0/1": "INIT"}}, Status.FAIL, "mlx5_0/1 is INIT"),
        ({"ports": {"mlx5_0/1": "ACTIVE", "mlx5_1/1": "DOWN"}}, Status.WARN, "mlx5_1/1 is DOWN"),
    ],
)
def test_what_is_missing_fails_with_that_network_alone(
    changed: dict[str, object], status: Status, message: str
) -> None:
    [finding] = of_rdma(asks("IB", **changed))
    assert (finding.status, finding.message) == (status, f"NCCL_NET is 'IB', and {message}")
    [skipped] = of_rdma(asks("", **changed))
    assert (skipped.status, skipped.message) == (Status.SKIP, "NCCL_NET selects a network without RDMA")
    assert of_rdma(asks("Socket", **changed))[0].status is Status.SKIP


def test_a_complete_node_passes_and_the_capability_to_lock_memory_replaces_its_limit() -> None:
    assert [of_rdma(asks(net)) for net in ("IB", "ib", "AWS Libfabric", "Libfabric")] == [[]] * 4
    assert of_rdma(asks("IB", locked_memory_bytes=65536, may_lock_memory=True)) == []


def test_libfabric_needs_huge_pages_and_verbs_do_not() -> None:
    [finding] = of_rdma(asks("AWS Libfabric", huge_page_bytes=0))
    assert finding.status is Status.FAIL
    assert finding.message.endswith("no huge pages of 2 MiB")
    assert of_rdma(asks("IB", huge_page_bytes=0)) == []
