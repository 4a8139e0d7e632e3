"""Logs, volumes and addresses of local jobs."""

from __future__ import annotations

import itertools
import stat
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubectl_ddp.backends.local import volumes
from kubectl_ddp.backends.local.environment import Network
from kubectl_ddp.backends.local.kubelet import Backoff
from kubectl_ddp.backends.local.log_file import LogReader, LogWriter
from kubectl_ddp.backends.local.pods import worker_pod
from kubectl_ddp.errors import PreflightFailed
from tests.support.kube_objects import a_template, job


@given(st.lists(st.binary(max_size=50_000)))
def test_whatever_is_written_in_whatever_pieces_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]
) -> None:
    file = tmp_path_factory.mktemp("log") / "log"
    writer = LogWriter(file)
    for piece in pieces:
        writer.feed(piece)
    writer.close()
    written = b"".join(pieces)
    lines = written.split(b"\n")
    lines = lines if lines[-1] else lines[:-1]
    read = [text for _, text in LogReader(file).lines()]
    assert len(read) == len(lines)
    if all(len(line) < 16_000 for line in lines):
        assert read == [line.decode(errors="replace") for line in lines]


def test_times_increase_even_if_the_clock_does_not(tmp_path: Path) -> None:
    clock = itertools.chain([5, 5, 3, 9], itertools.repeat(9))
    writer = LogWriter(tmp_path / "log", clock=lambda: next(clock))
    writer.feed(b"a\nb\nc\nd\ne\n")
    writer.close()
    times = [moment for moment, _ in LogReader(tmp_path / "log").lines()]
    assert times == sorted(set(times))


def test_a_reader_goes_on_where_it_stopped(tmp_path: Path) -> None:
    writer, reader = LogWriter(tmp_path / "log"), LogReader(tmp_path / "log")
    writer.feed(b"one\ntw")
    assert [text for _, text in reader.lines()] == ["one"]
    writer.feed(b"o\nthree")
    assert [text for _, text in reader.lines()] == ["two"]
    writer.close()
    assert [text for _, text in reader.lines()] == ["three"]


def test_a_reader_may_begin_at_a_point_in_time(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "log")
    writer.feed(b"one\ntwo\nthree\n")
    writer.close()
    second = [moment for moment, _ in LogReader(tmp_path / "log").lines()][1]
    assert [text for _, text in LogReader(tmp_path / "log", since=second).lines()] == ["two", "three"]


def test_a_log_that_is_not_there_yet_has_no_lines(tmp_path: Path) -> None:
    assert list(LogReader(tmp_path / "log").lines()) == []


def mounted(tmp_path: Path, mounts: dict[str, str], kinds: list[dict[str, object]], index: int = 0) -> volumes.Mounts:
    template = a_template(volumeMounts=[{"name": name, "mountPath": path} for path, name in mounts.items()])
    template["spec"]["volumes"] = kinds
    pod = worker_pod(job(template=template), index, "127.1.1.2")
    return volumes.mount(pod, tmp_path, {"code": {"train.py": b"print()\n"}})


def test_the_last_lines_are_read_without_the_rest_of_a_long_log(tmp_path: Path) -> None:
    file = tmp_path / "log"
    writer = LogWriter(file)
    writer.feed(b"".join(b"step %d\n" % step for step in range(100_000)))
    writer.close()
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


def test_an_empty_dir_is_a_pods_own_and_a_claim_is_the_jobs(tmp_path: Path) -> None:
    kinds: list[dict[str, object]] = [
        {"name": "run", "emptyDir": {}},
        {"name": "ckpt", "persistentVolumeClaim": {"claimName": "models"}},
    ]
    mounts = {"/var/run/ddp": "run", "/checkpoints": "ckpt"}
    first, second = (mounted(tmp_path, mounts, kinds, index).directories for index in (0, 1))
    assert first["/var/run/ddp"] != second["/var/run/ddp"]
    assert first["/checkpoints"] == second["/checkpoints"]
    assert all(Path(directory).is_dir() for directory in first.values())


def test_shared_memory_stays_the_machines_and_tmp_becomes_a_short_scratch(tmp_path: Path) -> None:
    kinds: list[dict[str, object]] = [
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
        {"name": "scratch", "emptyDir": {}},
    ]
    found = mounted(tmp_path, {"/dev/shm": "shm", "/tmp": "scratch"}, kinds)
    assert found.directories == {}
    assert found.scratch is not None
    volumes.drop_temporary(found)
    assert not Path(found.scratch).exists()


def test_a_volume_in_memory_is_in_memory_and_found_below_the_mount_it_is_in(tmp_path: Path) -> None:
    kinds: list[dict[str, object]] = [
        {"name": "boards", "emptyDir": {"medium": "Memory"}},
        {"name": "run", "emptyDir": {}},
    ]
    found = mounted(tmp_path, {"/var/run/ddp/metrics": "boards", "/var/run/ddp": "run"}, kinds)
    board = Path(found.directories["/var/run/ddp/metrics"]) / "board"
    board.touch()
    assert board.parent.parent == Path("/dev/shm")
    assert (Path(found.directories["/var/run/ddp"]) / "metrics" / "board").exists()
    volumes.drop_temporary(found)
    assert not board.parent.exists()


def test_a_config_map_of_the_job_is_written_out(tmp_path: Path) -> None:
    found = mounted(tmp_path, {"/code": "code"}, [{"name": "code", "configMap": {"name": "code"}}])
    assert Path(found.directories["/code"], "train.py").read_text() == "print()\n"


def test_a_secret_of_the_job_is_a_file_that_only_its_owner_reads_and_no_object_holds_it(tmp_path: Path) -> None:
    secret = {"kind": "Secret", "metadata": {"name": "digits-run-1"}, "stringData": {"run-secret": "run1:0123"}}
    other = {"kind": "Service", "metadata": {"name": "digits-store"}}
    assert volumes.keep_secrets([secret, other], tmp_path) == [other]
    kind = {"name": "run-secret", "secret": {"secretName": "digits-run-1", "defaultMode": 0o400}}
    file = Path(mounted(tmp_path, {"/var/run/ddp-secret": "run-secret"}, [kind]).directories["/var/run/ddp-secret"])
    assert (file / "run-secret").read_text() == "run1:0123"
    assert stat.S_IMODE((file / "run-secret").stat().st_mode) == 0o400
    assert stat.S_IMODE(file.stat().st_mode) == 0o700
    kind["secret"] = {"secretName": "hub"}
    with pytest.raises(PreflightFailed, match="Volume 'run-secret' is a secret, which this machine has not"):
        mounted(tmp_path, {"/var/run/ddp-secret": "run-secret"}, [kind])


@pytest.mark.parametrize("kind", ["secret", "nfs", "csi"])
def test_what_the_machine_has_not_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(PreflightFailed, match=f"Volume 'data' is a {kind}, which this machine has not"):
        mounted(tmp_path, {"/data": "data"}, [{"name": "data", kind: {}}])


def test_two_jobs_never_share_addresses_and_a_job_finds_its_own_again() -> None:
    one, other = Network.lease("digits"), Network.lease("digits")
    assert one.prefix != other.prefix
    assert one.store != one.worker(0) != one.worker(1)
    one.close()
    again = Network.lease("digits")
    assert again.prefix == one.prefix
    again.close()
    other.close()


def test_the_first_crash_costs_nothing_and_the_next_ever_more() -> None:
    backoff = Backoff()
    assert [backoff.next(0.1) for _ in range(9)] == [0, 0.5, 1, 2, 4, 8, 16, 30, 30]
    assert backoff.next(60) == 0
