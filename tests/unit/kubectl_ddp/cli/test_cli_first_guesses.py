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
    "submit train.py --spot": "'--toleration'",
    "submit train.py --use-spot --local": "'--toleration'",
    "submit train.py --elastic --local": "'--nnodes MIN:MAX'",
    "submit train.py --min-nodes 1 --max-nodes 4": "'--nnodes MIN:MAX'",
    "submit train.py --array 0-3": "one job for each value",
    "submit train.py --resume --local": "'resume JOB'",
    "submit train.py -p 8080": "'port-forward JOB PORT'",
    "submit train.py -v data:/data --local": "-- data:/data",
    "submit train.py --gpus=all": "number alone",
    "submit https://example.com/train.py": "Download it",
    "submit train.py --output log.txt": "'json', 'yaml', 'name'",
    "submit train.py --image-pull-secret regcred": "Add --local",
    "submit train.py --name My_Job": "lower case",
    "submit train.py --mount ./data:/data": "pvc=NAME:/PATH",
    "submit train.py train2.py": "-- train2.py",
    "run --image x/y -- python train.py": "script before any '--'",
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
    "-it": "--follow",
    "--shm-size 8Gi": "--shm",
    "--accelerator A100": "--gpu-type",
    "--nodelist n1": "--node-selector",
    "--instance-type p4d.24xlarge": "--node-selector",
    "--account team": "--queue",
    "--qos high": "--priority",
    "--priority-class high": "--priority",
    "--rm": "--ttl",
    "--restart-policy Never": "--max-restarts",
    "--force": "--replace",
    "--overwrite": "--replace",
    "--imagePullSecrets regcred": "--image-pull-secret",
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
    "-v": "--version",
    "login": "doctor",
    "logout": "doctor",
    "gpu": "capacity",
    "nvidia-smi": "exec JOB -- nvidia-smi",
    "tensorboard": "report JOB",
    "grafana": "dashboard JOB",
    "use-context kind": "list --context NAME",
    "logs mine 0": "--rank R",
    "wait mine 60": "--timeout TIME",
    "report mine --html": "-o FILE",
    "list --state running": "list | grep STATE",
    "scale mine --up": "--nnodes",
    "restart mine --force": "--yes",
    "exec mine": "-- CMD",
    "-n team list": "list -n team",
    "clone mine": "--name NEW",
    "delete pod mine-0": "status JOB --ranks",
}
REFUSED: Final = {**SUBMIT, **{f"submit train.py {flag}": f"'{ours}'" for flag, ours in FLAGS.items()}, **COMMANDS}
WORKS: Final = {
    "--version": "kubectl-ddp 0.",
    "help submit": "Usage: kubectl-ddp submit",
    "submit -h": "Usage: kubectl-ddp submit",
    "-h": "Usage: kubectl-ddp",
    "-V": "kubectl-ddp 0.",
    "run train.py --local --dry-run": "created (dry run)",
    "config view": "place",
    "completion bash": "kubectl_complete-ddp",
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


def test_the_tables_have_one_hundred_and_fifty_one_lines() -> None:
    assert len(REFUSED) + len(WORKS) == 151


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
