"""Checkpoints in real S3 servers, through a proxy that fails, and with writers that are killed.

Swift has conditional writes, rclone ignores their condition: see :mod:`tests.support.object_stores`.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bench.drivers.kill_during_save import kill_at_random_times
from ddp_trainer.train.checkpoint import checkpoint_files
from ddp_trainer.train.checkpoint.checkpoint_factory import open_checkpoints
from ddp_trainer.train.checkpoint.checkpoint_files import CheckpointDirectory
from ddp_trainer.train.checkpoint.torch_zip_writer import pack
from ddp_trainer.train.checkpoint.write_lease import Claim
from ddp_trainer.train.storage.object_storage import open_storage
from ddp_trainer.train.utils.errors import StaleGeneration, StorageConfigError
from ddp_trainer.train.utils.locations import StorageUrl
from tests.support.object_stores import (
    BUCKET,
    Fault,
    FaultProxy,
    Store,
    fault_proxy,
    rclone,
    skip_without_stores,
    swift,
)
from tests.support.programs import captured
from tests.support.train_builders import a_manifest

STATE_NUMBERS = 4_300_000
"""Numbers of 4 bytes: more than two parts of an upload."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Store]]:
    skip_without_stores()
    with swift(tmp_path_factory.mktemp("swift")) as one, rclone(tmp_path_factory.mktemp("rclone")) as other:
        yield {"swift": one, "rclone": other}


@pytest.fixture
def proxy(servers: dict[str, Store], monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """Swift, behind a proxy."""
    with fault_proxy(servers["swift"]) as proxy:
        _use(servers["swift"].behind(proxy), monkeypatch)
        yield proxy


@pytest.fixture
def url(request: pytest.FixtureRequest) -> StorageUrl:
    """Prefix of this test."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    return StorageUrl(f"s3://{BUCKET}/{name}")


def _use(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in store.environ.items():
        monkeypatch.setenv(name, value)


def a_pod(
    url: StorageUrl, disk: Path, monkeypatch: pytest.MonkeyPatch, generation: int, alarms: list[str] | None = None
) -> CheckpointDirectory:
    """Return the checkpoints as a writer of this generation sees them, with a new disk."""
    monkeypatch.setattr("tempfile.tempdir", str(disk / str(generation)))
    claim = Claim(f"token{generation}", generation, generation, "run", 1)
    return open_checkpoints(url, claim, keep=2, alarm=[].append if alarms is None else alarms.append)


def save(directory: CheckpointDirectory, step: int) -> None:
    numbers = torch.full((STATE_NUMBERS,), float(step))
    directory.write(a_manifest(step), pack({"numbers": numbers}))


def step_of(directory: CheckpointDirectory) -> int:
    """Return the step of the newest checkpoint, whose numbers are all that of its step."""
    found = directory.latest_checkpoint(pytest.fail)
    assert found is not None
    numbers = checkpoint_files.unpack(found)["numbers"]
    assert bool((numbers == found.manifest.step).all())
    return found.manifest.step


@pytest.mark.parametrize("server", ["swift", "rclone"])
def test_a_server_keeps_checkpoints_fenced_with_or_without_conditional_writes(
    server: str, servers: dict[str, Store], url: StorageUrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use(servers[server], monkeypatch)
    alarms: list[str] = []
    old = a_pod(url, tmp_path, monkeypatch, 1, alarms)
    old.open()
    save(old, 1)
    new = a_pod(url, tmp_path, monkeypatch, 2, alarms)
    new.open()
    assert step_of(new) == 1
    with pytest.raises(StaleGeneration, match="generation 2 has claimed it"):
        save(old, 9)
    save(new, 2)
    assert step_of(a_pod(url, tmp_path, monkeypatch, 3)) == 2
    assert len(alarms) == (0 if server == "swift" else 2)


@pytest.mark.parametrize(
    ("fault", "method", "part", "times"),
    [
        (Fault.UNAVAILABLE, "PUT", "", 3),
        (Fault.CUT_REQUEST, "PUT", "partNumber=2", 2),
        (Fault.LOST_ANSWER, "POST", "?uploadId=", 1),
        (Fault.HALF_BODY, "GET", "state.pt", 2),
    ],
)
def test_what_passes_is_repeated_and_nothing_is_lost(
    fault: Fault, method: str, part: str, times: int,
    proxy: FaultProxy, url: StorageUrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    writer = a_pod(url, tmp_path, monkeypatch, 1)
    writer.open()
    proxy.fail(fault, method=method, part=part, times=times)
    save(writer, 1)
    assert step_of(a_pod(url, tmp_path, monkeypatch, 2)) == 1
    uploads = [path for method, path in proxy.requests if method == "POST" and "?uploads" in path]
    assert len(uploads) == 1  # a part is repeated alone


def test_wrong_credentials_and_a_missing_bucket_are_one_sentence(
    servers: dict[str, Store], url: StorageUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use(servers["swift"], monkeypatch)
    with pytest.raises(StorageConfigError, match="There is no bucket 'missing'"):
        open_storage("s3://missing/run").list()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StorageConfigError, match="credentials"):
        open_storage(url).list()
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    with pytest.raises(StorageConfigError, match="There are no credentials"):
        open_storage(url).list()


def test_kills_during_uploads_leave_nothing_torn_and_nothing_older_than_was_reported(
    servers: dict[str, Store], url: StorageUrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use(servers["rclone"], monkeypatch)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    kills = kill_at_random_times(url, count=5, size_bytes=20 << 20, chance=random.Random(7))
    assert (kills.count, kills.unloadable, kills.older) == (5, 0, 0)


def test_a_run_resumes_from_the_store_on_another_machine_and_the_commands_read_it(
    servers: dict[str, Store], url: StorageUrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use(servers["swift"], monkeypatch)

    def run(machine: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / machine).mkdir(exist_ok=True)
        monkeypatch.setenv("TMPDIR", str(tmp_path / machine))
        return captured([sys.executable, "-m", "ddp_trainer", *arguments])

    train = ["train", "--checkpoint-dir", url, "--checkpoint-steps", "10", "--threads", "1"]
    first = run("a", *train, "--max-steps", "15")
    assert first.returncode == 0, first.stderr
    second = run("b", *train, "--max-steps", "20")
    assert "resumed after step 15" in second.stderr
    shown = run("c", "checkpoint", "inspect", url, "-o", "json")
    entries = json.loads(shown.stdout)
    assert [(entry["step"], entry["valid"]) for entry in entries] == [(20, True), (15, True), (10, True)]
    assert run("c", "checkpoint", "export", url, "--step", "15", "--to", str(tmp_path / "weights.pt")).returncode == 0
    assert torch.load(tmp_path / "weights.pt")
    assert list((tmp_path / "c").iterdir()) == []
