"""Logs, volumes and addresses of local jobs."""

from __future__ import annotations

import itertools
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubectl_ddp.backends.local import volumes
from kubectl_ddp.backends.local.kubelet import Backoff
from kubectl_ddp.backends.local.log_file import LogReader, LogWriter
from kubectl_ddp.backends.local.pods import worker_pod
from kubectl_ddp.errors import PreflightFailed
from tests.support.kube_objects import a_template, job


def logged(file: Path, *pieces: bytes, clock: Callable[[], int] = time.time_ns) -> LogReader:
    """Write a log, and return a reader of it."""
    writer = LogWriter(file, clock=clock)
    for piece in pieces:
        writer.feed(piece)
    writer.close()
    return LogReader(file)


@given(st.lists(st.binary(max_size=50_000)))
def test_what_is_written_in_pieces_is_read_back(tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]) -> None:
    reader = logged(tmp_path_factory.mktemp("log") / "log", *pieces)
    written = b"".join(pieces)
    lines = written.split(b"\n")
    lines = lines if lines[-1] else lines[:-1]
    read = [text for _, text in reader.lines()]
    assert len(read) == len(lines)
    if all(len(line) < 16_000 for line in lines):
        assert read == [line.decode(errors="replace") for line in lines]


def test_times_increase_even_if_the_clock_does_not(tmp_path: Path) -> None:
    clock = itertools.chain([5, 5, 3, 9], itertools.repeat(9))
    reader = logged(tmp_path / "log", b"a\nb\nc\nd\ne\n", clock=lambda: next(clock))
    times = [moment for moment, _ in reader.lines()]
    assert times == sorted(set(times))


def test_a_reader_may_begin_at_a_point_in_time(tmp_path: Path) -> None:
    second = [moment for moment, _ in logged(tmp_path / "log", b"one\ntwo\nthree\n").lines()][1]
    assert [text for _, text in LogReader(tmp_path / "log", since=second).lines()] == ["two", "three"]


def test_the_last_lines_are_read_without_the_rest_of_a_long_log(tmp_path: Path) -> None:
    file = tmp_path / "log"
    logged(file, b"".join(b"step %d\n" % step for step in range(100_000)))
    tracemalloc.start()
    try:
        reader = LogReader(file)
        reader.skip_to_last(4096)
        read = [text for _, text in reader.lines()]
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert read == [f"step {step}" for step in range(100_000 - len(read), 100_000)]
    assert 50 < len(read) < 4096 / 40
    assert file.stat().st_size > 4 << 20
    assert most_bytes < 1 << 19


def test_the_last_lines_of_a_short_log_are_all_of_it(tmp_path: Path) -> None:
    writer, reader = LogWriter(tmp_path / "log"), LogReader(tmp_path / "log")
    writer.feed(b"one\ntwo\n")
    writer.close()
    reader.skip_to_last(4096)
    assert [text for _, text in reader.lines()] == ["one", "two"]


@pytest.mark.parametrize("kind", ["secret", "nfs", "csi"])
def test_what_the_machine_has_not_is_refused(tmp_path: Path, kind: str) -> None:
    template = a_template(volumeMounts=[{"name": "data", "mountPath": "/data"}])
    template["spec"]["volumes"] = [{"name": "data", kind: {}}]
    pod = worker_pod(job(template=template), 0, "127.1.1.2")
    with pytest.raises(PreflightFailed, match=f"Volume 'data' is a {kind}, which this machine has not"):
        volumes.mount(pod, tmp_path, {})


def test_the_first_crash_costs_nothing_and_the_next_ever_more() -> None:
    backoff = Backoff()
    assert [backoff.next(0.1) for _ in range(9)] == [0, 0.5, 1, 2, 4, 8, 16, 30, 30]
    assert backoff.next(60) == 0
