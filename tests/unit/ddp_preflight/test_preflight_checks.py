"""Each check names the problem and its node, and reports nothing else."""

from dataclasses import replace
from typing import Any

import pytest

from ddp_preflight import schema
from ddp_preflight.checks.all_checks import CHECKS, run_all_checks
from ddp_preflight.schema import Choice, Clock, Facts, Gpu, KernelLimits, Resolution, Status
from tests.support.preflight_reports import LOOPBACK, a_probe, a_report, bad, ethernet, facts_of

FAIL, WARN = Status.FAIL, Status.WARN


def only(facts: Facts) -> schema.Finding:
    [finding] = bad(facts)
    return finding


def second(**changed: object) -> Facts:
    """Return the facts of two nodes, with changes to the second."""
    return facts_of(a_report(0), a_report(1, **changed))


def test_nodes_that_lack_nothing_pass_every_check() -> None:
    assert bad(facts_of(*map(a_report, range(3)))) == []


def test_one_node_alone_passes_what_takes_one_and_skips_what_takes_two() -> None:
    alone = facts_of(replace(a_report(), endpoint=Resolution(name="")))
    assert bad(alone) == []
    skipped = {finding.check for finding in run_all_checks(alone) if finding.status is Status.SKIP}
    assert skipped >= {check.name for check in CHECKS if check.takes_two}


def software(**changed: str) -> schema.Software:
    return replace(a_report().software, versions={**a_report().software.versions, **changed})


FEW_SHARED = KernelLimits(shared_memory_bytes=64 << 20, shared_memory_free_bytes=60 << 20, open_files=1 << 20)
IPV6 = {"interfaces": (LOOPBACK, ethernet("10.0.0.2", "fd00::2"))}
ON_LOOPBACK = Choice(interface="lo", address="127.0.0.1", why="its default")


def named(**resolved: Any) -> Facts:
    """Return the facts of two nodes, with this resolution of the endpoint's name on the second."""
    return second(endpoint=Resolution(name="first.example.com", **resolved))


def of_software(**changed: Any) -> Facts:
    return second(software=replace(a_report().software, **changed))


OTHER_TORCH = "torch is 2.12.1 here, 2.13.0 on node-0"
V6_OF_GLOO = Choice(interface="eth0", address="fd00::2")
SELF = {"addresses": ("127.0.1.1",), "hosts_line": "127.0.1.1 first.example.com"}
WRONG = {
    "a node that does not come": (facts_of(a_report(0), expected=2, least=2), "meeting", FAIL, "node rank 1 did not"),
    "one that need not": (facts_of(a_report(0), a_report(1), expected=3, least=2), "meeting", WARN, "rank 2 did not"),
    "rank too high": (second(node_rank=7), "ranks", FAIL, "node rank 7 is not below the 2 nodes"),
    "no such name": (named(error="Name not known"), "endpoint-name", FAIL, "does not resolve: Name not known"),
    "a name of loopback": (named(**SELF), "endpoint-name", FAIL, "to this node itself by /etc/hosts (127.0.1.1 first."),
    "a name that leads elsewhere": (named(addresses=("10.9.9.9",)), "endpoint-name", FAIL, "10.9.9.9, elsewhere"),
    "a name that does not lead back": (second(astray={"10.0.0.2": "10.0.0.7"}), "reverse-name", WARN, "to 10.0.0.7"),
    "unused IPv6 on one side": (second(**IPV6), "address-family", WARN, "no IPv6 here"),
    "IPv6 of gloo": (second(**IPV6, gloo=V6_OF_GLOO), "address-family", FAIL, "use IPv4 on node-0, IPv6 on node-1"),
    "longer packets": (second(interfaces=(LOOPBACK, ethernet("10.0.0.2", mtu=9000))), "mtu", WARN, "of 9000 bytes"),
    "no such interface": (second(gloo=Choice(error="eth9 is none")), "interface", FAIL, "no interface: eth9 is none"),
    "loopback for NCCL without a GPU": (second(nccl=ON_LOOPBACK), "interface", WARN, "127.0.0.1 (lo)"),
    "a clock that is ahead": (second(clock=Clock(offset=0.4, uncertainty=0.001)), "clock", WARN, "0.400 s ahead"),
    "a clock that is far behind": (second(clock=Clock(offset=-7, uncertainty=0.001)), "clock", FAIL, "7.000 s behind"),
    "another torch": (second(software=software(torch="2.12.1")), "versions", FAIL, OTHER_TORCH),
    "no torch": (of_software(versions={"python": "3.12.4"}), "versions", FAIL, "torch is not there here"),
    "another driver": (second(software=software(driver="550.1")), "versions", WARN, "driver is 550.1 here, not there"),
    "another script": (of_software(script="t"), "script", FAIL, "script is t here, s on node-0"),
    "a variable": (of_software(environment={"NCCL_ALGO": "Ring"}), "environment", WARN, "NCCL_ALGO is Ring"),
    "other packages": (of_software(packages="q"), "environment", WARN, "installed packages is q here, p on node-0"),
    "a container's default of shared memory": (second(limits=FEW_SHARED), "shared-memory", WARN, "60 of 64 MiB free"),
    "few open files": (second(limits=replace(a_report().limits, open_files=256)), "open-files", FAIL, "256 files"),
    "a driver that does not work": (second(has_driver=True, gpu_note="Not Loaded"), "gpus", WARN, "Not Loaded"),
}


@pytest.mark.parametrize(("facts", "check", "status", "words"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_with_one_node_is_named(facts: Facts, check: str, status: Status, words: str) -> None:
    finding = only(facts)
    assert (finding.check, finding.status) == (check, status)
    assert words in finding.message
    assert finding.hint


def test_a_rank_that_two_nodes_claim_is_named_on_both() -> None:
    found = bad(facts_of(a_report(0), a_report(1), a_report(2, node_rank=1), expected=3))
    assert [(item.node, item.message) for item in found] == [
        ("node-1", "node rank 1 is claimed here and on node-2"),
        ("node-2", "node rank 1 is claimed here and on node-1"),
    ]


def test_the_odd_one_of_many_is_named_and_not_the_many() -> None:
    reports = [a_report(rank, software=software(torch="2.10.0" if rank == 0 else "2.13.0")) for rank in range(4)]
    finding = only(facts_of(*reports))
    assert (finding.node, finding.message) == ("node-0", "torch is 2.10.0 here, 2.13.0 on node-1")


@pytest.mark.parametrize("purpose", [schema.ProbeKind.RANDOM, schema.ProbeKind.RENDEZVOUS])
def test_a_port_that_some_cannot_reach_is_named_once_with_all_of_them(purpose: schema.ProbeKind) -> None:
    lost, refused = schema.Outcome.TIMED_OUT, schema.Outcome.REFUSED
    probes = (a_probe(0, 2, purpose, lost), a_probe(1, 2, purpose, refused), a_probe(2, 0, purpose))
    finding = only(facts_of(*map(a_report, range(3)), probes=probes))
    assert (finding.check, finding.node) == (purpose.value, "node-2")
    assert finding.message == "10.0.0.3:40002 cannot be reached from node-0 (timed out), node-1 (refused)"
    assert finding.hint.startswith("a firewall, NetworkPolicy or security group drops it")


GPU = Gpu(index=0, name="H100", memory_mib=81559, uncorrected_errors=0, needs_reset=False)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"local_world_size": 2}, "1 GPUs for 2 workers"),
        ({"gpus": (replace(GPU, name="A100"),)}, "A100 here, H100 on node-0"),
        ({"gpus": ()}, a_report().gpu_note),
    ],
)
def test_what_is_wrong_with_a_gpu_is_named(changed: dict[str, object], message: str) -> None:
    healthy = a_report(0, gpus=(GPU,), has_driver=True)
    other: schema.Report = replace(a_report(1, gpus=(GPU,), has_driver=True), **changed)  # type: ignore[arg-type]
    finding = only(facts_of(healthy, other))
    assert (finding.check, finding.node, finding.message) == ("gpus", "node-1", message)


def test_a_containers_default_of_shared_memory_is_too_little_for_gpus() -> None:
    limits = replace(a_report().limits, shared_memory_free_bytes=64 << 20)
    finding = only(facts_of(a_report(0, gpus=(GPU,), limits=limits)))
    assert (finding.check, finding.status) == ("shared-memory", Status.FAIL)


def test_nodes_that_share_a_machine_may_use_its_loopback() -> None:
    loopback = Choice(interface="lo", address="127.0.0.1", why="the host name")
    local = Resolution(name="localhost", addresses=("127.0.0.1",))
    nodes = [a_report(rank, machine="laptop", gloo=loopback, nccl=loopback, endpoint=local) for rank in range(2)]
    assert bad(facts_of(*nodes)) == []


def test_a_node_that_met_nobody_says_why_and_looks_at_itself() -> None:
    finding = only(facts_of(a_report(1), expected=2, trouble="the first node was not met", trouble_hint="start it"))
    assert (finding.check, finding.node, finding.hint) == ("meeting", "node-1", "start it")


def joined(*members: schema.Report, newcomer: schema.Report, **changed: Any) -> Facts:
    """Return the facts of nodes that train, and of one that joins them and hosts the exchange."""
    members = tuple(replace(member, is_host=False) for member in members)
    return facts_of(*members, replace(newcomer, is_host=True), newcomer=len(members), **changed)


def test_a_node_that_joins_is_judged_by_what_was_not_there_without_it() -> None:
    few_files = KernelLimits(shared_memory_bytes=1 << 33, shared_memory_free_bytes=1 << 33, open_files=512)
    old = schema.Software(versions={"python": "3.12.4", "torch": "2.12.0"}, packages="p", script="s", environment={})
    assert bad(joined(a_report(0, limits=few_files), newcomer=a_report(1))) == []
    assert only(joined(a_report(0), newcomer=a_report(1, limits=few_files))).node == "node-1"
    finding = only(joined(a_report(0), newcomer=a_report(1, software=old)))
    expected = (Status.FAIL, "node-1", "torch is 2.12.0 here, 2.13.0 on node-0")
    assert (finding.status, finding.node, finding.message) == expected


def test_a_port_between_a_newcomer_and_a_member_counts_and_one_between_members_does_not() -> None:
    closed = schema.Outcome.REFUSED
    facts = joined(a_report(0), a_report(1), newcomer=a_report(2))
    between_members = a_probe(0, 1, schema.ProbeKind.RANDOM, closed)
    assert bad(replace(facts, probes=(between_members,))) == []
    finding = only(replace(facts, probes=(between_members, a_probe(2, 0, schema.ProbeKind.RANDOM, closed))))
    assert finding.message == "10.0.0.1:40000 cannot be reached from node-2 (refused)"


def test_a_member_that_does_not_meet_the_newcomer_is_missing() -> None:
    finding = only(joined(a_report(0), newcomer=a_report(2), expected=3, least=3))
    assert (finding.check, finding.status) == ("meeting", Status.FAIL)
    assert "node rank 1 did not" in finding.message
    alone = facts_of(a_report(1, is_host=True), newcomer=1, expected=2, least=2)
    assert only(alone).message == "1 of 2 nodes came in time: node-1; node rank 0 did not"


def test_the_clock_of_a_newcomer_is_held_against_the_members() -> None:
    seven_behind = Clock(offset=-7.0, uncertainty=0.001)
    finding = only(joined(a_report(0, clock=seven_behind), a_report(1, clock=seven_behind), newcomer=a_report(2)))
    assert (finding.node, finding.message) == ("node-2", "the clock is 7.000 s ahead of the first node's")
