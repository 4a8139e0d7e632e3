"""What an RDMA network needs is looked for in the files of a node, and fails only where NCCL_NET asks for it."""

from __future__ import annotations

import resource
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from ddp_trainer.preflight.checks.all_checks import run_all_checks
from ddp_trainer.preflight.collector import rdma
from ddp_trainer.preflight.schema import Facts, Finding, Rdma, Status
from tests.support.preflight_reports import a_report, facts_of

COMPLETE = Rdma(
    libraries={"libibverbs.so.1": ""},
    providers=9,
    ports={"mlx5_0/1": "ACTIVE", "mlx5_1/1": "ACTIVE"},
    device_files=2,
    huge_page_bytes=5 << 30,
)


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
    assert found.may_lock_memory
    assert found.libraries["libc.so.6"] == ""
    assert "libnot-there.so.1" in found.libraries["libnot-there.so.1"]
    assert (found.providers, found.device_files, found.huge_page_bytes) == (2, 1, 1 << 30)
    assert found.ports == {"mlx5_0/1": "ACTIVE", "mlx5_1/1": "DOWN"}


def test_a_node_without_any_of_it_has_none(tmp_path: Path) -> None:
    found = asdict(rdma(tmp_path, ()))
    del found["locked_memory_bytes"]
    assert not any(found.values())


def test_the_limit_of_locked_memory_is_that_of_the_process() -> None:
    program = "from ddp_trainer.preflight.collector import rdma; print(rdma(libraries=()).locked_memory_bytes)"
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    limit = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    command = ["prlimit", f"--memlock={limit}", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(limit)


def asks(net: str, **changed: object) -> Facts:
    environment = {"NCCL_NET": net} if net else {}
    report = a_report()
    software = replace(report.software, environment=environment)
    return facts_of(replace(report, software=software, rdma=replace(COMPLETE, **changed)))  # type: ignore[arg-type]


def of_rdma(facts: Facts) -> list[Finding]:
    return [finding for finding in run_all_checks(facts) if finding.check == "rdma"]


@pytest.mark.parametrize("net", ["IB", "ib", "AWS Libfabric", "Libfabric"])
def test_a_node_that_lacks_nothing_passes(net: str) -> None:
    assert of_rdma(asks(net)) == []


@pytest.mark.parametrize(
    ("changed", "status", "message"),
    [
        ({"locked_memory_bytes": 65536}, Status.FAIL, "a process may lock 64 KiB of memory"),
        ({"locked_memory_bytes": 1 << 32}, Status.WARN, "a process may lock 4194304 KiB of memory"),
        (
            {"libraries": {"libibverbs.so.1": "no such file"}},
            Status.FAIL,
            "libibverbs.so.1 cannot be loaded (no such file)",
        ),
        ({"providers": 0}, Status.FAIL, "libibverbs has no driver here"),
        ({"ports": {}}, Status.FAIL, "there is no InfiniBand, RoCE or EFA device"),
        ({"device_files": 0}, Status.FAIL, "no file /dev/infiniband/uverbs* can be opened"),
        ({"ports": {"mlx5_0/1": "INIT"}}, Status.FAIL, "mlx5_0/1 is INIT"),
        ({"ports": {"mlx5_0/1": "ACTIVE", "mlx5_1/1": "DOWN"}}, Status.WARN, "mlx5_1/1 is DOWN"),
    ],
)
def test_what_is_missing_fails_where_the_network_is_asked_for(
    changed: dict[str, object], status: Status, message: str
) -> None:
    [finding] = of_rdma(asks("IB", **changed))
    assert (finding.status, finding.message) == (status, f"NCCL_NET is 'IB', and {message}")
    [skipped] = of_rdma(asks("", **changed))
    assert (skipped.status, skipped.message) == (Status.SKIP, "NCCL_NET selects a network without RDMA")
    assert of_rdma(asks("Socket", **changed))[0].status is Status.SKIP


def test_the_capability_to_lock_memory_is_as_good_as_no_limit() -> None:
    assert of_rdma(asks("IB", locked_memory_bytes=65536, may_lock_memory=True)) == []


def test_libfabric_needs_huge_pages_and_verbs_do_not() -> None:
    [finding] = of_rdma(asks("AWS Libfabric", huge_page_bytes=0))
    assert finding.status is Status.FAIL
    assert finding.message == "NCCL_NET is 'AWS Libfabric', and there are no huge pages of 2 MiB"
    assert of_rdma(asks("IB", huge_page_bytes=0)) == []
