"""``kubectl ddp presets``, and fabrics in the output of other commands."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kubectl_ddp.fabrics.catalog import fabrics
from kubectl_ddp.spec.fields import PRESETS
from tests.support.command_line import CommandLine

JOB = ["--module", "a", "--nnodes", "2", "--gpus", "8"]


def test_all_presets_and_fabrics_are_listed(cli: CommandLine) -> None:
    head, *rows = cli("presets").out.splitlines()
    assert head.split() == ["NAME", "TYPE", "SUMMARY"]
    assert [row.split()[:2] for row in rows] == [
        *([name, "preset"] for name in PRESETS),
        *([name, "fabric"] for name in fabrics()),
    ]


def test_what_is_set_is_told_apart_from_what_is_left_to_the_site(cli: CommandLine) -> None:
    sets, leaves = cli("presets", "roce").out.split("Leaves to the site and to the pod:")
    assert "env.NCCL_IB_GID_INDEX: 3   (NCCL before 2.21)" in sets
    assert "env.NCCL_IB_TC" in leaves
    assert "rdma: vpc.amazonaws.com/efa=32   (on p5.48xlarge)" in cli("presets", "aws-efa").out


def test_a_name_that_is_none_is_one_sentence(cli: CommandLine) -> None:
    told = cli.refused("presets", "aws-efs", codes=(3,))
    assert told == "error: There is no preset or fabric 'aws-efs'. Did you mean 'aws-efa'?\n"


def test_render_explains_every_value_of_the_fabric_and_what_it_needs(cli: CommandLine) -> None:
    machine = "node.kubernetes.io/instance-type=p5.48xlarge"
    table, _, _notes = cli("render", *JOB, "--node-selector", machine, "--explain").out.partition("\n\n")
    rows = {line.split()[0]: line for line in table.splitlines()}
    for key in ("env.NCCL_NET", "rdma", "resource.hugepages-2Mi"):
        assert "  fabric aws-efa: " in rows[key]
        assert "(https://" in rows[key]
    assert "rule nodeSelector: the network of p5.48xlarge" in rows["fabric"]
    document = json.loads(cli("render", *JOB, "--node-selector", machine, "--explain", "-o", "json").out)
    [field] = [field for field in document["fields"] if field["field"] == "resource.hugepages-2Mi"]
    assert (field["value"], field["from"], field["place"]) == ("5120Mi", "fabric", "aws-efa")
    assert any("EFA installer" in note for note in document["notes"])


def test_variables_of_the_user_are_checked_with_those_of_the_fabric(cli: CommandLine) -> None:
    job = ["render", *JOB, "--fabric", "ib", "--rdma", "rdma/ib=8", "--env", "NCCL_IB_DISABLE=1"]
    assert "warning: NCCL_IB_DISABLE N45: " in cli(*job).err
    right = cli("render", *JOB, "--fabric", "oci-roce", "--rdma", "nvidia.com/rdma-vf=16")
    assert not re.search(r" [NT]\d\d: ", right.err)


@pytest.mark.parametrize("fabric", ["aws-efa", "gb200-mnnvl+gcp-gib"])
def test_on_this_machine_the_fabric_is_left_aside(
    fabric: str, cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    devices = ["--rdma", "vpc.amazonaws.com/efa=32"] if fabric == "aws-efa" else []
    output = cli("render", *JOB, "--fabric", fabric, *devices, "--env", "A=1", "--local")
    assert f"warning: The fabric {fabric} is ignored with --local" in output.err
    assert "name: NCCL_NET" not in output.out
    assert "hugepages" not in output.out
    assert "ComputeDomain" not in output.out
    assert "name: A\n" in output.out
    explained = cli("render", *JOB, "--fabric", fabric, *devices, "--local", "--explain").out
    [row] = [line for line in explained.splitlines() if line.startswith("fabric ")]
    assert "rule --local" in row
