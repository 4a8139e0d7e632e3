"""Flags: those of torchrun with their meaning, those of the launcher, and values of a platform."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
from pathlib import Path

import pytest

from ddp_trainer.launch import config
from ddp_trainer.launch.flags import ALL, TORCHRUN, Flag, completion_script, parse, parser_for, remaining_args
from ddp_trainer.launch.platform_defaults import apply
from ddp_trainer.launch.protocol.console import LaunchError

NOT_STRINGS = {"duplicate_stdout_filters", "duplicate_stderr_filters"}
"""torch parses these into lists in its parser, the launcher does so later."""


@pytest.fixture(scope="module")
def torchs_parser() -> argparse.ArgumentParser:
    from torch.distributed.run import get_args_parser

    return get_args_parser()


def actions_of(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    return {option: action for action in parser._actions for option in action.option_strings}


def test_every_flag_of_torchrun_is_taken_with_its_default_and_arity(torchs_parser: argparse.ArgumentParser) -> None:
    torchs, parsed = actions_of(torchs_parser), actions_of(parser_for({}))
    assert torchs.keys() <= parsed.keys()
    for option, action in torchs.items():
        assert (action.nargs == 0) == (parsed[option].nargs == 0), option
        assert action.dest == parsed[option].dest, option
        if action.dest not in NOT_STRINGS:
            assert action.default == parsed[option].default, option


def test_the_choices_of_a_flag_are_torchs(torchs_parser: argparse.ArgumentParser) -> None:
    torchs, parsed = actions_of(torchs_parser), actions_of(parser_for({}))
    chosen = {option: set(action.choices or ()) for option, action in torchs.items()}
    assert {option: set(parsed[option].choices or ()) for option in torchs} == chosen
    assert chosen["--numa-binding"]


def test_flags_of_the_launch_module_are_taken_too() -> None:
    """Compare with the source of ``torch.distributed.launch``, which exposes no parser."""
    from torch.distributed import launch

    added = set(re.findall(r'"(--[a-z-_]+)",\n', Path(str(launch.__file__)).read_text()))
    assert added == {"--use-env", "--use_env"}
    assert added <= actions_of(parser_for({})).keys()


@pytest.mark.parametrize("flag", ALL, ids=lambda flag: flag.dest)
def test_every_flag_is_taken_with_dashes_with_underscores_and_from_the_environment(flag: Flag) -> None:
    value = (flag.choices or ("7",))[0]
    given = () if flag.kind is None else (value,)
    expected = True if flag.kind is None else flag.kind(value)
    for name in (*flag.names.split(), f"--{flag.dest}"):
        assert getattr(parser_for({}).parse_args([name, *given]), flag.dest) == expected
    arguments = parser_for({flag.variable: "1" if flag.kind is None else value}).parse_args([])
    assert getattr(arguments, flag.dest) == (expected if flag.in_environment else parser_for({}).get_default(flag.dest))


def prefixes(parser: argparse.ArgumentParser) -> dict[str, set[str]]:
    """Return each prefix of a long flag, with the flags that it matches."""
    found: dict[str, set[str]] = {}
    for option, action in actions_of(parser).items():
        for length in range(3, len(option) + 1) if option.startswith("--") else ():
            found.setdefault(option[:length], set()).add(action.dest)
    exact = actions_of(parser)
    return {prefix: {exact[prefix].dest} if prefix in exact else dests for prefix, dests in found.items()}


@pytest.mark.parametrize("joined", [True, False])
def test_prefixes_that_are_unique_in_torchrun_mean_the_same(
    torchs_parser: argparse.ArgumentParser, *, joined: bool
) -> None:
    torchs = actions_of(torchs_parser)
    unique = {prefix: dests.pop() for prefix, dests in prefixes(torchs_parser).items() if len(dests) == 1}
    assert len(unique) > 300
    for prefix, dest in unique.items():
        action = next(candidate for candidate in torchs.values() if candidate.dest == dest)
        if dest in {"help", "logs_specs", "print_completion"}:
            assert remaining_args([prefix]) == []
            continue
        value = str((action.choices or ["7"])[0])
        given = [prefix] if action.nargs == 0 else [f"{prefix}={value}"] if joined else [prefix, value]
        arguments = parse([*given, "script.py", "--nproc", "x"], {})
        assert arguments.given == {dest}, prefix
        assert (arguments.training_script, arguments.training_script_args) == ("script.py", ["--nproc", "x"])
        with contextlib.suppress(SystemExit), contextlib.redirect_stderr(None):  # Python 3.11 refuses two spellings
            stock = vars(torchs_parser.parse_args([*given, "script.py"]))
            assert dest in NOT_STRINGS or stock[dest] == getattr(arguments, dest), prefix


def test_a_prefix_that_torchrun_finds_ambiguous_is_refused_with_its_flags(
    torchs_parser: argparse.ArgumentParser,
) -> None:
    newer = {flag.dest for flag in TORCHRUN if flag.since}
    for prefix, found in prefixes(torchs_parser).items():
        if len(dests := found - newer) > 1:
            with pytest.raises(LaunchError, match="write one of them in full") as info:
                parse([prefix, "7", "script.py"], {})
            assert all(f"--{dest.replace('_', '-')}" in str(info.value) for dest in dests)


def test_flags_of_the_launcher_have_prefixes_where_torchrun_has_none_and_an_empty_switch_is_off() -> None:
    assert parse(["x.py"], {"PET_STANDALONE": ""}).standalone is False  # from Kubeflow's operator
    assert parse(["--metr", "9464", "script.py"], {}).metrics_port == 9464
    assert parse(["--no-l", "script.py"], {}).no_lint is True


def test_both_read_the_environment_alike(
    torchs_parser: argparse.ArgumentParser, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.distributed.run import get_args_parser

    values = {str: "text", int: "7", float: "0.5"}
    for action in torchs_parser._actions:
        if action.option_strings and action.dest != "help" and action.dest not in NOT_STRINGS:
            value = "1" if action.nargs == 0 else (action.choices or [values.get(action.type, "7")])[0]
            monkeypatch.setenv(f"PET_{action.dest.upper()}", value)
    torchs = vars(get_args_parser().parse_args(["script.py"]))
    parsed = vars(parser_for(os.environ).parse_args([]))
    for name in torchs.keys() - NOT_STRINGS - {"training_script", "training_script_args"}:
        assert torchs[name] == parsed[name], name


@pytest.mark.parametrize(
    ("argv", "environ", "words"),
    [
        (["--nproc-per-nodes", "2", "x.py"], {}, "--nproc-per-node"),
        (["--max-restarts", "many", "x.py"], {}, "'many' is not a whole number."),
        (["--master-port", "99999", "x.py"], {}, "'99999' is not a port from 0 to 65535."),
        (["x.py"], {"PET_MAX_RESTARTS": "many"}, "many"),
        (["x.py"], {"PET_STANDALONE": "yes"}, "PET_STANDALONE='yes'"),
        (["--nnodes"], {}, "nnodes"),
        (["--numa-binding", "near", "x.py"], {}, "near"),
        (["--logs-specs", "mine", "x.py"], {}, "torchrun"),
        (["x.py"], {"PET_START_METHOD": "thread"}, "PET_START_METHOD='thread' is none of spawn, fork, forkserver."),
    ],
)
def test_a_wrong_flag_is_one_sentence_with_the_value(argv: list[str], environ: dict[str, str], words: str) -> None:
    with pytest.raises(LaunchError) as caught:
        parse(argv, environ)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_bash_completes_flags_and_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--print-completion", "bash"], {})
    assert ended.value.code == 0
    (tmp_path / "completion").write_text(capsys.readouterr().out)
    (tmp_path / "train.py").touch()
    shell = 'source ./completion; words=$(complete -p ddp-launch | sed "s/^complete/compgen/; s/ ddp-launch$//"); '
    commands = [f'{shell} eval "$words -- {begun}"' for begun in ("--nproc", "tr")]
    completions = [subprocess.check_output(["bash", "-c", line], cwd=tmp_path, text=True).split() for line in commands]
    assert completions == [["--nproc-per-node"], ["train.py"]]


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_completion_of_other_shells_names_every_flag(shell: str) -> None:
    completion = completion_script(shell, {flag.long: True for flag in ALL})
    assert all(flag.long.removeprefix("--") in completion for flag in ALL)
    assert "ddp-launch" in completion


TOY_BACKEND = """
import torch, types
def load():
    torch.utils.rename_privateuse1_backend("toy")
    module = types.ModuleType("torch.toy")
    module.device_count = lambda: 3
    torch._register_device_module("toy", module)
"""


def test_torch_counts_devices_that_only_it_knows(tmp_path: Path) -> None:
    (tmp_path / "toy_backend.py").write_text(TOY_BACKEND)
    package = tmp_path / "toy_backend-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-backend\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[torch.backends]\ntoy = toy_backend:load\n")
    assert config.local_world_size_of("toy", dict(os.environ) | {"PYTHONPATH": str(tmp_path)}) == 3
    with pytest.raises(LaunchError, match="'toy' is neither a number from 1 nor auto, cpu, gpu or a device"):
        config.local_world_size_of("toy", dict(os.environ))
    with pytest.raises(LaunchError, match="torch finds no device of this kind"):
        config.local_world_size_of("xpu", dict(os.environ))


VOLCENGINE = {
    "MLP_WORKER_NUM": "4",
    "MLP_WORKER_GPU": "8",
    "MLP_ROLE_INDEX": "2",
    "MLP_WORKER_0_HOST": "worker-0.example.com",
    "MLP_WORKER_0_PORT": "2222",
}


def applied(environ: dict[str, str], *flags: str) -> tuple[argparse.Namespace, list[str]]:
    arguments = parse([*flags, "train.py"], environ)
    return arguments, apply(arguments, environ)


def test_one_variable_of_volcengine_counts_without_the_others() -> None:
    arguments, sentences = applied({"MLP_WORKER_GPU": "8"})
    assert (arguments.nnodes, arguments.nproc_per_node) == ("1:1", "8")
    assert sentences == ["From Volcengine: --nproc-per-node 8 (MLP_WORKER_GPU)."]
    for name in VOLCENGINE.keys() - {"MLP_WORKER_0_HOST"}:
        with pytest.raises(LaunchError, match=rf"^Volcengine's {name}='x' is not a [a-z0-9 ]+; give --") as error:
            applied({name: "x"})
        assert error.value.exit_code == 2


def test_a_flag_beats_the_environment_which_beats_the_platform() -> None:
    arguments, sentences = applied(VOLCENGINE | {"PET_NODE_RANK": "1", "PET_NNODES": "3"}, "--nnodes", "2")
    assert (arguments.nnodes, arguments.node_rank, arguments.nproc_per_node) == ("2", 1, "8")
    address = "--master-addr worker-0.example.com (MLP_WORKER_0_HOST), --master-port 2222 (MLP_WORKER_0_PORT)"
    assert sentences == [
        f"From Volcengine: --nproc-per-node 8 (MLP_WORKER_GPU), {address}.",
        "Flags override Volcengine: --nnodes 4 (MLP_WORKER_NUM), --node-rank 2 (MLP_ROLE_INDEX).",
    ]


def test_flags_that_agree_are_not_reported_and_an_elastic_launch_has_the_endpoint_of_a_static_one() -> None:
    flags = "--nnodes=4 --node-rank=2 --nproc-per-node=8 --master-addr=worker-0.example.com --master-port=2222"
    assert applied(VOLCENGINE, *flags.split())[1] == []
    assert applied(VOLCENGINE, "--rdzv-backend", "c10d")[0].rdzv_endpoint == "worker-0.example.com:2222"


def test_a_launch_on_one_node_needs_no_address_and_so_can_restart() -> None:
    arguments, sentences = applied(VOLCENGINE | {"MLP_WORKER_NUM": "1", "MLP_ROLE_INDEX": "0"})
    assert (arguments.nnodes, arguments.master_port, arguments.nproc_per_node) == ("1", None, "8")
    assert sentences == ["From Volcengine: --nnodes 1 (MLP_WORKER_NUM), --nproc-per-node 8 (MLP_WORKER_GPU)."]


def test_standalone_and_none_leave_a_platform_alone() -> None:
    for flags in (["--standalone"], ["--platform", "none"]):
        arguments, sentences = applied(VOLCENGINE, *flags)
        assert (arguments.nnodes, arguments.nproc_per_node, sentences) == ("1:1", "1", [])


@pytest.mark.parametrize(
    ("environ", "flags", "words"),
    [
        (VOLCENGINE | {"MLP_ROLE_INDEX": "4"}, [], "MLP_ROLE_INDEX=4 makes this node 4, but MLP_WORKER_NUM=4 has room"),
        (VOLCENGINE, ["--nnodes", "2"], "MLP_ROLE_INDEX=2 makes this node 2, but MLP_WORKER_NUM=4 has"),
        (VOLCENGINE | {"MLP_WORKER_NUM": "0"}, [], "MLP_WORKER_NUM='0' is not a number from 1"),
        (VOLCENGINE | {"MLP_WORKER_0_PORT": "70000"}, [], "is not a port from 1 to 65535"),
        ({}, ["--platform", "moon"], "moon"),
    ],
)  # fmt: skip
def test_a_wrong_variable_is_one_sentence_with_its_name(environ: dict[str, str], flags: list[str], words: str) -> None:
    with pytest.raises(LaunchError) as caught:
        applied(environ, *flags)
    assert words in str(caught.value)
