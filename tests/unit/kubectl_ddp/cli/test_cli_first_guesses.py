"""What a newcomer types first: each line works, or its error names the right way in one sentence."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

import pytest

from kubectl_ddp.cli.run import run

SUBMIT: Final = {
    "submit trian.py --local": "Did you mean 'train.py'?",
    "submit train.sh --local": "Did you mean 'train.py'?",
    "submit train.py --epochs 3 --local": "-- --epochs",
    "submit train.py BAR=2 --local": "-- BAR=2",
    "submit train.py --local --nnodes 4:2": "'2:4'",
    "submit train.py --local --nnodes 2-4": "'2:8'",
    "submit train.py --local --nnodes two": "'2:8'",
    "submit train.py --memory 8GB": "'4Gi'",
    "submit train.py --deadline 1hour": "'1h'",
    "submit train.py --gpus A100:8": "--gpu-type",
    "submit train.py --gpus 8x": "number alone",
    "submit train.py --gpu-type A100 --dry-run": "Add gpus",
    "submit train.py -e FOO": "NAME=VALUE",
    "submit -- python train.py": "script before any '--'",
    "submit --local": "Name a script",
    "submit . --local": "Name the file in it",
    "submit ./missing/train.py --local": "--command",
    "submit torchrun train.py": "submit train.py",
    "submit python train.py": "submit train.py",
    "submit train.py --local --standalone": "Leave it out",
    "submit train.py --local --nproc gpu --dry-run": "Give the number of processes",
    "submit train.py --timeout 1h --local": "Add --wait or --follow",
    "submit train.py --checkpoint-dir ./ck --local": "argument after '--'",
    "submit train.py --ckpt-dir ./ck --local": "argument after '--'",
    "submit train.py --log-dir logs --local": "-- --log-dir",
    "submit train.py --detach --local": "continues",
    "submit train.py -d --local": "continues",
    "submit train.py --background --local": "continues",
}
FLAGS: Final = {
    "--time 1h": "--deadline",
    "--walltime 1h": "--deadline",
    "--max-time 1h": "--deadline",
    "--nodes 2": "--nnodes",
    "--num-nodes 2": "--nnodes",
    "--workers 2": "--nnodes",
    "-N 2": "--nnodes",
    "--ntasks-per-node 2": "--nproc",
    "--num-processes 2": "--nproc",
    "--gpu 8": "--gpus",
    "--ngpus 8": "--gpus",
    "--num-gpus 8": "--gpus",
    "--cpus 4": "--cpu",
    "--mem 8Gi": "--memory",
    "--retries 3": "--max-restarts",
    "--partition gpu": "--queue",
    "--job-name x": "--name",
    "--docker-image x/y:1": "--image",
    "--workdir .": "--code",
    "--env-file .env": "--env",
    "--pvc data": "--mount",
    "--interactive": "--follow",
    "--dryrun": "--dry-run",
}
"""Flag of another program after ``submit train.py`` → ours."""
COMMANDS: Final = {
    "sumbit train.py": "Did you mean 'submit'?",
    "python train.py": "submit SCRIPT",
    "torchrun train.py": "submit SCRIPT",
    "init trin.py --image x/y --nnodes 1": "Did you mean 'train.py'?",
    "apply -f job.yaml": "submit -f FILE",
    "ps": "list",
    "list --json": "-o json",
    "list --all": "-A",
    "info mine": "status JOB",
    "show mine": "status JOB",
    "inspect mine": "status JOB",
    "stat mine": "status JOB",
    "status mine --json": "-o json",
    "get pods": "status JOB --ranks",
    "describe pod mine-0": "status JOB --ranks",
    "log mine": "logs JOB",
    "tail mine": "logs JOB",
    "logs mine --lines 100": "--tail",
    "metrics mine": "top JOB",
    "monitor mine": "top JOB",
    "plot mine": "report JOB",
    "ui": "report JOB",
    "compare a b": "report A B",
    "diagnose mine": "why JOB",
    "debug mine": "why JOB",
    "exec mine bash": "exec mine -- bash",
    "ssh mine": "exec JOB",
    "cp mine:/x .": "exec JOB -- cat FILE",
    "scale mine 2": "--nnodes N",
    "scale mine --nodes 2": "--nnodes",
    "resize mine 2": "scale JOB --nnodes N",
    "stop mine": "suspend JOB",
    "kill mine": "delete JOB",
    "pause mine": "suspend JOB",
    "continue mine": "resume JOB",
    "rerun mine": "restart JOB",
    "retry mine": "restart JOB",
    "rollout restart mine": "restart mine",
    "rm mine": "delete JOB",
    "down mine": "delete JOB",
    "delete mine --force": "--yes",
    "delete": "--all",
    "rename mine new": "clone JOB --name NAME",
    "update mine": "scale JOB --nnodes N",
}
REFUSED: Final = {**SUBMIT, **{f"submit train.py {flag}": f"'{ours}'" for flag, ours in FLAGS.items()}, **COMMANDS}
WORKS: Final = {
    "--version": "kubectl-ddp 0.",
    "help submit": "Usage: kubectl-ddp submit",
    "submit -h": "Usage: kubectl-ddp submit",
    "-h": "Usage: kubectl-ddp",
    "submit train.py -e FOO=1 --local --dry-run": "created (dry run)",
}


@pytest.fixture(autouse=True)
def laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory with a script, and no cluster."""
    (tmp_path / "train.py").write_text("print('hello')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("KUBECONFIG", raising=False)


def test_the_tables_have_one_hundred_lines() -> None:
    assert len(REFUSED) + len(WORKS) == 100


@pytest.mark.parametrize("line", WORKS)
def test_a_first_guess_works(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(shlex.split(line)) == 0
    assert WORKS[line] in capsys.readouterr().out


@pytest.mark.parametrize("line", REFUSED)
def test_a_first_guess_is_answered_with_the_right_way(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(shlex.split(line)) in {2, 3}
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert REFUSED[line] in told.err.partition(": ")[2]
