"""``kubectl ddp lint``: the rules on a job that runs nowhere yet."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import yaml

from kubectl_ddp.cli.run import run

JOB = ["lint", "train.py", "--nnodes", "2", "--gpus", "8", "--ignore", "K19"]
LOOPBACK = ["--env", "GLOO_SOCKET_IFNAME=lo"]

BARE = """
apiVersion: v1
kind: Pod
metadata: {name: one}
spec:
  containers:
    - name: train
      image: registry.example.com/train:1
      command: [torchrun, --standalone, --nproc-per-node=2, train.py]
      env: [{name: NCCL_PROTO, value: LL128}, {name: TOKEN, valueFrom: {secretKeyRef: {name: hub, key: token}}}]
      resources: {limits: {nvidia.com/gpu: 2}}
"""


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print(1)\n")


def test_an_error_is_told_with_its_source_and_exits_with_4(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*JOB, "--env", "NCCL_PROTO=LL128", "--env", "NCCL_DEBUG=WARN"]) == 4
    told = capsys.readouterr()
    first, source, hint = told.out.splitlines()
    assert first.startswith("ERROR    NCCL_PROTO N33  NCCL_PROTO=LL128 forces LL128")
    assert source.strip().startswith("https://docs.nvidia.com/")
    assert hint.strip().startswith("→ ")
    assert told.err.startswith("error: train has 1 error.")


@pytest.mark.parametrize(("flags", "code"), [([], 0), (["--strict"], 4), (["--strict", "--ignore", "n04,K19"], 0)])
def test_a_warning_fails_only_where_that_is_asked_for(
    flags: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*JOB, "--env", "NCCL_P2P_DISABLE=1", "--env", "NCCL_DEBUG=WARN", *flags]) == code
    assert (" N04  " in capsys.readouterr().out) == ("--ignore" not in flags)


def test_json_has_every_finding_with_rule_severity_variable_hint_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*JOB, "--env", "NCCL_ASYNC_ERROR_HANDLING=1", "--env", "NCCL_IB_DISABLE=0", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["apiVersion"], document["kind"], document["job"]) == ("cli.ddp/v1", "Lint", "train")
    assert document["counts"] == {"warning": 1, "info": 1}
    renamed, needless = document["findings"]
    assert (renamed["rule"], renamed["severity"], renamed["subject"]) == ("T03", "warning", "NCCL_ASYNC_ERROR_HANDLING")
    assert renamed["hint"] == "Rename it to TORCH_NCCL_ASYNC_ERROR_HANDLING=1."
    assert renamed["evidence"][0].startswith("https://")
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
        "error: --ignore: 'N99' is not a rule. Rules are listed in docs/lint.md and lint-pods.md.\n"
    )


def test_a_manifest_of_anybody_is_looked_at_with_its_pods_and_variables(capsys: pytest.CaptureFixture[str]) -> None:
    Path("pod.yaml").write_text(BARE)
    assert run(["lint", "pod.yaml"]) == 4
    told = capsys.readouterr()
    assert "ERROR    Pod/one K01  Container train has 2 GPUs and no volume at /dev/shm" in told.out
    assert "ERROR    Pod/one N33  NCCL_PROTO=LL128 forces LL128" in told.out
    assert told.err.splitlines() == [
        "warning: The values of TOKEN are kept in the cluster, and were not looked at.",
        "error: pod.yaml has 2 errors. Apply the listed fixes.",
    ]


def test_json_says_which_pods_are_meant(capsys: pytest.CaptureFixture[str]) -> None:
    Path("pod.json").write_text(json.dumps(yaml.safe_load(BARE)))
    assert run(["lint", "pod.json", "-o", "json", "--ignore", "N33,N40"]) == 4
    document = json.loads(capsys.readouterr().out)
    assert (document["job"], document["counts"]["error"]) == ("pod.json", 1)
    first = document["findings"][0]
    assert (first["subject"], first["rule"]) == ("Pod/one", "K01")


def test_what_render_makes_can_be_piped_into_lint(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["render", "train.py", "--nnodes", "2", "--gpus", "8"]) == 0
    rendered = capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(rendered.encode())))
    assert run(["lint", "-", "--strict", "--ignore", "K19"]) == 0
    assert capsys.readouterr() == ("", "Nothing is doubtful.\n")


def test_flags_may_make_pods_that_render_warns_of(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--nnodes", "2", "--gpus", "8", "--rdma", "rdma/ib=8", "--env", "NCCL_IB_DISABLE=1"]
    assert run(["render", "train.py", *flags]) == 0
    assert "warning: PyTorchJob/train Worker K36: NCCL_IB_DISABLE=1 leaves rdma/ib idle" in capsys.readouterr().err
    assert run(["render", "train.py", *flags, "--env", "DDP_LINT_IGNORE=K36"]) == 0
    assert "K36" not in capsys.readouterr().err


def test_the_loopback_is_right_where_all_nodes_are_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    job = ["lint", "train.py", "--nnodes", "2", *LOOPBACK]
    assert run(job) == 4
    assert " N08  " in capsys.readouterr().out
    assert run([*job, "--local"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("name", "text", "code", "sentence"),
    [
        ("nope.py", None, 3, "There is no script 'nope.py'."),
        ("nope.yaml", None, 3, "There is no file 'nope.yaml'."),
        ("notes.txt", "Monday: train", 2, "'notes.txt' is neither a Python script nor a manifest. lint reads scripts"),
        ("a.yaml", "a: [", 2, "a.yaml line 1 is not valid YAML: expected the node content"),
        ("a.yaml", "when: 2026-13-45", 2, "a.yaml is not valid YAML: month must be in 1..12"),
        ("a.yaml", "[" * 5000, 2, "a.yaml is nested too deeply to be a manifest."),
        ("a.yaml", "", 2, "a.yaml holds no Kubernetes objects: apiVersion and kind are missing."),
        ("a.yaml", "just words", 2, "a.yaml holds no Kubernetes objects"),
        ("a.json", "[1]", 2, "a.json holds no Kubernetes objects"),
        ("a.yaml", "apiVersion: v1\nkind: ConfigMap", 2, "a.yaml holds nothing that makes pods, only ConfigMap."),
        (
            "a.yaml",
            "apiVersion: ddp.dev/v1alpha1\nkind: DDPJob\nspec: {node: 2}",
            2,
            "a.yaml line 3: a job has no key 'node'.",
        ),
    ],
)
def test_a_file_that_lint_cannot_read_gets_one_sentence(
    name: str, text: str | None, code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        Path(name).write_text(text)
    assert run(["lint", name]) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"error: {sentence}")
    assert told.err.count("\n") == 1


def test_flags_of_a_job_do_not_go_with_a_manifest(capsys: pytest.CaptureFixture[str]) -> None:
    Path("pod.yaml").write_text(BARE)
    assert run(["lint", "pod.yaml", "--gpus", "3"]) == 2
    assert "pod.yaml is a manifest, to which the flags of a job add nothing. Leave them out." in capsys.readouterr().err


def test_a_train_job_without_its_runtime_is_said_not_to_be_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    Path("both.yaml").write_text(f"""{BARE}---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {{name: tune}}
spec: {{runtimeRef: {{name: torch-distributed}}}}
""")
    assert run(["lint", "both.yaml", "--ignore", "all"]) == 0
    assert (
        "WARNING    The pods of TrainJob/tune are in its runtime, which is not in both.yaml" in capsys.readouterr().out
    )
    assert run(["lint", "both.yaml", "--ignore", "all", "--strict"]) == 4


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (["--code", ".", "--command", "bash train.sh"], "'train.sh' starts torchrun"),
        (["--command", "bash -c 'cd x; torchrun t.py'"], "The command starts torchrun"),
    ],
)
def test_what_submit_warns_of_in_a_program_lint_finds_too(
    program: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("train.sh").write_text("torchrun --nnodes $N train.py\n")
    assert run(["lint", *program, "--image", "example.com/a:1"]) == 0
    assert f"WARNING    {told}" in capsys.readouterr().out


def test_lint_prints_what_a_launcher_s_command_becomes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lint", "--command", "torchrun --nproc-per-node 2 train.py", "--image", "example.com/a:1"]) == 0
    assert capsys.readouterr().err.startswith("The command of torchrun becomes nproc 2, script train.py.")
