"""``kubectl ddp plan``: no cluster, no kubeconfig, no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubectl_ddp.cli.run import run

JOB = """
apiVersion: ddp.dev/v1
kind: Job
module: ddp_trainer
args: [train, --task, text, --data, /data, --model, "gpt:layers=6,heads=6,width=384", --global-batch, "32"]
nnodes: 2
gpus: 4
gpuType: NVIDIA-A100-SXM4-80GB
"""


def documented(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert run(["plan", *words, "-o", "json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_the_best_layout_comes_first_with_its_memory_and_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--model", "llama-7b"]) == 0
    told = capsys.readouterr().out
    head, _, header, first, *_ = told.splitlines()
    shape = "32 layers, width 4096, 32 heads, vocabulary 32000, rotated positions"
    assert head.startswith(f"6.74B parameters ({shape}), 64 samples of 2048")
    assert header.split()[:4] == ["LAYOUT", "MICRO-BATCH", "RECOMPUTES", "MEMORY"]
    assert first.startswith("shard=8 ")
    assert "replicate=8   Takes" in told


def test_a_plan_has_six_columns_and_a_wide_one_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--model", "llama-7b"]) == 0
    header = capsys.readouterr().out.splitlines()[2]
    assert header.split() == ["LAYOUT", "MICRO-BATCH", "RECOMPUTES", "MEMORY", "STEP", "WHY"]
    assert run(["plan", "--model", "llama-7b", "-o", "wide"]) == 0
    _, _, header, row, *_ = capsys.readouterr().out.splitlines()
    assert {"LAYOUT", "WEIGHTS", "ACTIVATIONS", "SENT", "MFU", "BUBBLE"} < set(header.split())
    assert row[header.index("SENT PER STEP") :].startswith("shard ")


def test_json_and_yaml_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    document = documented(capsys, "--params", "1.3B", "--nnodes", "2")
    assert (document["apiVersion"], document["kind"], document["best"]) == ("cli.ddp/v1", "Plan", "replicate=16")
    assert run(["plan", "--params", "1.3B", "--nnodes", "2", "-o", "yaml"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == document
    fitting = document["fitting"]
    memory = fitting[0]["memory"]
    parts = [memory[f"{name}_bytes"] for name in ("weights", "gradients", "optimizer", "activations")]
    assert sum(parts) == pytest.approx(memory["total_bytes"], abs=4)


def test_a_job_file_says_model_step_and_machines_and_flags_change_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    document = documented(capsys, "-f", str(file))
    assert document["model"]["layers"] == 6
    assert document["work"]["global_batch"] == 32
    machine = document["machine"]
    assert (machine["gpu"], machine["nodes"], machine["gpus_per_node"]) == ("A100-80GB", 2, 4)
    changed = documented(capsys, "-f", str(file), "--gpu-type", "H200", "--global-batch", "64")
    assert changed["machine"]["gpu"] == "H200"
    assert changed["work"]["global_batch"] == 64


def test_what_is_computed_again_is_asked_for_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    whole = documented(capsys, "--params", "1.3B", "--activation-checkpointing", "on")
    cheap = documented(capsys, "--params", "1.3B", "--recompute", "cheap")
    third = documented(capsys, "--params", "1.3B", "--recompute", "3")
    for document, word in ((whole, "all"), (cheap, "cheap"), (third, "3")):
        assert document["work"]["recompute"] == word
        assert {way["recompute"] for way in document["fitting"]} == {word}
    kept = documented(capsys, "--params", "1.3B", "--activation-checkpointing", "off")
    assert {way["recompute"] for way in kept["fitting"]} == {None}


def test_where_nothing_fits_the_plan_is_shown_and_the_exit_code_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--model", "gpt3-175b", "-o", "json"]) == 4
    shown = capsys.readouterr()
    assert json.loads(shown.out)["best"] is None
    assert "No layout fits a model of 175B parameters on 8 H100 on one node" in shown.err
    assert "--nnodes" in shown.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "No model is named."),
        ("--params many", "--params is 'many'"),
        ("--params 7B --model gpt2", "--params and --model exclude each other."),
        ("--model gpt4", "There is no model 'gpt4'"),
        ("--layers 4", "A shape needs --layers, --hidden and --heads."),
        ("--layers 4 --hidden 65 --heads 4", "--hidden 65 cannot be divided among --heads 4."),
        ("--layers 0 --hidden 64 --heads 4", "--layers is 0."),
        ("--layers 4 --hidden 64 --heads 4 --kv-heads 3", "--heads 4 cannot share --kv-heads 3."),
        ("--params 7B --seq 0", "--seq is 0."),
        ("--params 7B --micro-batch 9 --global-batch 8", "--micro-batch 9 is more than the --global-batch 8"),
        ("--params 7B --efficiency nan", "--efficiency is nan."),
        ("--params 7B --gpu-type H1000", "--gpu-type is 'H1000'"),
        ("--params 7B --gpus 0", "--gpus is 0."),
        ("--params 7B --nnodes 100000", "are 800000 GPUs."),
        ("--params 7B --reserve 100Gi", "--reserve 100Gi leaves nothing of a H100."),
        ("--params 7B --reserve much", "--reserve: 'much' is not an amount of memory."),
        ("--params 7B --recompute none", "--recompute is 'none'."),
        ("--params 7B --recompute 2 --activation-checkpointing off", "--recompute 2 and --activation-checkpointing of"),
        ("--params 7B --network 0", "--network is 0.0."),
        ("--params 7B --layers 0", "--layers is 0."),
        ("--params 7B --hidden 64", "--params and --hidden exclude each other."),
        ("--params 7B --hidden 0", "--hidden is 0."),
        ("--params 7B --kv-heads 0", "--kv-heads is 0."),
        ("--params 7B --ffn 0", "--ffn is 0."),
        ("--layers 0 --hidden 0 --heads 0", "--layers is 0."),
        ("--params 7B --gpu-type=", "--gpu-type is '', and the figures of such a GPU are not known."),
        ("--params 7B --seq 10000000000", "--seq is 10000000000."),
        ("--params 7B --seq -5000000000", "--seq is -5000000000."),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(words: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", *words.split()]) == 2
    assert sentence in capsys.readouterr().err


def test_a_number_of_parameters_is_kept_however_long_samples_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--params", "7B", "--seq", "131072", "--nnodes", "4"]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("7.05B parameters (34 layers, width 4096,")
    assert "vocabulary 50257, rotated positions), 256 samples of 131072 tokens" in told.out
    assert not told.err or "positions" not in told.err


def test_a_model_that_gets_more_positions_than_it_has_is_told_with_what_they_take(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["plan", "--model", "gpt2", "--seq", "100000", "--recompute", "all", "--global-batch", "8"]) == 0
    told = capsys.readouterr()
    assert "--seq 100000 is more than the model's 1024 positions: they are taken to be 100000, with 76M" in told.err
    assert "vocabulary 50257, 100000 positions), 8 samples of 100000 tokens" in told.out
    assert run(["plan", "--model", "gpt2", "--seq", "1024"]) == 0
    told = capsys.readouterr()
    assert "1024 positions)" in told.out
    assert "more than" not in told.err


def test_longer_samples_of_a_job_give_its_model_more_positions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    assert run(["plan", "-f", str(file), "--seq", "512", "-o", "json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["model"]["window"] == 512
    assert "--seq 512 is more than the model's 128 positions" in told.err


def test_it_loads_neither_torch_nor_the_clients_of_a_cluster() -> None:
    code = (
        "import sys\n"
        "from kubectl_ddp.cli.run import run\n"
        "assert run(['plan', '--params', '7B', '-o', 'json']) == 0\n"
        "print([name for name in ('torch', 'kubernetes', 'jinja2', 'numpy') if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"


def test_what_an_option_of_the_job_does_not_go_with_is_not_offered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB.replace('"32"]', '"32", --level, exact]'))
    document = documented(capsys, "-f", str(file))
    assert [way["layout"] for way in document["fitting"]] == ["replicate=8"]
    assert "--level exact does not go with --parallel shard=8: gradients are" in str(document["refused"])
    assert run(["plan", "-f", str(file)]) == 0
    assert "--level exact does not go with --parallel " in capsys.readouterr().out
    assert len(documented(capsys, "-f", str(file), "--params", "1.3B")["fitting"]) > 1, "of the job, machines alone"
