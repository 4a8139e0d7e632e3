"""``kubectl ddp lint``: the rules on a job that runs nowhere yet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kubectl_ddp.cli.run import run

JOB = ["lint", "train.py", "--nnodes", "2", "--gpus", "8"]


def test_an_error_is_told_with_its_source_and_exits_with_4(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*JOB, "--env", "NCCL_PROTO=LL128", "--env", "NCCL_DEBUG=WARN"]) == 4
    told = capsys.readouterr()
    first, second = told.out.splitlines()
    assert first.startswith("error N33: NCCL_PROTO=LL128 forces LL128")
    assert second.strip().startswith("https://docs.nvidia.com/")
    assert told.err == "error: The environment of train has 1 error. Each line says what to do.\n"


@pytest.mark.parametrize(("flags", "code"), [([], 0), (["--strict"], 4), (["--strict", "--ignore", "n04"], 0)])
def test_a_warning_fails_only_where_that_is_asked_for(
    flags: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*JOB, "--env", "NCCL_P2P_DISABLE=1", "--env", "NCCL_DEBUG=WARN", *flags]) == code
    assert ("warning N04" in capsys.readouterr().out) == ("--ignore" not in flags)


def test_json_has_every_finding_with_rule_severity_variable_fix_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*JOB, "--env", "NCCL_ASYNC_ERROR_HANDLING=1", "--env", "NCCL_IB_SL=0", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["apiVersion"], document["kind"], document["job"]) == ("cli.ddp/v1", "Lint", "train")
    assert document["counts"] == {"warning": 1, "info": 1}
    renamed, needless = document["findings"]
    assert (renamed["rule"], renamed["severity"], renamed["name"]) == ("T03", "warning", "NCCL_ASYNC_ERROR_HANDLING")
    assert renamed["fix"] == "Rename it to TORCH_NCCL_ASYNC_ERROR_HANDLING=1."
    assert needless["rule"] == "N30"


def test_what_a_job_leaves_out_is_left_out_here_and_in_its_pods(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.yaml"
    head = "apiVersion: ddp.dev/v1\nkind: Job\nname: j\nscript: train.py\nnnodes: 2\nnproc: 1\n"
    file.write_text(f"{head}env:\n  NCCL_PROTO: LL128\n  DDP_LINT_IGNORE: N33\n")
    assert run(["lint", "-f", str(file)]) == 0
    assert capsys.readouterr().out == ""


def test_what_stays_in_the_cluster_is_said_not_to_be_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lint", "train.py", "--secret-env", "NCCL_PROTO=tuning:proto", "--env-from", "configmap/nccl"]) == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert "The values of NCCL_PROTO, configmap/nccl are kept in the cluster, and were not looked at." in told.err
    assert "Nothing is doubtful." in told.err


def test_what_only_a_node_can_tell_is_not_claimed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*JOB, "--env", "NCCL_SOCKET_IFNAME=none0", "--env", "NCCL_NET=IB", "--env", "NCCL_DEBUG=WARN"]) == 0
    assert capsys.readouterr().out == ""


def test_a_rule_that_does_not_exist_is_a_wrong_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*JOB, "--ignore", "N99"]) == 2
    assert capsys.readouterr().err == (
        "error: --ignore names 'N99', which is no rule. Rules are listed in docs/lint.md.\n"
    )
