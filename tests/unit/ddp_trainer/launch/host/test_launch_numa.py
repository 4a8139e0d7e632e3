"""CPU binding near the GPUs, on a machine of two sockets and four NUMA nodes as files of /sys and /proc."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddp_trainer.launch.host.numa import Machine, bindings, parse_cpu_list, this_machine
from ddp_trainer.launch.protocol.console import LaunchError

NODES = {0: "0-3,16-19", 1: "4-7,20-23", 2: "8-11,24-27", 3: "12-15,28-31"}
GPUS = {"0000:0a:00.0": 0, "0000:1b:00.0": 0, "0000:8c:00.0": 3, "0001:01:00.0": -1}
ALL = frozenset(range(32))


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """16 cores of two threads each; each node has one complex of three cores and one of one core."""
    for node, cpus in NODES.items():
        write(tmp_path / f"sys/devices/system/node/node{node}/cpulist", cpus)
    for cpu in range(32):
        core = cpu % 16
        at = tmp_path / f"sys/devices/system/cpu/cpu{cpu}"
        write(at / "topology/physical_package_id", core // 8)
        first = core // 4 * 4
        own, complex_of_three = f"{core},{core + 16}", f"{first + 1}-{first + 3},{first + 17}-{first + 19}"
        write(at / "topology/thread_siblings_list", own)
        for index, level, shared in ((0, 1, own), (3, 3, own if core == first else complex_of_three)):
            write(at / f"cache/index{index}/level", level)
            write(at / f"cache/index{index}/shared_cpu_list", shared)
    for number, (gpu, node) in enumerate(GPUS.items()):
        write(tmp_path / f"sys/bus/pci/devices/{gpu}/numa_node", node)
        write(tmp_path / f"proc/driver/nvidia/gpus/{gpu}/information", f"GPU UUID: \t GPU-{number}{number}-abc")
    return tmp_path


def a_machine(root: Path, allowed: frozenset[int] = ALL) -> Machine:
    return Machine(allowed=allowed, gpus=tuple(GPUS), root=root)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("node", [NODES[0], NODES[0], NODES[3], NODES[0]]),
        ("socket", ["0-7,16-23", "0-7,16-23", "8-15,24-31", "0-7,16-23"]),
        ("exclusive", ["0-1,16-17", "2,18", NODES[3], "3,19"]),
        ("core-complex", ["1-3,17-19", "0,16", "13-15,29-31", "1-3,17-19"]),
    ],
)
def test_each_mode_binds_as_torch_describes_it(root: Path, mode: str, expected: list[str]) -> None:
    assert list(bindings(mode, 4, a_machine(root))) == [parse_cpu_list(binding) for binding in expected]


def test_processors_that_the_container_may_not_use_are_left_out(root: Path) -> None:
    assert bindings("node", 1, a_machine(root, frozenset({1, 2, 30}))) == (frozenset({1, 2}),)


@pytest.mark.parametrize(
    ("visible", "chosen"),
    [(None, list(GPUS)), ("2,0", ["0000:8c:00.0", "0000:0a:00.0"]), ("GPU-33-abc", ["0001:01:00.0"]), ("", [])],
)
def test_visible_gpus_are_found_by_number_and_by_name(root: Path, visible: str | None, chosen: list[str]) -> None:
    assert list(this_machine({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}, root).gpus) == chosen


@pytest.mark.parametrize(
    ("mode", "workers", "allowed", "words"),
    [
        ("node", 5, ALL, "this machine shows 4 for 5 workers"),
        ("node", 1, frozenset({9}), "none of the processors near GPU 0000:0a:00.0 may be used"),
        ("exclusive", 4, frozenset({0, 16, 1, 12}), "3 GPUs share a NUMA node on which 2 cores may be used"),
    ],
)
def test_a_wrong_binding_is_one_sentence(
    root: Path, mode: str, workers: int, allowed: frozenset[int], words: str
) -> None:
    with pytest.raises(LaunchError, match=words):
        bindings(mode, workers, a_machine(root, allowed))


def test_a_kernel_without_numa_nodes_and_an_unknown_gpu_are_errors(root: Path) -> None:
    (root / "sys/bus/pci/devices/0000:0a:00.0/numa_node").unlink()
    with pytest.raises(LaunchError, match="the kernel does not report what is near the GPUs"):
        bindings("node", 1, a_machine(root))
    with pytest.raises(LaunchError, match="names MIG-1, which is not a GPU of this machine"):
        this_machine({"CUDA_VISIBLE_DEVICES": "MIG-1"}, root)
