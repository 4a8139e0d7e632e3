"""The files of --log-dir, beside those of stock torchrun."""

from __future__ import annotations

import re
import sys

from tests.support.launch_harness import LAUNCH, Stage

STOCK = [sys.executable, "-m", "torch.distributed.run"]
FAILS_ONCE = """
import os, sys, time
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    print(f"out of attempt {attempt}", flush=True)
    print(f"err of attempt {attempt}", file=sys.stderr, flush=True)
    open(f"{sys.argv[1]}/{attempt}-{os.environ['RANK']}", "w").close()
    while len([name for name in os.listdir(sys.argv[1]) if name.startswith(attempt)]) < 2:
        time.sleep(0.01)  # both have written before one of them fails
    if attempt == "0":
        raise RuntimeError("on purpose")
main()
"""


def files_of(stage: Stage, name: str, launcher: list[str], flags: list[str]) -> dict[str, str]:
    """Path below --log-dir, without what is random → its lines about the attempt."""
    folder, meeting = stage.folder / name, stage.folder / f"meeting-{name}"
    meeting.mkdir()
    flags = ["--nproc-per-node", "2", "--max-restarts", "1", "--log-dir", str(folder), *flags]
    run = stage.run([*launcher, *flags, stage.script(FAILS_ONCE), str(meeting)], {"OMP_NUM_THREADS": "1"})
    assert run.code() == 0, run.output
    (of_run,) = folder.iterdir()
    assert re.fullmatch(r"id_\w{8}", of_run.name)
    return {
        f"id_RANDOM/{path.relative_to(of_run)}": "".join(re.findall(r"(?:out|err) of attempt \d\n", path.read_text()))
        for path in sorted(of_run.rglob("*"))
        if path.is_file()
    }


def test_the_tree_of_logs_is_that_of_torchrun_restarts_included(stage: Stage) -> None:
    flags = ["--redirects", "1:2", "--tee", "0:3,1:1", "--duplicate-stdout-filters", "attempt"]
    rendezvous = ["--nnodes", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--rdzv-id", "id"]
    other = files_of(stage, "stock", STOCK, [*rendezvous, *flags])
    own = files_of(stage, "ours", LAUNCH, ["--rdzv-id", "id", *flags])
    # Both ranks fail; whether the second one still writes its error is a race in both launchers.
    errors = [[path for path in tree if path.endswith("error.json")] for tree in (other, own)]
    assert all(path.startswith("id_RANDOM/attempt_0/") for paths in errors for path in paths)
    for tree, paths in zip((other, own), errors, strict=True):
        assert paths
        for path in paths:
            del tree[path]
    assert own == other
    assert {f"id_RANDOM/attempt_{attempt}/0/stderr.log" for attempt in (0, 1)} <= own.keys()
