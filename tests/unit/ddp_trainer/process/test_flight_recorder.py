"""Records of torch's flight recorder, read from its socket."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddp_trainer.common.hanging import GroupPosition, RankState, RankStatus
from ddp_trainer.launch.hang.rank_snapshot import recorded_by_torch
from ddp_trainer.process import flight_recorder
from ddp_trainer.process.flight_recorder import FlightRecorderError, Position, Record
from tests.support.recorder_server import entry, record, recorder_at

NCCL_DUMP = Path(__file__).parents[3] / "samples" / "nccl_flight_recorder.json"


def test_a_record_has_the_numbers_of_each_group_and_the_collective_that_is_waited_in(tmp_path: Path) -> None:
    body = record({0: (3, 2), 4: (1, 1)}, entry(1), entry(2), entry(1, group=4), entry(3, "gloo:barrier", over=False))
    with recorder_at(tmp_path / "rank-0.sock", {"fr_trace_json": body, "dump_nccl_trace_json": record({})}):
        found = flight_recorder.fetch_record(tmp_path / "rank-0.sock", 5)
    assert found == Record(
        groups={"default": Position(3, 2, name="0"), "1": Position(1, 1, name="4")},
        collectives=("all_reduce[[4]]", "all_reduce[[4]]", "barrier[[4]]"),
        waits_in="barrier[[4]]",
    )


def test_a_default_group_that_is_no_more_is_not_told(tmp_path: Path) -> None:
    first, second = entry(1, over=False), entry(1) | {"pg_id": 2}
    found = flight_recorder.read(record({0: (40, 40), 1: (9, 9), 2: (1, 1), 3: (5, 4)}, first, second))
    assert found.groups == {"default": Position(1, 1, name="0"), "1": Position(5, 4)}
    assert not found.waits_in  # in a collective of a group that no longer exists


def test_collectives_of_nccl_are_read_from_the_recorder_of_nccl(tmp_path: Path) -> None:
    answers = {"fr_trace_json": record({}), "dump_nccl_trace_json": NCCL_DUMP.read_bytes()}
    with recorder_at(tmp_path / "s.sock", answers):
        found = flight_recorder.fetch_record(tmp_path / "s.sock", 5)
    assert found.groups == {"default": Position(2, 2, -1, "0")}
    assert found.collectives == ("all_reduce[[3, 4]]", "all_reduce[[3, 4]]")


def test_groups_of_both_backends_are_told_and_a_common_default_group_is_that_of_nccl() -> None:
    nccl = record({0: (5, 4), 1: (2, 2)}, entry(5, "nccl:all_reduce"), entry(2, "nccl:all_gather", group=1))
    beside = record({0: (9, 9)}, entry(9, group=0) | {"process_group": ["7", "undefined"]})
    common = record({0: (9, 9)}, entry(9))
    found = flight_recorder.read(nccl, beside)
    of_nccl = {"default": Position(5, 4, name="0"), "1": Position(2, 2, name="1")}
    assert found.groups == of_nccl | {"2": Position(9, 9, name="7")}
    assert flight_recorder.read(nccl, common).groups == of_nccl


def test_the_recorder_of_nccl2_is_read_beside_that_of_gloo(tmp_path: Path) -> None:
    gloo, nccl2 = record({0: (9, 9)}, entry(9)), record({0: (5, 4)}, entry(5, "nccl:all_reduce", over=False))
    with recorder_at(tmp_path / "rank-0.sock", {"fr_trace_json": gloo, "fr_trace_json?backend=nccl2": nccl2}):
        assert flight_recorder.fetch_record(tmp_path / "rank-0.sock", 5).waits_in == "all_reduce[[4]]"


def test_a_torch_without_nccl2_that_answers_for_gloo_twice_is_read_once() -> None:
    first = record({0: (3, 2), 4: (1, 1)}, entry(3) | {"time_created_ns": 7})
    later = record({0: (4, 3), 4: (1, 1)}, entry(3) | {"time_created_ns": 7}, entry(4) | {"time_created_ns": 9})
    assert flight_recorder.read(first, later) == flight_recorder.read(first)
    assert flight_recorder.read(record({0: (3, 2)}), record({0: (3, 2)})) == flight_recorder.read(record({0: (3, 2)}))


def test_a_look_has_the_positions_of_groups_by_names_that_all_ranks_share(tmp_path: Path) -> None:
    body = record({0: (3, 2), 4: (1, 1), 5: (9, 9)}, entry(3), entry(1, "nccl:all_gather", group=4))
    status = RankStatus(rank=0, local_rank=0, node="w-0", state=RankState.ALIVE, seconds=1.0, limit=None)
    watch: Any = SimpleNamespace(page=tmp_path / "rank-0.page")
    with recorder_at(tmp_path / "rank-0.sock", {"dump_nccl_trace_json": body}):
        found = recorded_by_torch(watch, status)
    first, second = found.positions
    assert first == GroupPosition(group="", enqueued=3, completed=2)
    assert second == GroupPosition(group="4", enqueued=1, completed=1)


def test_a_gpu_waits_in_the_oldest_collective_that_is_not_over() -> None:
    begun = [entry(2, "nccl:all_reduce", over=False), entry(3, "nccl:all_gather", over=False)]
    assert flight_recorder.read(record({0: (3, 1)}, entry(1), *begun)).waits_in == "all_reduce[[4]]"


def test_a_path_that_is_longer_than_an_address_may_be(tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 30)
    folder.mkdir()
    short = tmp_path / "link"
    short.symlink_to(folder)
    with recorder_at(short / "rank-0.sock", {"fr_trace_json": record({0: (1, 1)}, entry(1))}):
        assert flight_recorder.fetch_record(folder / "rank-0.sock", 5).groups


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"entries": [{}]}', b'{"pg_status": {"0": {}}}', b'{"entries": 4}']
)
def test_what_is_no_record_is_no_answer(body: bytes) -> None:
    with pytest.raises(FlightRecorderError):
        flight_recorder.read(body)


def test_a_missing_socket_a_server_without_a_recorder_and_a_silent_one_are_errors(tmp_path: Path) -> None:
    with pytest.raises(FlightRecorderError, match="No such file"):
        flight_recorder.fetch_record(tmp_path / "absent.sock", 1)
    with recorder_at(tmp_path / "ping.sock", {"ping": b"pong"}), pytest.raises(FlightRecorderError, match="404"):
        flight_recorder.fetch_record(tmp_path / "ping.sock", 1)
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(tmp_path / "mute.sock"))
        mute.listen()
        with pytest.raises(FlightRecorderError, match="timed out"):
            flight_recorder.fetch_record(tmp_path / "mute.sock", 0.05)
