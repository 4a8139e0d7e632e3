"""What Volcengine, Slurm and Open MPI say in their variables, as flags."""

from __future__ import annotations

import argparse
import doctest

import pytest

from ddp_trainer.launch.flags import parse
from ddp_trainer.launch.platforms import NAMES, PLATFORMS, apply
from ddp_trainer.launch.protocol import hostlist
from ddp_trainer.launch.protocol.errors import LaunchError

VOLCENGINE = {
    "MLP_WORKER_NUM": "4",
    "MLP_WORKER_GPU": "8",
    "MLP_ROLE_INDEX": "2",
    "MLP_WORKER_0_HOST": "worker-0.example.com",
    "MLP_WORKER_0_PORT": "2222",
}
SLURM = {
    "SLURM_JOB_ID": "123456",
    "SLURM_NNODES": "3",
    "SLURM_NTASKS": "3",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_NODELIST": "gpu[007-009]",
    "SLURM_GPUS_ON_NODE": "4",
}
PER_RANK = SLURM | {"SLURM_NTASKS": "12", "SLURM_PROCID": "6", "SLURM_LOCALID": "2"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "MASTER_ADDR": "a.example.com",
}
OPEN_MPI_PER_RANK = OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}


def told(environ: dict[str, str], *flags: str) -> tuple[argparse.Namespace, list[str]]:
    arguments = parse([*flags, "train.py"], environ)
    return arguments, apply(arguments, environ)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (VOLCENGINE, ("4", "8", 2, "worker-0.example.com", 2222, None)),
        (SLURM, ("3", "4", 1, "gpu007", 23456, None)),
        (PER_RANK, ("12", "1", 6, "gpu007", 23456, 2)),
        (OPEN_MPI, ("4", "1", 3, "a.example.com", None, None)),
        (OPEN_MPI_PER_RANK, ("4", "1", 3, "a.example.com", None, 1)),
        (SLURM | OPEN_MPI, ("4", "1", 3, "a.example.com", None, None)),
        ({}, ("1:1", "1", 0, "127.0.0.1", None, None)),
    ],
)
def test_a_platform_says_who_and_where_we_are(environ: dict[str, str], expected: tuple[object, ...]) -> None:
    arguments, _ = told(environ)
    names = ("nnodes", "nproc_per_node", "node_rank", "master_addr", "master_port", "device")
    assert tuple(getattr(arguments, name) for name in names) == expected


def test_one_variable_of_volcengine_counts_without_the_others() -> None:
    arguments, sentences = told({"MLP_WORKER_GPU": "8"})
    assert (arguments.nnodes, arguments.nproc_per_node) == ("1:1", "8")
    assert sentences == ["From Volcengine: --nproc-per-node 8 (MLP_WORKER_GPU)."]
    for name in VOLCENGINE.keys() - {"MLP_WORKER_0_HOST"}:
        with pytest.raises(LaunchError, match=rf"^Volcengine's {name}='x' is no [a-z0-9 ]+; give --") as error:
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
    _, sentences = told(OPEN_MPI, "--nnodes=4", "--node-rank=3", "--master-addr=a.example.com")
    assert sentences == []


def test_an_elastic_launch_meets_where_a_static_one_would() -> None:
    arguments, _ = told(VOLCENGINE, "--rdzv-backend", "c10d")
    assert arguments.rdzv_endpoint == "worker-0.example.com:2222"


def test_a_launch_on_one_node_needs_no_address_and_so_can_restart() -> None:
    arguments, sentences = told(VOLCENGINE | {"MLP_WORKER_NUM": "1", "MLP_ROLE_INDEX": "0"})
    assert (arguments.nnodes, arguments.master_port, arguments.nproc_per_node) == ("1", None, "8")
    assert sentences == ["From Volcengine: --nnodes 1 (MLP_WORKER_NUM), --nproc-per-node 8 (MLP_WORKER_GPU)."]


def test_a_batch_script_of_slurm_is_one_node_and_says_how_to_use_all() -> None:
    batch = {name: value for name, value in SLURM.items() if name != "SLURM_STEP_ID"}
    arguments, sentences = told(batch)
    assert (arguments.nnodes, arguments.nproc_per_node) == ("1:1", "4")
    assert (
        sentences[-1]
        == "This Slurm job has 3 nodes and uses this one alone; srun --ntasks-per-node=1 starts it on all."
    )


def test_standalone_and_none_leave_a_platform_alone() -> None:
    for flags in (["--standalone"], ["--platform", "none"]):
        arguments, sentences = told(VOLCENGINE, *flags)
        assert (arguments.nnodes, arguments.nproc_per_node, sentences) == ("1:1", "1", [])


def test_a_platform_can_be_named() -> None:
    arguments, _ = told(SLURM | OPEN_MPI, "--platform", "slurm")
    assert arguments.nnodes == "3"


def test_every_flag_of_the_table_is_a_flag() -> None:
    known = vars(parse(["x.py"], {})).keys()
    assert {default.flag for platform in PLATFORMS for default in platform.defaults} <= known
    assert set(NAMES) == {"auto", "none", "openmpi", "volcengine", "slurm"}


@pytest.mark.parametrize(
    ("environ", "flags", "words"),
    [
        (VOLCENGINE | {"MLP_ROLE_INDEX": "4"}, [], "MLP_ROLE_INDEX=4 makes this node 4, but MLP_WORKER_NUM=4 has room"),
        (VOLCENGINE, ["--nnodes", "2"], "MLP_ROLE_INDEX=2 makes this node 2, but MLP_WORKER_NUM=4 has"),
        (VOLCENGINE | {"MLP_WORKER_GPU": "all"}, [], "MLP_WORKER_GPU='all' is no number; give --nproc-per-node"),
        (VOLCENGINE | {"MLP_WORKER_NUM": "0"}, [], "MLP_WORKER_NUM='0' is no number from 1"),
        (VOLCENGINE | {"MLP_WORKER_0_PORT": "70000"}, [], "is no port from 1 to 65535"),
        (SLURM | {"SLURM_JOB_NODELIST": "[a"}, [], "SLURM_JOB_NODELIST='[a' is no list of hosts"),
        (OPEN_MPI | {"MASTER_ADDR": ""}, [], "mpirun -x MASTER_ADDR=HOST"),
        ({}, ["--platform", "slurm"], "--platform slurm: $SLURM_JOB_ID is not set"),
        ({}, ["--platform", "moon"], "moon"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_one_sentence_with_the_variable(
    environ: dict[str, str], flags: list[str], words: str
) -> None:
    with pytest.raises(LaunchError) as caught:
        told(environ, *flags)
    assert words in str(caught.value)


def test_the_examples_of_host_lists_hold() -> None:
    assert doctest.testmod(hostlist).failed == 0
