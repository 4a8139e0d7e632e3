"""Status of the ranks at the agent's socket, for the aggregator and for users who may exec."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self

import pytest

from ddp_trainer.common.hanging import RankState, RankStatus
from ddp_trainer.launch.hang import status_socket
from ddp_trainer.launch.hang.rank_snapshot import StackSource, snapshot_fields, summary_fields
from ddp_trainer.launch.hang.status_socket import MOST_FINDINGS, FindingHistory
from ddp_trainer.metrics.serve import server
from ddp_trainer.process import heartbeat_page
from tests.support.programs import captured

STATUS = replace(
    RankStatus(rank=0, local_rank=0, node="w-0", state=RankState.ALIVE, seconds=1.0, limit=None, sequence=7),
    waits_in="barrier[]",
    collectives=("barrier[]",),
    place="secret_model.py:3 in load",
    stack="Thread MainThread\n  secret_model.py, 0x7f00deadbeef",
)


@dataclass
class CountedEyes:
    """One rank, with the number of snapshots with its stack and of summaries without it."""

    outlined: int = 0
    sighted: int = 0

    async def summarize_ranks(self) -> list[dict[str, Any]]:
        self.outlined += 1
        return [summary_fields(STATUS, 0.5)]

    async def take_snapshots(self) -> list[dict[str, Any]]:
        self.sighted += 1
        return [snapshot_fields(STATUS, 4711, 0.5, StackSource.KERNEL)]


@asynccontextmanager
async def a_page(
    folder: Path, eyes: CountedEyes | None = None, findings: FindingHistory | None = None
) -> AsyncIterator[list[str]]:
    """Serve the status in the folder; yields the lines of the log."""
    lines: list[str] = []
    no_ras, ranks, history = {"NCCL_RAS_ADDR": "127.0.0.1:1"}, eyes or CountedEyes(), findings or FindingHistory()
    page = status_socket.HangStatusServer(folder, no_ras, ranks, lambda: {"generation": 3}, history, lines.append)
    await page.start()
    try:
        yield lines
    finally:
        await page.close()


async def test_the_metrics_port_shows_ranks_and_numbers_and_nothing_of_code_or_processes(tmp_path: Path) -> None:
    findings = FindingHistory()
    for number in range(MOST_FINDINGS + 2):
        findings.add(number, (1,), (), ("rank 1 on w-0 is still at secret_model.py:3",))
    eyes = CountedEyes()
    async with a_page(tmp_path, eyes, findings):
        body = (await server.hang(tmp_path)).body
    document = json.loads(body)
    assert document["generation"] == 3
    (rank,) = document["ranks"]
    assert rank.keys() == summary_fields(STATUS, 0.5).keys()
    assert (rank["node"], rank["waits_in"], rank["usual"]) == ("w-0", "barrier[]", 0.5)
    assert [finding["generation"] for finding in document["findings"]] == list(range(2, MOST_FINDINGS + 2))
    assert not any(word in body for word in (b"secret_model", b"4711", b"Thread", b"0x"))
    assert (eyes.sighted, (tmp_path / heartbeat_page.LAUNCHER).exists()) == (0, False)


def test_without_a_launcher_the_command_prints_one_sentence(tmp_path: Path) -> None:
    command, environ = [sys.executable, "-m", "ddp_trainer", "hang"], os.environ | {"DDP_METRICS_DIR": str(tmp_path)}
    done = captured(command, env=environ)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
    assert str(tmp_path) in done.stderr


async def test_many_concurrent_requests_take_one_summary(tmp_path: Path) -> None:
    eyes = CountedEyes()
    async with a_page(tmp_path, eyes):
        answers = await asyncio.gather(*(server.hang(tmp_path) for _ in range(10)))
    assert (len({answer.body for answer in answers}), eyes.outlined, eyes.sighted) == (1, 1, 0)


async def test_a_crowd_at_the_metrics_port_is_one_client_of_the_launcher(tmp_path: Path) -> None:
    requests: list[bytes] = []
    all_have_asked = asyncio.Event()

    async def answer_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readline())
        await all_have_asked.wait()
        writer.write(b"{}")
        writer.close()

    async with await asyncio.start_unix_server(answer_late, tmp_path / heartbeat_page.LAUNCHER):
        crowd = server.HangProxy(tmp_path)
        tasks = [asyncio.create_task(crowd.fetch_response()) for _ in range(64)]
        await asyncio.sleep(0)
        all_have_asked.set()
        answers = await asyncio.gather(*tasks)
    assert ({answer.body for answer in answers}, requests) == ({b"{}"}, [heartbeat_page.OUTLINE])


@pytest.mark.parametrize("request_", [b"", b"\n", b"everything\n", b"outline", b"x" * 100_000])
async def test_a_client_without_a_valid_request_gets_no_answer_and_delays_no_other(
    tmp_path: Path, request_: bytes
) -> None:
    launcher = tmp_path / heartbeat_page.LAUNCHER
    async with a_page(tmp_path) as lines:
        for reader, writer in [
            await asyncio.open_unix_connection(launcher) for _ in range(2 * status_socket.MOST_CONNECTIONS)
        ]:
            writer.write(request_)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.transport.abort()
        assert (await server.hang(tmp_path)).status is HTTPStatus.OK
        assert len(lines) <= status_socket.LINES_PER_MINUTE


async def test_the_socket_is_private_to_the_user_and_replaces_that_of_a_dead_launcher(tmp_path: Path) -> None:
    (tmp_path / heartbeat_page.LAUNCHER).touch()
    deep = tmp_path / ("deep" * 40)
    deep.mkdir()
    before = os.umask(0)
    try:
        for folder in (tmp_path, deep):
            async with a_page(folder):
                assert os.stat(folder / heartbeat_page.LAUNCHER).st_mode & 0o777 == 0o600  # noqa: PTH116
    finally:
        os.umask(before)


async def test_without_a_launcher_the_metrics_port_reports_this(tmp_path: Path) -> None:
    answer = await server.hang(tmp_path)
    assert answer.status is HTTPStatus.SERVICE_UNAVAILABLE
    assert answer.body == b"No launcher shows its ranks here: No such file or directory.\n"


def test_a_stopped_launcher_is_a_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "ANSWER_SECONDS", 0.05)
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(tmp_path / heartbeat_page.LAUNCHER))
        mute.listen()
        assert asyncio.run(server.hang(tmp_path)).status is HTTPStatus.GATEWAY_TIMEOUT


class Ras:
    """Server side of the RAS protocol of NCCL, by the source of its client."""

    def __init__(self, greeting: bytes = b"SERVER PROTOCOL 2\n") -> None:
        self._greeting = greeting
        self.requests: list[bytes] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        connection, _ = self.listener.accept()
        with connection, connection.makefile("rwb") as talk:
            for answer in (self._greeting, b"OK\n", b"NCCL version 2.28\n#0-0 (1a2b) MISMATCH\n"):
                line = talk.readline()
                if not line:
                    return
                self.requests.append(line)
                talk.write(answer)
                talk.flush()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(10)
        self.listener.close()


def test_the_verbose_status_of_ras_is_requested() -> None:
    with Ras() as ras:
        assert status_socket.nccl_report({"NCCL_RAS_ADDR": ras.address}) == "NCCL version 2.28\n#0-0 (1a2b) MISMATCH\n"
    assert ras.requests == [b"CLIENT PROTOCOL 2\n", b"TIMEOUT 2\n", b"VERBOSE STATUS\n"]


def test_another_program_at_that_port_is_left_alone() -> None:
    with Ras(greeting=b"HTTP/1.1 400 Bad Request\n") as other:
        assert status_socket.nccl_report({"NCCL_RAS_ADDR": other.address}) == ""
    assert other.requests == [b"CLIENT PROTOCOL 2\n"]


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense:port", "localhost:99999999"])
def test_without_ras_the_report_is_empty(address: str) -> None:
    assert status_socket.nccl_report({"NCCL_RAS_ADDR": address}) == ""
