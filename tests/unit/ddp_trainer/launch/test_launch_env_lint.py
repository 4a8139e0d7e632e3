"""Lint rules at the start of a run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ddp_trainer.launch.env_lint import lint_environment
from tests.support.programs import captured


def rules_of(tmp_path: Path, environ: dict[str, str], *devices: str) -> list[str]:
    for device in devices:
        (tmp_path / device).mkdir(exist_ok=True)
    return [line.partition(":")[0] for line in lint_environment(environ, nodes=2, nproc=2, rdma=tmp_path)]


def test_interfaces_and_devices_of_this_node_are_looked_at(tmp_path: Path) -> None:
    missing = {"GLOO_SOCKET_IFNAME": "none0", "NCCL_IB_HCA": "=mlx5_7"}
    assert rules_of(tmp_path, missing, "mlx5_0") == ["error N48", "error T19"]
    assert rules_of(tmp_path, {"NCCL_IB_HCA": "=mlx5_0"}, "mlx5_0") == []


def test_requested_rdma_that_is_missing_is_an_error_even_without_the_kernels_list(tmp_path: Path) -> None:
    assert rules_of(tmp_path / "none", {"NCCL_NET": "IB"}) == ["error N47"]


@pytest.mark.parametrize(
    ("address", "endpoint", "expected"),
    [
        ("127.16.0.1", "", []),
        ("", "localhost", []),
        ("", "::1", []),
        ("10.0.0.1", "digits-store", ["error N08"]),
        ("", "127.example.com", ["error N08"]),
    ],
)
def test_the_loopback_is_wrong_between_machines(
    address: str, endpoint: str, expected: list[str], tmp_path: Path
) -> None:
    environ = {"GLOO_SOCKET_IFNAME": "lo", "DDP_POD_IP": address}
    lines = lint_environment(environ, nodes=2, nproc=2, endpoint=endpoint, rdma=tmp_path)
    assert [line.partition(":")[0] for line in lines] == expected


def test_rules_can_be_left_out(tmp_path: Path) -> None:
    environ = {"TORCH_DISTRIBUTED_DEBUG": "x"}
    assert rules_of(tmp_path, environ) == ["error T20"]
    assert rules_of(tmp_path, environ | {"DDP_LINT_IGNORE": "T20,N10"}) == []
    assert rules_of(tmp_path, environ | {"DDP_LINT_IGNORE": "all"}) == []


def test_rules_are_not_even_loaded_where_no_variable_concerns_them() -> None:
    program = (
        "import sys; from ddp_trainer.launch.env_lint import lint_environment\n"
        "assert lint_environment({'PATH': '/bin', 'DDP_JOB': 'x'}, nodes=2, nproc=2) == []\n"
        "assert not [name for name in sys.modules if name.startswith('ddp_trainer.common.lint')]"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(("flags", "count"), [([], 1), (["--no-lint"], 0)])
def test_a_start_prints_one_line_per_finding_and_continues(flags: list[str], count: int) -> None:
    command = [sys.executable, "-m", "ddp_trainer", "launch", *flags, "--nproc-per-node", "1", "--no-python", "true"]
    environ = {"PATH": "/usr/bin:/bin", "TORCH_DISTRIBUTED_DEBUG": "x"}
    done = captured(command, env=environ)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("ddp-launch: error T20: TORCH_DISTRIBUTED_DEBUG=x is refused") == count
