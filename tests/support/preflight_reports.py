"""Reports of nodes that lack nothing, to be changed in one place."""

from dataclasses import replace
from typing import Any

from ddp_preflight.checks.all_checks import run_all_checks
from ddp_preflight.schema import (
    Choice,
    Facts,
    Finding,
    Gpu,
    Interface,
    KernelLimits,
    ListenPorts,
    Outcome,
    Probe,
    ProbeKind,
    Rdma,
    Report,
    Resolution,
    Software,
    Status,
)

WHOLE_GPU = Gpu(
    index=0,
    name="H100",
    bus_id="00000000:10:00.0",
    compute_capability=(9, 0),
    memory_mib=81559,
    memory_used_mib=556,
    uncorrected_errors=0,
    needs_reset=False,
    remap_failed=False,
    recovery_action="none",
    fabric_state="completed",
    nvlinks=18,
    nvlinks_up=18,
    nvlink_errors=0,
    pcie_generation=5,
    pcie_generation_max=5,
    pcie_width=16,
    pcie_width_max=16,
    performance_state=0,
    processes=(),
)
"""A healthy GPU, with every field that NVML reports of it."""

LOOPBACK = Interface(name="lo", is_up=True, is_loopback=True, mtu=65536, addresses=("127.0.0.1", "::1"))


def ethernet(*addresses: str, name: str = "eth0", **changed: Any) -> Interface:
    return replace(Interface(name=name, is_up=True, is_loopback=False, mtu=1500, addresses=addresses), **changed)


def a_report(rank: int = 0, **changed: Any) -> Report:
    """Node ``node-RANK`` at 10.0.0.(RANK + 1); node 0 is where the others meet."""
    address = f"10.0.0.{rank + 1}"
    report = Report(
        token=f"token-{rank}",
        name=f"node-{rank}",
        node_rank=rank,
        local_world_size=1,
        machine=f"machine-{rank}",
        is_host=rank == 0,
        endpoint=Resolution(name="first.example.com", addresses=("10.0.0.1",)),
        endpoint_port=29400,
        hostname=Resolution(name=f"node-{rank}", addresses=(address,)),
        reverse={address: f"node-{rank}"},
        astray={},
        route=address,
        interfaces=(LOOPBACK, ethernet(address)),
        gloo=Choice(interface="eth0", address=address, why="the host name"),
        nccl=Choice(interface="eth0", address=address, why="its default"),
        listening=ListenPorts(random=40000 + rank, rendezvous=29400),
        software=Software(versions={"python": "3.12.4", "torch": "2.13.0"}, packages="p", script="s", environment={}),
        limits=KernelLimits(shared_memory_bytes=1 << 33, shared_memory_free_bytes=1 << 33, open_files=1 << 20),
        gpus=(),
        gpu_note="there is no libnvidia-ml.so.1 here, so GPUs were not looked at",
        has_driver=False,
        rdma=Rdma(libraries={"libibverbs.so.1": ""}, providers=9, ports={"mlx5_0/1": "ACTIVE"}, device_files=1),
    )
    return replace(report, **changed)


def facts_of(*reports: Report, **changed: Any) -> Facts:
    """A meeting that all came to."""
    return replace(Facts(reports=reports, expected=len(reports), least=len(reports)), **changed)


def a_probe(source: int, target: int, purpose: ProbeKind, outcome: Outcome = Outcome.OK, **changed: Any) -> Probe:
    probe = Probe(
        source=f"token-{source}",
        target=f"token-{target}",
        purpose=purpose,
        address=f"10.0.0.{target + 1}",
        port=40000 + target,
        outcome=outcome,
    )
    return replace(probe, **changed)


def bad(facts: Facts) -> list[Finding]:
    """Return the warnings and failures that the checks find."""
    return [finding for finding in run_all_checks(facts) if finding.status in {Status.WARN, Status.FAIL}]
