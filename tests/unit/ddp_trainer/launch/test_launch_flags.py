from __future__ import annotations

import argparse
import contextlib
import os

import pytest

from ddp_trainer.launch.errors import LaunchError
from ddp_trainer.launch.flags import OURS, TORCHRUN, parse, parser_for

NOT_STRINGS = {"duplicate_stdout_filters", "duplicate_stderr_filters"}
"""torch parses these into lists in the parser, we do later."""


@pytest.fixture(scope="module")
def torchs_parser() -> argparse.ArgumentParser:
    from torch.distributed.run import get_args_parser

    return get_args_parser()


def actions_of(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    return {option: action for action in parser._actions for option in action.option_strings}


def test_every_flag_of_torchrun_is_taken_with_its_default_and_arity(torchs_parser: argparse.ArgumentParser) -> None:
    theirs, ours = actions_of(torchs_parser), actions_of(parser_for({}))
    assert theirs.keys() <= ours.keys()
    for option, action in theirs.items():
        assert (action.nargs == 0) == (ours[option].nargs == 0), option
        assert action.dest == ours[option].dest, option
        if action.dest not in NOT_STRINGS:
            assert action.default == ours[option].default, option


def test_flags_that_torchrun_does_not_know_are_those_that_are_ours(torchs_parser: argparse.ArgumentParser) -> None:
    theirs, ours = actions_of(torchs_parser), actions_of(parser_for({}))
    extra = {ours[option].dest for option in ours.keys() - theirs.keys()}
    assert extra == {flag.names.split()[-1].lstrip("-").replace("-", "_") for flag in OURS}


def test_the_environment_means_the_same_to_both(
    torchs_parser: argparse.ArgumentParser, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.distributed.run import get_args_parser

    values = {str: "text", int: "7", float: "0.5"}
    for action in torchs_parser._actions:
        if action.option_strings and action.dest != "help" and action.dest not in NOT_STRINGS:
            value = "1" if action.nargs == 0 else (action.choices or [values.get(action.type, "7")])[0]
            monkeypatch.setenv(f"PET_{action.dest.upper()}", value)
    theirs = vars(get_args_parser().parse_args(["script.py"]))
    ours = vars(parser_for(os.environ).parse_args([]))
    for name in theirs.keys() - NOT_STRINGS - {"training_script", "training_script_args"}:
        assert theirs[name] == ours[name], name


@pytest.mark.parametrize(
    "argv",
    [
        ["--nproc-per-node=2", "train.py"],
        ["--nproc_per_node", "4", "--nnodes=1:3", "train.py", "--lr", "0.1"],
        ["-m", "pkg.train", "-m", "x"],
        ["-r", "3", "-t", "0:1", "train.py", "-t"],
        ["-t3", "train.py"],
        ["--standalone", "train.py", "--nnodes", "9"],
        ["--max-rest", "5", "train.py"],
        ["--no_python", "--role", "x", "prog", "-r"],
    ],
)
def test_a_command_line_means_what_torchrun_would_read(
    torchs_parser: argparse.ArgumentParser, argv: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = vars(torchs_parser.parse_args(argv))
    ours = vars(parse(argv, {}))
    for name in theirs.keys() - NOT_STRINGS:
        assert theirs[name] == ours[name], name


def test_flags_beat_the_environment() -> None:
    assert parse(["--nnodes", "3", "x.py"], {"PET_NNODES": "2"}).nnodes == "3"


def test_an_empty_switch_of_the_kubeflow_operator_is_no_crash() -> None:
    assert parse(["x.py"], {"PET_STANDALONE": ""}).standalone is False


@pytest.mark.parametrize(
    ("argv", "environ", "words"),
    [
        (["--nproc-per-nodes", "2", "x.py"], {}, "--nproc-per-node"),
        (["--max-restarts", "many", "x.py"], {}, "many"),
        (["x.py"], {"PET_MAX_RESTARTS": "many"}, "many"),
        (["x.py"], {"PET_STANDALONE": "yes"}, "PET_STANDALONE='yes'"),
        (["--nnodes"], {}, "nnodes"),
        (["--numa-binding", "node", "x.py"], {}, "numactl"),
        (["--logs-specs", "mine", "x.py"], {}, "torchrun"),
        (["--r", "x.py"], {}, "--r"),
        (["--nnodes", "2"], {}, "No script"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence_with_the_value(
    argv: list[str], environ: dict[str, str], words: str
) -> None:
    with pytest.raises(LaunchError) as caught:
        parse(argv, environ)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_help_lists_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):
        parse(["--help"], {})
    told = capsys.readouterr().out
    for flag in TORCHRUN + OURS:
        assert flag.names.split()[-1] in told
