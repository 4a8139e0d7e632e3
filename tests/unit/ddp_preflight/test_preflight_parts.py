"""Parts of the preflight: collection on a node, the exchange between nodes, and the output."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ddp_preflight import collector, exchange, formatter, names
from ddp_preflight.checks.all_checks import run_all_checks
from ddp_preflight.listener import PreflightServer, decode, encode, holder, probe_port
from ddp_preflight.runner import in_order
from ddp_preflight.schema import Outcome, ProbeKind, Report
from ddp_trainer.common.strict_json import DecodeError
from ddp_trainer.net.run_secret import RunSecret
from tests.support.preflight_reports import a_probe, a_report, facts_of

KEY = RunSecret.random().key("preflight")


@pytest.mark.parametrize(
    "line", [b"", b"GET / HTTP/1.1\r\n", b"[]", b'{"probes": 1}', b'{"report": {}}', b'{"more": 1}', b"[" * 99999]
)
def test_a_line_that_is_no_request_is_refused(line: bytes) -> None:
    with pytest.raises(DecodeError):
        decode(exchange.PreflightRequest, line)


def test_a_report_with_a_field_of_another_type_is_refused() -> None:
    for name, value in {"token": 7, "node_rank": "0", "is_host": 1, "interfaces": [1], "clock": None}.items():
        with pytest.raises(DecodeError):
            decode(Report, json.dumps({**json.loads(encode(a_report())), name: value}).encode())


def test_a_line_of_etc_hosts_is_found_by_any_of_its_names(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n10.0.0.1  Node-A node-a.example.com  # node-b\n")
    assert names.hosts_line("node-a", hosts) == "10.0.0.1 Node-A node-a.example.com"
    assert names.hosts_line("node-b", hosts) == ""
    assert names.hosts_line("10.0.0.1", hosts) == ""
    assert names.hosts_line("node-a", tmp_path / "none") == ""


def test_only_variables_that_ranks_read_are_reported(tmp_path: Path) -> None:
    environ = {"NCCL_DEBUG": "WARN", "SECRET": "x", "CUDA_VISIBLE_DEVICES": "0", "OMP_NUM_THREADS": "9" * 300}
    script = tmp_path / "train.py"
    script.write_text("pass")
    found = collector.collect_software(str(script), "", "", environ)
    assert found.environment == {"NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "9" * 256}
    assert found.script == "d74ff0ee8da3b980"


async def test_a_probe_distinguishes_the_nodes_token_from_others() -> None:
    listener = PreflightServer("me", "127.0.0.1", KEY)
    port = await listener.listen(0)
    outcomes = [await probe_port("127.0.0.1", port, token, KEY) for token in ("me", "", "you")]
    assert outcomes == [Outcome.OK, Outcome.OK, Outcome.STRANGER]
    await listener.aclose()
    assert await probe_port("127.0.0.1", port, "me", KEY) == Outcome.REFUSED
    assert await probe_port("fe80::1", port, "me", KEY) == Outcome.NO_ROUTE, "it has no link"


def test_the_process_that_listens_on_a_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        comm = Path("/proc/self/comm").read_text().strip()
        assert holder(server.getsockname()[1]) == f" by process {os.getpid()} ({comm})"


async def test_a_meeting_place_without_a_host_gives_up_in_time_and_says_why() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        with pytest.raises(exchange.ExchangeFailed, match=r"not met at port \d+: 127.0.0.1 refused") as caught:
            await exchange.connect_to_host("127.0.0.1", silent.getsockname()[1], asyncio.get_running_loop().time(), KEY)
    assert "start preflight on the first node too" in caught.value.hint


@asynccontextmanager
async def hosting(key: bytes | None, seconds: float = 30) -> AsyncIterator[tuple[exchange.Host, int, float]]:
    """Yield the first of two nodes, its port, and the moment until which it waits."""
    until = asyncio.get_running_loop().time() + seconds
    host = exchange.Host("token-0", 2, until)
    listener = PreflightServer("token-0", "127.0.0.1", key, host.serve)
    yield host, await listener.listen(0), until
    await listener.aclose()


async def test_a_guest_that_leaves_in_between_is_not_waited_for() -> None:
    async with asyncio.timeout(exchange.PROBE_SECONDS / 2), hosting(KEY) as (host, port, until):
        guest = await exchange.connect_to_host("127.0.0.1", port, until, KEY)
        reports, received = await asyncio.gather(host.reports(a_report(0)), guest.reports(a_report(1)))
        assert {member.token for member in reports} == {member.token for member in received} == {"token-0", "token-1"}
        [clock] = [member.clock for member in received if member.token == "token-1"]
        assert abs(clock.offset) <= clock.uncertainty + 0.01
        guest.close()
        assert len(await host.gather_probes("token-0", (a_probe(0, 1, ProbeKind.RANDOM),))) == 1


async def test_a_guest_without_the_secret_is_neither_heard_nor_answered() -> None:
    async with hosting(KEY) as (host, port, until):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(encode(exchange.PreflightRequest(report=a_report(7))))
        assert await reader.read() == b""
        writer.close()
        with pytest.raises(exchange.ExchangeFailed):
            await exchange.connect_to_host("127.0.0.1", port, until - 30, RunSecret.random().key("preflight"))
        guest = await exchange.connect_to_host("127.0.0.1", port, until, KEY)
        reports, _ = await asyncio.gather(host.reports(a_report(0)), guest.reports(a_report(1)))
        guest.close()
        assert sorted(member.token for member in reports) == ["token-0", "token-1"]


@pytest.mark.parametrize(("is_member", "answers"), [(False, 0), (True, 2)])
async def test_only_a_client_whose_report_the_host_has_may_send_longer_lines(*, is_member: bool, answers: int) -> None:
    """Connect without a secret, which any client can do."""
    async with hosting(None) as (host, port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
        own = asyncio.create_task(host.reports(a_report(0)))
        await reader.readuntil(b"\n")
        if is_member:
            writer.write(encode(exchange.PreflightRequest(report=a_report(1))))
            await own
        writer.write(b" " * exchange.FIRST_LINE_BYTES + encode(exchange.PreflightRequest()))
        writer.write_eof()
        assert (await reader.read()).count(b"\n") == answers
        writer.close()
        own.cancel()


async def test_a_report_that_comes_too_late_is_late_for_everybody() -> None:
    async with hosting(KEY, seconds=0) as (host, _port, _until):
        assert [len(await host.reports(a_report(rank))) for rank in range(2)] == [1, 1]


def test_nodes_stand_in_the_order_of_their_ranks_and_namesakes_are_told_apart() -> None:
    reports = [a_report(2), a_report(0, name="laptop"), a_report(1, name="laptop")]
    assert [report.name for report in in_order(reports)] == ["laptop/0", "laptop/1", "node-2"]


def older(rank: int) -> Report:
    return a_report(rank, software=replace(a_report().software, versions={"python": "3.12.4", "torch": "2.10.0"}))


def test_of_many_nodes_the_worst_are_shown() -> None:
    facts = facts_of(*map(a_report, range(20)), older(20))
    table = formatter.table(facts, run_all_checks(facts))
    assert table.startswith("CHECK            node-0  node-1  node-2  node-3  node-4  node-5  node-6  node-20\n")
    assert "(13 more nodes, no worse than these; -o json has them all)" in table


def test_the_document_has_a_version_a_verdict_and_everything_that_was_found() -> None:
    facts = facts_of(a_report(0), older(1), probes=(a_probe(0, 1, ProbeKind.RANDOM),))
    document = json.loads(formatter.preflight_to_json(facts, run_all_checks(facts)))
    expected = {"apiVersion": "preflight.ddp/v1", "kind": "Preflight", "verdict": "fail", "expected": 2}
    assert expected.items() <= document.items()
    where = {"check": "versions", "status": "fail", "node": "node-1"}
    text = {"message": "torch is 2.10.0 here, 2.13.0 on node-0", "hint": "run the same image on all nodes"}
    assert document["findings"][0] == {**where, **text}
    assert [node["name"] for node in document["nodes"]] == ["node-0", "node-1"]
    assert document["probes"][0]["outcome"] == "ok"
