"""Flags from the variables of Volcengine."""

from __future__ import annotations

import argparse

import pytest

from ddp_trainer.launch.flags import parse
from ddp_trainer.launch.platform_defaults import VOLCENGINE as TABLE
from ddp_trainer.launch.platform_defaults import apply
from ddp_trainer.launch.protocol.console import LaunchError

VOLCENGINE = {
    "MLP_WORKER_NUM": "4",
    "MLP_WORKER_GPU": "8",
    "MLP_ROLE_INDEX": "2",
    "MLP_WORKER_0_HOST": "worker-0.example.com",
    "MLP_WORKER_0_PORT": "2222",
}


def told(environ: dict[str, str], *flags: str) -> tuple[argparse.Namespace, list[str]]:
    arguments = parse([*flags, "train.py"], environ)
    return arguments, apply(arguments, environ)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (VOLCENGINE, ("4", "8", 2, "worker-0.example.com", 2222)),
        ({}, ("1:1", "1", 0, "127.0.0.1", None)),
    ],
)
def test_a_platform_says_who_and_where_we_are(environ: dict[str, str], expected: tuple[object, ...]) -> None:
    arguments, _ = told(environ)
    names = ("nnodes", "nproc_per_node", "node_rank", "master_addr", "master_port")
    assert tuple(getattr(arguments, name) for name in names) == expected


def test_one_variable_of_volcengine_counts_without_the_others() -> None:
    arguments, sentences = told({"MLP_WORKER_GPU": "8"})
    assert (arguments.nnodes, arguments.nproc_per_node) == ("1:1", "8")
    assert sentences == ["From Volcengine: --nproc-per-node 8 (MLP_WORKER_GPU)."]
    for name in VOLCENGINE.keys() - {"MLP_WORKER_0_HOST"}:
        with pytest.raises(LaunchError, match=rf"^Volcengine's {name}='x' is not a [a-z0-9 ]+; give --") as error:
            told({name: "x"})
        assert error.value.exit_code == 2


def test_a_flag_beats_the_environment_which_beats_the_platform() -> None:
    arguments, sentences = told(VOLCENGINE | {"PET_NODE_RANK": "1", "PET_NNODES": "3"}, "--nnodes", "2")
    assert (arguments.nnodes, arguments.node_rank, arguments.nproc_per_node) == ("2", 1, "8")
    used, unused = sentences
    assert used == (
        "From Volcengine: --nproc-per-node 8 (MLP_WORKER_GPU), --master-addr worker-0.example.com (MLP_WORKER_0_HOST), "
        "--master-port 2222 (MLP_WORKER_0_PORT)."
    )
    assert unused == (
        "Volcengine says --nnodes 4 (MLP_WORKER_NUM), --node-rank 2 (MLP_ROLE_INDEX); what was given counts instead."
    )


def test_what_agrees_is_not_worth_a_word() -> None:
    _, sentences = told(
        VOLCENGINE,
        "--nnodes=4",
        "--node-rank=2",
        "--nproc-per-node=8",
        "--master-addr=worker-0.example.com",
        "--master-port=2222",
    )
    assert sentences == []


def test_an_elastic_launch_meets_where_a_static_one_would() -> None:
    arguments, _ = told(VOLCENGINE, "--rdzv-backend", "c10d")
    assert arguments.rdzv_endpoint == "worker-0.example.com:2222"


def test_a_launch_on_one_node_needs_no_address_and_so_can_restart() -> None:
    arguments, sentences = told(VOLCENGINE | {"MLP_WORKER_NUM": "1", "MLP_ROLE_INDEX": "0"})
    assert (arguments.nnodes, arguments.master_port, arguments.nproc_per_node) == ("1", None, "8")
    assert sentences == ["From Volcengine: --nnodes 1 (MLP_WORKER_NUM), --nproc-per-node 8 (MLP_WORKER_GPU)."]


def test_standalone_and_none_leave_a_platform_alone() -> None:
    for flags in (["--standalone"], ["--platform", "none"]):
        arguments, sentences = told(VOLCENGINE, *flags)
        assert (arguments.nnodes, arguments.nproc_per_node, sentences) == ("1:1", "1", [])


def test_every_flag_of_the_table_is_a_flag() -> None:
    known = vars(parse(["x.py"], {})).keys()
    assert {default.flag for default in TABLE} <= known


@pytest.mark.parametrize(
    ("environ", "flags", "words"),
    [
        (VOLCENGINE | {"MLP_ROLE_INDEX": "4"}, [], "MLP_ROLE_INDEX=4 makes this node 4, but MLP_WORKER_NUM=4 has room"),
        (VOLCENGINE, ["--nnodes", "2"], "MLP_ROLE_INDEX=2 makes this node 2, but MLP_WORKER_NUM=4 has"),
        (VOLCENGINE | {"MLP_WORKER_GPU": "all"}, [], "MLP_WORKER_GPU='all' is not a number; give --nproc-per-node"),
        (VOLCENGINE | {"MLP_WORKER_NUM": "0"}, [], "MLP_WORKER_NUM='0' is not a number from 1"),
        (VOLCENGINE | {"MLP_WORKER_0_PORT": "70000"}, [], "is not a port from 1 to 65535"),
        ({}, ["--platform", "moon"], "moon"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_one_sentence_with_the_variable(
    environ: dict[str, str], flags: list[str], words: str
) -> None:
    with pytest.raises(LaunchError) as caught:
        told(environ, *flags)
    assert words in str(caught.value)
