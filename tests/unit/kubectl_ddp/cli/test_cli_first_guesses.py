"""Lines that newcomers type: each works, or its error names the right line in one sentence."""

from __future__ import annotations

import re
import shlex
from typing import Final

import click
import pytest

from kubectl_ddp.cli import registry
from kubectl_ddp.cli.group import root
from kubectl_ddp.cli.internal import suggestions
from tests.support.command_line import CommandLine

pytestmark = pytest.mark.usefixtures("workdir")

SUBMIT: Final = {
    "submit train.sh --local": "Did you mean 'train.py'?",
    "submit train.py --epochs 3 --local": "-- --epochs",
    "submit train.py --local --nnodes 4:2": "'2:4'",
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
    "submit python train.py": "submit train.py",
    "submit train.py --local --nproc gpu --dry-run": "Give the number of processes",
    "submit train.py --timeout 1h --local": "Add --wait or --follow",
    "submit train.py --log-dir logs --local": "-- --log-dir",
    "submit train.py -v data:/data --local": "-- data:/data",
    "submit https://example.com/train.py": "Download it",
    "submit train.py --output log.txt": "'json', 'yaml', 'name'",
    "submit --module train.py": "script",
    "submit --module torch.distributed.run": "nproc",
    "submit --command 'accelerate launch --config_file a.yaml train.py'": "nproc",
    "submit --name mine torchrun": "train.py",
    "submit train.py foo bar": "train.py -- foo bar",
    "submit train.py --shm 16": "16Gi",
    "submit train.py --priority-class high": "'--priority'",
    "submit train.py --imagePullSecrets regcred": "'--image-pull-secret'",
    "submit train.py -it": "'--follow'",
}
COMMANDS: Final = {
    "sumbit train.py": "Did you mean 'submit'?",
    "init trin.py --image x/y --nnodes 1": "Did you mean 'train.py'?",
    "describe pod mine-0": "status JOB --ranks",
    "exec mine bash": "exec mine -- bash",
    "scale mine 2": "--nnodes N",
    "delete": "--all",
    "-v": "--version",
    "logs mine 0": "--rank R",
    "wait mine 60": "--timeout TIME",
    "exec mine": "-- CMD",
    "clone mine": "--name NEW",
    "delete pod mine-0": "status JOB --ranks",
}
REFUSED: Final = {**SUBMIT, **COMMANDS}
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


@pytest.mark.parametrize("line", WORKS)
def test_a_first_guess_works(line: str, cli: CommandLine) -> None:
    assert WORKS[line] in cli(*shlex.split(line)).out


@pytest.mark.parametrize("line", REFUSED)
def test_a_first_guess_is_answered_with_the_right_way(line: str, cli: CommandLine) -> None:
    assert REFUSED[line] in cli.refused(*shlex.split(line), codes=(2, 3)).partition(": ")[2]


@pytest.mark.parametrize("flag", suggestions.FLAG_EQUIVALENTS)
def test_a_flag_of_another_launcher_is_answered_with_ours(flag: str, cli: CommandLine) -> None:
    ours = suggestions.FLAG_EQUIVALENTS[flag]
    command = root().get_command(click.Context(root()), "submit")
    assert command is not None
    assert ours in {name for option in command.params for name in option.opts}
    if flag != "-m":  # which we take
        assert f"'{ours}'" in cli("submit", "train.py", flag, "1", code=2).err


HINTS: Final = [
    *(("submit", "train.py", flag, "1", hint) for flag, hint in suggestions.FLAG_HINTS.items()),
    *((command, flag, hint) for command, hints in suggestions.FLAGS.items() for flag, hint in hints.items()),
]


@pytest.mark.parametrize("words", HINTS, ids=lambda words: " ".join(words[:-1]))
def test_a_flag_without_a_counterpart_is_answered_with_its_hint(words: tuple[str, ...], cli: CommandLine) -> None:
    assert words[-1].format(path="kubectl-ddp", command=words[0]) in cli(*words[:-1], code=2).err


@pytest.mark.parametrize(
    "word", [*suggestions.COMMAND_EQUIVALENTS, *suggestions.STOP_SYNONYMS, *suggestions.DELETE_SYNONYMS]
)
def test_a_command_of_another_program_is_answered_with_ours(word: str, cli: CommandLine) -> None:
    named = re.findall(r"'kubectl-ddp (\S+)[^']*'", cli.refused(word))
    assert named
    assert set(named) <= registry.COMMANDS.keys()
