"""The command line of a launcher becomes the job that it means."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from ddp_trainer.launch.flags import TORCHRUN
from kubectl_ddp.errors import UsageError
from kubectl_ddp.spec.job_key import Given, Layer, Origin, OriginKind
from kubectl_ddp.spec.launcher_command import take_over
from kubectl_ddp.spec.resolve import DefaultingContext, Resolved, resolve
from kubectl_ddp.values.program import Command, Module, Script

LOCAL_RANK = "--local_rank=${local_rank}"
LAUNCH_RANK = "--local-rank=${local_rank}"
SENT = Script("train.py")
REFUSED = {
    "logs-specs": "a plugin of the image",
    "duplicate-stdout-filters": "a job prints each line once",
    "duplicate-stderr-filters": "a job prints each line once",
    "print-completion": "starts no job",
}
"""Flags of torchrun that no job has."""


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print(1)\n")
    Path("src").mkdir()
    Path("src/main.py").write_text("print(1)\n")


def layer(kind: OriginKind = OriginKind.FLAG, **values: Any) -> Layer:
    return {key: Given(raw, Origin(kind, f"--{key}")) for key, raw in values.items()}


def job(command: str, **flags: Any) -> Resolved:
    return resolve([layer(command=command, **flags)], DefaultingContext(image="x/y:1"))


@pytest.mark.parametrize(("command", "size", "program", "args"), [
    ("torchrun --nproc-per-node 2 train.py --lr 0.1", (1, 2, 10), SENT, ("--lr", "0.1")),
    ("torchrun --nproc_per_node=2 --nnodes=2:4 --max_restarts=3 train.py", (4, 2, 3), SENT, ()),
    ("torchrun --standalone --nproc 4 train.py -- -v", (1, 4, 10), SENT, ("-v",)),
    ("python3 -u -m torch.distributed.run --nproc-per-node 2 -m pkg.train", (1, 2, 10), Module("pkg.train"), ()),
    ("/opt/bin/torchrun --no-python ./run --x", (1, 1, 10), Command(("./run",)), ("--x",)),
    ("torchrun --nnodes $N --rdzv_id 7 in_image.py", None, None, None),
    ("torchrun --rdzv_id=7 --node_rank $R in_image.py", (1, 1, 10), Command(("python", "in_image.py")), ()),
    ("python -m torch.distributed.launch --nproc_per_node 2 train.py", (1, 2, 10), SENT, (LAUNCH_RANK,)),
    ("python -m torch.distributed.launch --use_env train.py", (1, 1, 10), SENT, ()),
    ("accelerate launch --num_processes 8 --num_machines 2 --multi_gpu train.py", (2, 4, 10), SENT, ()),
    ("accelerate launch --num_machines 3 --num_processes 8 train.py", None, None, None),
    ("accelerate launch --use_deepspeed train.py", None, None, None),
    ("deepspeed --num_nodes 2 --num_gpus 4 train.py -c ds.json", (2, 4, 10), SENT, (LOCAL_RANK, "-c", "ds.json")),
    ("deepspeed --no_local_rank train.py", (1, 1, 10), SENT, ()),
    ("deepspeed --include localhost:0 train.py", None, None, None),
    ("torchrun --nproc-per-node gpu train.py", None, None, None),
    ("torchrun --nnodes 2", None, None, None),
])  # fmt: skip
def test_the_job_that_a_command_line_means(command: str, size: Any, program: Any, args: Any) -> None:
    if program is None:
        with pytest.raises(UsageError) as refused:
            job(command)
        assert refused.value.hint
        return
    spec = job(command).spec
    assert (spec.nnodes.maximum, spec.nproc, spec.max_restarts) == size
    assert (spec.program, spec.args) == (program, args)


@pytest.mark.parametrize(
    ("keys", "python"),
    [({"runtimeImage": "r:1"}, "python3"), ({"runtimeImage": "r:1", "python": "/conda/python"}, "/conda/python")],
)
def test_a_script_of_the_image_runs_under_the_interpreter_of_the_job(keys: dict[str, str], python: str) -> None:
    assert job("torchrun in_image.py", **keys).spec.program == Command((python, "in_image.py"))


def test_one_line_states_what_a_command_became() -> None:
    found = job("torchrun --nnodes 2 --rdzv_endpoint $HOST:29400 --nproc_per_node 2 train.py --lr 0.1")
    assert found.notes[0].startswith(
        "The command of torchrun becomes nnodes 2, nproc 2, script train.py, args --lr 0.1; the job has its own --rdzv_"
    )
    assert len(found.notes) == 1


def test_options_of_the_job_win_and_one_sentence_names_each_that_contradicts() -> None:
    found = job("torchrun --nnodes 2 --nproc-per-node gpu --max-restarts 3 train.py", nnodes="4", maxRestarts=3, gpus=2)
    assert (found.spec.nnodes.maximum, found.spec.nproc, found.spec.max_restarts) == (4, 2, 3)
    assert found.notes[1:] == ("--nnodes (4) wins over --nnodes 2 of torchrun.",)


def test_a_command_on_the_command_line_wins_over_the_sizes_of_a_job_file() -> None:
    layers = [layer(OriginKind.FILE, nnodes="8", nproc="8"), layer(command="torchrun --nnodes 2 train.py")]
    spec = resolve(layers, DefaultingContext(image="x/y:1")).spec
    assert (spec.nnodes.maximum, spec.nproc) == (2, 8)


def test_settings_become_variables_and_words_of_submit_follow_those_of_the_command() -> None:
    command = "env OMP_NUM_THREADS=3 A=b=c torchrun --signals-to-handle SIGTERM --virtual-local-rank train.py --x"
    spec = job(command, args=["--y"]).spec
    assert spec.env["PET_SIGNALS_TO_HANDLE"] == "SIGTERM"
    assert (spec.env["OMP_NUM_THREADS"], spec.env["A"], spec.env["PET_VIRTUAL_LOCAL_RANK"]) == ("3", "b=c", "1")
    assert spec.args == ("--x", "--y")


def test_a_script_in_the_code_that_is_sent_is_the_job_s_script() -> None:
    assert job("torchrun main.py", code="src").spec.program == Script("src/main.py")


@pytest.mark.parametrize("command", ["python train.py", "bash -c 'torchrun train.py'", "FOO=1 ./run", "env"])
def test_other_commands_stay_as_they_are(command: str) -> None:
    text = layer(command=command)
    assert take_over(text) == (dict(text), ())


@pytest.mark.parametrize("flag", TORCHRUN, ids=lambda flag: flag.long)
def test_each_flag_of_torchrun_is_taken_over_or_refused(flag: Any) -> None:
    words = ["torchrun", flag.long, *([] if flag.kind is None else ["1"]), "train.py"]
    if flag.long.removeprefix("--") in REFUSED:
        with pytest.raises(UsageError, match=f"The flag {flag.long} of torchrun has no counterpart"):
            take_over(layer(command=shlex.join(words)))
    else:
        taken, notes = take_over(layer(command=shlex.join(words)))
        assert "train.py" in {taken[key].raw for key in ("script", "module") if key in taken} | {
            str(taken[key].raw[-1]) for key in ("command",) if key in taken
        }
        assert len(notes) == 1
