"""The secret of a local run: its pods read it, and it stands nowhere but in its file."""

from __future__ import annotations

import gzip
import os
import re
import stat
from pathlib import Path

from ddp_trainer.common.constants import SECRET_KEY, Env
from tests.support.local_place import Typed

PRINTS_ALL = f"""\
import os, sys
import torch.distributed as dist
secret = open(os.environ["{Env.SECRET_FILE}"]).read()
print("run", secret.partition(":")[0], len(secret.partition(":")[2]), flush=True)
print(sys.argv, dict(os.environ), flush=True)
dist.init_process_group("gloo")  # the first that fails ends the others, which have printed by then
dist.barrier()
sys.exit(3)
"""
READS = (
    ("status", "reading"),
    ("status", "reading", "-o", "json"),
    ("list", "-o", "json"),
    ("why", "reading"),
    ("events", "reading"),
    ("logs", "reading"),
)


def secret_files(typed: Typed) -> list[Path]:
    return [path for path in typed.directory.rglob(SECRET_KEY) if path.is_file()]


def test_every_pod_reads_the_secret_which_stands_in_no_other_file_and_no_output(typed: Typed) -> None:
    typed.write("all.py", PRINTS_ALL)
    submit = ["submit", "all.py", "--local", "--name", "reading", "-j", "2x1", "--max-restarts", "0", "--follow"]
    before = os.umask(0)  # a shell may have any
    try:
        ran = typed(*submit)
    finally:
        os.umask(before)
    [file] = secret_files(typed)
    run_id, _, value = file.read_text().partition(":")
    assert re.fullmatch("ddprunsecret[0-9a-f]{64}", value)
    assert ran.stdout.count(f"run {run_id} {len(value)}") == 2, ran.stderr
    assert f"run {run_id}" in ran.stderr

    assert stat.S_IMODE(file.stat().st_mode) == 0o400
    job = typed.directory / "state" / "kubectl-ddp" / "jobs" / "reading"
    assert stat.S_IMODE(job.stat().st_mode) == 0o700
    assert job in file.parents
    others = [path for path in job.rglob("*") if path.is_file() and path != file]
    assert job / "objects.json" in others
    assert not [path for path in others if value in path.read_text(errors="replace")]

    bundle = typed.directory / "reading.tar.gz"
    results = [ran, *(typed(*words, "--local") for words in READS)]
    results.append(typed("bundle", "reading", "--local", "--file", str(bundle)))
    assert not [done.args for done in results if value in done.stdout + done.stderr]
    assert value not in gzip.decompress(bundle.read_bytes()).decode(errors="replace")


def test_a_new_run_of_a_failed_job_has_another_secret_and_a_deleted_one_none(typed: Typed) -> None:
    typed.write("all.py", PRINTS_ALL)
    ran = typed("submit", "all.py", "--local", "--name", "again", "-j", "1x1", "--max-restarts", "0", "--wait")
    assert ran.returncode == 10, ran.stderr
    [first] = secret_files(typed)
    text = first.read_text()
    assert typed("restart", "again", "--local", "--yes").returncode == 0
    [second] = secret_files(typed)
    assert second.read_text().partition(":")[0] != text.partition(":")[0]
    assert second.read_text().partition(":")[2] != text.partition(":")[2]
    assert typed("wait", "again", "--for=failed", "--local", "--timeout", "60s").returncode == 0
    assert typed("delete", "again", "--yes", "--local").returncode == 0
    assert secret_files(typed) == []
