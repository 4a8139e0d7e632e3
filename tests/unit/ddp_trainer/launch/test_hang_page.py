"""What an agent shows of its ranks at its socket, as the aggregator passes it on."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from http import HTTPStatus
from pathlib import Path
from typing import Self

import pytest

from ddp_trainer import pulse
from ddp_trainer.hanging.look import Look, RankState
from ddp_trainer.launch import hang_ras
from ddp_trainer.launch.hang_page import MOST_FINDINGS, Findings, HangPage
from ddp_trainer.launch.hang_sight import Sight, Teller
from ddp_trainer.metrics import relay
from ddp_trainer.metrics.server import Answer

LOOK = Look(rank=0, local_rank=0, node="w-0", state=RankState.ALIVE, seconds=1.0, limit=None)


async def shown(folder: Path, findings: Findings, *, times: int = 1) -> tuple[list[Answer], int]:
    """What is answered, and how often ranks were looked at for that."""
    looked = 0

    async def look() -> list[Sight]:
        nonlocal looked
        looked += 1
        return [Sight(look=LOOK, pid=7, usual=None, told_by=Teller.KERNEL)]

    page = HangPage(folder, {"NCCL_RAS_ADDR": "127.0.0.1:1"}, look, lambda: {"generation": 3}, findings)
    await page.start()
    answers = list(await asyncio.gather(*(relay.hang(folder) for _ in range(times))))
    page.close()
    return answers, looked


def test_the_agent_shows_its_ranks_and_whom_it_has_named(tmp_path: Path) -> None:
    findings = Findings()
    for number in range(MOST_FINDINGS + 2):
        findings.add(number, (1,), (), ("rank 1 is still",))
    (answer,), _ = asyncio.run(shown(tmp_path, findings))
    told = json.loads(answer.body)
    assert (told["generation"], told["ras"]) == (3, "")
    assert [(rank["rank"], rank["pid"], rank["stack_from"]) for rank in told["ranks"]] == [(0, 7, "/proc")]
    assert [finding["generation"] for finding in told["findings"]] == list(range(2, MOST_FINDINGS + 2))
    assert not (tmp_path / pulse.LAUNCHER).exists()


def test_many_who_ask_at_once_have_the_ranks_looked_at_once(tmp_path: Path) -> None:
    answers, looked = asyncio.run(shown(tmp_path, Findings(), times=20))
    assert (len({answer.body for answer in answers}), looked) == (1, 1)


def test_the_socket_is_our_users_alone_and_takes_a_dead_launchers_place(tmp_path: Path) -> None:
    (tmp_path / pulse.LAUNCHER).touch()
    folder = tmp_path / ("deep" * 40)
    folder.mkdir()

    async def mode() -> list[int]:
        found = []
        for place in (tmp_path, folder):
            page = HangPage(place, {}, lambda: asyncio.sleep(0, []), dict, Findings())
            await page.start()
            found.append(os.stat(place / pulse.LAUNCHER).st_mode & 0o777)  # noqa: PTH116
            page.close()
        return found

    assert asyncio.run(mode()) == [0o600, 0o600]


def test_without_a_launcher_there_is_a_sentence(tmp_path: Path) -> None:
    answer = asyncio.run(relay.hang(tmp_path))
    assert answer.status is HTTPStatus.SERVICE_UNAVAILABLE
    assert answer.body == b"No launcher shows its ranks here: No such file or directory.\n"


def test_a_launcher_that_is_stopped_holds_up_nobody_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "ANSWER_SECONDS", 0.05)
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(tmp_path / pulse.LAUNCHER))
        mute.listen()
        assert asyncio.run(relay.hang(tmp_path)).status is HTTPStatus.GATEWAY_TIMEOUT


def test_a_folder_that_cannot_be_written_costs_the_page_and_not_the_training(tmp_path: Path) -> None:
    async def start() -> None:
        page = HangPage(tmp_path / "absent", {}, lambda: asyncio.sleep(0, []), dict, Findings())
        await page.start()
        page.close()

    asyncio.run(start())


class Ras:
    """Speaks the server's side of NCCL's RAS, as its client's source has it."""

    def __init__(self, greeting: bytes = b"SERVER PROTOCOL 2\n") -> None:
        self._greeting = greeting
        self.heard: list[bytes] = []
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
                self.heard.append(line)
                talk.write(answer)
                talk.flush()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(10)
        self.listener.close()


def test_ras_is_asked_for_all_it_knows() -> None:
    with Ras() as ras:
        assert hang_ras.report({"NCCL_RAS_ADDR": ras.address}) == "NCCL version 2.28\n#0-0 (1a2b) MISMATCH\n"
    assert ras.heard == [b"CLIENT PROTOCOL 2\n", b"TIMEOUT 2\n", b"VERBOSE STATUS\n"]


def test_another_program_at_that_port_is_left_alone() -> None:
    with Ras(greeting=b"HTTP/1.1 400 Bad Request\n") as other:
        assert hang_ras.report({"NCCL_RAS_ADDR": other.address}) == ""
    assert other.heard == [b"CLIENT PROTOCOL 2\n"]


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense:port", "localhost:99999999"])
def test_without_ras_nothing_is_told(address: str) -> None:
    assert hang_ras.report({"NCCL_RAS_ADDR": address}) == ""
