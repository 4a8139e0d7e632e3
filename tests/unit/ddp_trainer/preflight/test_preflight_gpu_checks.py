"""What is wrong with a GPU is found by the check that is about it, on the node where it is, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddp_trainer.preflight.checks.all_checks import run_all_checks
from ddp_trainer.preflight.checks.gpu_checks import MOST_IDLE_MIB
from ddp_trainer.preflight.schema import Facts, Finding, Gpu, Software, Status
from tests.support.preflight_reports import WHOLE_GPU as WHOLE
from tests.support.preflight_reports import a_report, facts_of


def bad(facts: Facts) -> list[Finding]:
    return [finding for finding in run_all_checks(facts) if finding.status in {Status.WARN, Status.FAIL}]


def node_of(*gpus: Gpu, **versions: str) -> Facts:
    software = Software(versions={"cuda": "13.0", "driver": "580.65.06", "driver_cuda": "13.0", **versions})
    both = tuple(replace(gpu, index=index) for index, gpu in enumerate(gpus))
    other = tuple(replace(WHOLE, index=index) for index in range(len(gpus)))
    healthy = a_report(0, gpus=other, has_driver=True, software=software)
    return facts_of(healthy, a_report(1, gpus=both, has_driver=True, software=software))


def test_nothing_is_said_of_gpus_that_lack_nothing() -> None:
    assert bad(node_of(WHOLE, WHOLE)) == []
    unknown = Gpu(index=0, name="H100")
    assert bad(node_of(unknown, unknown)) == []


HEALTH = "gpu-health"
LINKS = "gpu-links"
USE = "gpu-use"
FAIL, WARN = Status.FAIL, Status.WARN


@pytest.mark.parametrize(
    ("changed", "check", "status", "trouble"),
    [
        ({"is_lost": True, "unread": {"device": "GPU is lost"}}, HEALTH, FAIL, "cannot be reached (GPU is lost)"),
        ({"uncorrected_errors": 3}, HEALTH, FAIL, "had 3 uncorrected errors"),
        ({"needs_reset": True}, HEALTH, FAIL, "is to be reset"),
        ({"remap_failed": True}, HEALTH, FAIL, "could not replace a bad row of its memory"),
        (
            {"recovery_action": "reboot the node"},
            HEALTH,
            FAIL,
            "needs to be recovered, by its driver: reboot the node",
        ),
        ({"xids": (31, 48, 79)}, HEALTH, FAIL, "had Xids 48, 79 in the last two hours"),
        ({"slowdowns": ("power brake",)}, HEALTH, WARN, "is slowed down (power brake)"),
        ({"unread": {"uuid": "Unknown Error"}}, HEALTH, WARN, "does not tell all of itself (uuid: Unknown Error)"),
        (
            {"fabric_state": "in progress"},
            LINKS,
            FAIL,
            "has not joined the fabric of its NVSwitches (in progress), and CUDA does not start there",
        ),
        ({"fabric_faults": ("an unhealthy route",)}, LINKS, FAIL, "has a fabric with an unhealthy route"),
        ({"nvlinks_up": 17}, LINKS, FAIL, "has 17 NVLinks up, others of this node 18"),
        ({"nvlink_errors": 9}, LINKS, WARN, "had 9 replays and recoveries of NVLinks"),
        ({"pcie_width": 8}, LINKS, WARN, "uses 8 of 16 lanes of PCI"),
        ({"pcie_generation": 3}, LINKS, WARN, "is at PCI generation 3, and could be at 5"),
        ({"processes": (4711,)}, USE, WARN, "is in use by process 4711"),
        (
            {"memory_used_mib": MOST_IDLE_MIB + 1},
            USE,
            WARN,
            f"has {MOST_IDLE_MIB + 1} MiB in use, and no process that is seen from here",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_gpu_is_said_once(
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
def test_what_is_as_it_should_be_is_not_said(changed: dict[str, object]) -> None:
    assert bad(node_of(WHOLE, replace(WHOLE, **changed))) == []  # type: ignore[arg-type]


def test_gpus_of_which_none_has_links_up_are_those_of_a_machine_without_bridges() -> None:
    alone = replace(WHOLE, nvlinks=12, nvlinks_up=0)
    assert bad(node_of(alone, alone)) == []


@pytest.mark.parametrize(
    ("capability", "cuda", "fails"),
    [
        ((7, 0), "13.0", True),
        ((7, 0), "12.9", False),
        ((7, 5), "13.2", False),
        ((10, 3), "13.0", False),
        ((), "13.0", False),
    ],
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
