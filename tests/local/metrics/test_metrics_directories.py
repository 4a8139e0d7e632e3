"""Directories of boards that cannot be used, that are another launcher's, or hold boards of another version: real
launchers, mounts and processes. Training continues, metrics too where they can, and the launcher prints one warning.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.launch_harness import LAUNCH, Running, Stage, wait_until
from tests.support.metrics_processes import Aggregator, Rank, aggregator, scraped
from tests.support.programs import captured

STEPS = """
import os, pathlib, sys, time
from ddp_trainer.metrics import attach
from ddp_trainer.metrics.storage.mmap_directory import read_pod_snapshot
recorder = attach.rank_recorder()
for step in range(int(sys.argv[1])):
    recorder.step(step + 1, 0, 16, *[0.125] * 8)
recorder.identity(rank=0, local_rank=0, world_size=1, backend="gloo", device="cpu")
slots = read_pod_snapshot(pathlib.Path(os.environ["DDP_METRICS_DIR"])).ranks
print("steps", *(int(slot.file.values["ddp_steps_total"]) for slot in slots), os.getpid(), flush=True)
while len(sys.argv) > 2 and not os.path.exists(sys.argv[2]):
    time.sleep(0.02)
"""
"""A rank that steps N times, prints the steps on its pod's boards, and runs until a file exists, if one is given."""

READ_ONLY = "mount --bind {0} {0} && mount -o remount,ro,bind {0}"
FULL = "mount -t tmpfs -o size=8k none {0} && (head -c 9k /dev/zero > {0}/full || true) 2> /dev/null"


def launched(stage: Stage, mount: str, metrics: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A launcher and its ranks, with ``mount`` done in a mount table of their own."""
    command = [*LAUNCH, "--metrics-port", "0", *(arguments or (stage.script(STEPS), "3"))]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "DDP_", "TORCHEL"))}
    done = captured(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", f'{mount}; exec "$@"', "sh", *command],
        env={**clean, "DDP_METRICS_DIR": str(metrics), "DDP_METRICS_ADDRESS": "127.0.0.1"},
        timeout=120,
    )
    if done.stderr.startswith(("unshare:", "mount:")):
        pytest.skip(f"Nothing can be mounted here: {done.stderr.strip()}")
    return done


@pytest.mark.parametrize(
    ("mount", "inner", "why"),
    [
        pytest.param("echo no directory > {0}/taken", "taken/metrics", "Not a directory", id="under-a-file"),
        pytest.param(READ_ONLY, "new", "Read-only file system", id="missing-where-none-can-be-made"),
        pytest.param(FULL, "", "No space left on device", id="full"),
    ],
)
def test_a_directory_that_cannot_be_used_costs_a_sentence_and_neither_training_nor_metrics(
    stage: Stage, mount: str, inner: str, why: str
) -> None:
    folder = stage.folder / "volume"
    folder.mkdir()
    done = launched(stage, mount.format(folder), folder / inner)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("steps 3 "), "the rank has a metrics file"
    (line,) = [line for line in done.stderr.splitlines() if "metrics folder" in line]
    assert line.startswith(f"ddp-launch: The metrics folder {folder / inner} cannot be used ({why}), so this launcher ")
    assert line.endswith(
        "training continues: name a folder in DDP_METRICS_DIR that this user may write to and that has room."
    )
    assert "metrics are off" not in done.stderr
    other = line.partition("has its own in ")[2].partition(",")[0]
    assert not Path(other).exists(), "it goes with its launcher"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_directory_of_another_user_of_this_machine_is_not_written_to(stage: Stage) -> None:
    folder = stage.folder / "volume"
    folder.mkdir(mode=0o777)
    os.chown(folder, 12345, 12345)
    done = launched(stage, "true", folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("steps 3 "), "the rank has a metrics file"
    (line,) = [line for line in done.stderr.splitlines() if "metrics folder" in line]
    assert f"The metrics folder {folder} cannot be used (it belongs to another user)" in line
    assert list(folder.iterdir()) == []


def test_where_no_directory_can_be_had_the_launcher_says_so_once_for_all_its_ranks(stage: Stage) -> None:
    logs = stage.folder / "logs"
    logs.mkdir()
    one_write = "os.write(1, f'trained {\"DDP_METRICS_DIR\" in os.environ}\\n'.encode())"
    script = stage.script(f"import os, torch\n{one_write}")
    nowhere = f"{READ_ONLY.format('/tmp')}; {READ_ONLY.format(stage.folder)}; mount -t tmpfs -o ro none /var/tmp"
    done = launched(
        stage,
        f"{nowhere}; mount -t tmpfs none {logs}; cd {stage.folder}",
        stage.folder / "boards",
        *("--nproc-per-node", "3", "--log-dir", str(logs), script),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained False\n" * 3
    (line,) = [line for line in done.stderr.splitlines() if "metrics are off" in line]
    assert line.startswith("metrics are off for the launcher: no metrics file in ")
    assert done.stderr.count("so hangs of a rank are not detected") == 1


def page(running: Running, job: str) -> str:
    return running.line(rf"metrics of job {job} at (http://\S+)")[1]


def test_of_two_launchers_on_one_directory_each_tells_of_its_own_ranks_alone(stage: Stage) -> None:
    boards = stage.folder / "boards"
    env = {"DDP_METRICS_DIR": str(boards), "DDP_METRICS_ADDRESS": "127.0.0.1", "DDP_METRICS_PORT": "0"}
    script = stage.script(STEPS)
    first = stage.launch(script, "4", stage.done(), **env, DDP_JOB="first")
    first_rank = int(first.line(r"^steps 4 (\d+)$")[1])
    second = stage.launch(script, "7", stage.done(), **env, DDP_JOB="second")
    second_rank = int(second.line(r"^steps 7 (\d+)$")[1])
    match = second.line(
        r"In (\S+) are the metrics of another launcher, process (\d+), so this launcher has its own in "
    )
    assert match.groups() == (str(boards), str(first.pid))
    for running, job, steps, pid in ((first, "first", 4, first_rank), (second, "second", 7, second_rank)):
        seen = scraped(page(running, job), seconds=10)
        assert (seen.value("ddp_steps_total"), seen.value("ddp_rank_pid")) == (steps, pid)
        assert {sample.labels["ddp_job"] for sample in seen.samples if "ddp_job" in sample.labels} == {job}
    first.send(signal.SIGKILL)
    wait_until(lambda: first.process.poll() is not None, "it is killed")
    third = stage.launch(script, "5", **env, DDP_JOB="first")
    third.line(r"^steps 9 \d+$")
    assert third.code() == 0, "the killed launcher holds no lock, and its counters continue"
    assert "has its own in" not in third.output
    stage.finish()
    assert second.code() == 0


def test_a_second_process_of_one_rank_is_told_off_and_the_first_keeps_its_metrics_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two jobs of torchrun's on one machine with one ``DDP_METRICS_DIR``: no launcher of ours keeps them apart."""
    with aggregator(tmp_path) as pod, Rank(tmp_path, 0) as first:
        first.tell("step 4")
        with Rank(tmp_path, 0) as second:
            second.tell("step 6")
            assert_first(pod, first)
        (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"metrics are off for this rank: no metrics file in {tmp_path} (")
    assert line.endswith(f"belongs to process {first.process.pid}, which runs); training continues")


def assert_first(pod: Aggregator, first: Rank) -> None:
    seen = pod.scrape()
    assert seen.value("ddp_steps_total", rank="0") == 4
    assert seen.value("ddp_rank_pid", rank="0") == first.process.pid
