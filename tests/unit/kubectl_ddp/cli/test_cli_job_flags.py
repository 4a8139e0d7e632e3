"""submit and render: from the words on the command line to the job, and every mistake on the way."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddp_trainer.common.constants import Annotation
from kubectl_ddp.cli.run import run
from kubectl_ddp.client.submission import check_local
from kubectl_ddp.code.archive import PART_BYTES
from kubectl_ddp.errors import PreflightFailed
from kubectl_ddp.values.parsers import EnvSource, SecretKey
from kubectl_ddp.values.program import Gang
from tests.support.command_line import CommandLine
from tests.support.jobs import a_job
from tests.support.programs import captured

JOB_FILE = """\
apiVersion: ddp.dev/v1alpha1
kind: DDPJob
metadata:
  name: digits
spec:
  module: ddp_trainer
  args: [train, --task, digits]
  nnodes: 1:2
  nproc: 2
"""


@pytest.fixture(autouse=True)
def job_file(workdir: Path) -> None:
    (workdir / "job.yaml").write_text(JOB_FILE)


def rendered(cli: CommandLine, *arguments: str) -> dict[str, Any]:
    """The effective job that ``render`` writes into the root object."""
    root = json.loads(cli("render", "-o", "json", *arguments).out)["items"][0]
    document: dict[str, Any] = json.loads(root["metadata"]["annotations"][Annotation.SPEC])
    return document


def test_code_on_a_claim_is_mounted_and_need_not_be_here(workdir: Path, cli: CommandLine) -> None:
    (workdir / "sub").mkdir()
    job = "apiVersion: ddp.dev/v1\nkind: Job\nname: x\nscript: lib/main.py\ncodeClaim: projects:/vision/\n"
    (workdir / "sub" / "job.yaml").write_text(job)
    for words in (["lib/main.py", "--code-claim", "projects:vision", "--name", "x"], ["-f", "sub/job.yaml"]):
        items = json.loads(cli("render", *words, "-o", "json").out)["items"]
        assert not [item for item in items if item["kind"] == "ConfigMap"]
        pod = items[0]["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
        [container] = pod["containers"]
        assert (container["workingDir"], container["args"][-1]) == (
            "/var/run/ddp-code",
            "/var/run/ddp-code/lib/main.py",
        )
        mount = {"name": "code", "mountPath": "/var/run/ddp-code", "subPath": "vision", "readOnly": True}
        assert mount in container["volumeMounts"]
        assert {"claimName": "projects", "readOnly": True} in [
            volume.get("persistentVolumeClaim") for volume in pod["volumes"]
        ]
    claim = ("--code-claim", "projects:vision")
    assert "no claim 'projects' with code. Send a directory" in cli.refused("render", "x.py", *claim, "--local")
    assert "Keep code or codeClaim" in cli.refused("render", "x.py", *claim, "--code", ".")
    assert "not a path in 'projects:vision'" in cli.refused("render", "../x.py", *claim)
    for wrong in ("projects", "projects:../vision", "projects:"):
        assert "Write 'CLAIM:PATH'" in cli.refused("render", "x.py", "--code-claim", wrong)


def test_code_of_a_job_file_lies_beside_it(workdir: Path, cli: CommandLine) -> None:
    (workdir / "sub").mkdir()
    (workdir / "sub" / "main.py").write_text("")
    (workdir / "sub" / "job.yaml").write_text("apiVersion: ddp.dev/v1\nkind: Job\nname: x\nscript: main.py\ncode: .\n")
    assert rendered(cli, "-f", "sub/job.yaml")["script"] == "main.py"
    assert "There is no script 'train.py' in the code 'sub'" in cli.refused("render", "train.py", "--code", "sub")


def test_a_job_file_becomes_the_job_and_flags_win(cli: CommandLine) -> None:
    found = rendered(cli, "-f", "job.yaml", "--nnodes", "4", "--set", "nproc=1", "--set", "maxRestarts=3")
    assert (found["name"], found["nnodes"], found["nproc"], found["maxRestarts"]) == ("digits", "4", 1, 3)
    assert found["args"] == ["train", "--task", "digits"]


def test_no_words_after_the_dashes_means_no_arguments(cli: CommandLine) -> None:
    assert "args" not in rendered(cli, "-f", "job.yaml", "--")


def test_a_job_file_comes_from_stdin_too(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(JOB_FILE.encode())))
    assert rendered(cli, "-f", "-")["name"] == "digits"


@pytest.mark.parametrize(("word", "nodes", "processes"), [("4x8", "4", 8), ("2:8x8", "2:8", 8), ("1x1", "1", 1)])
def test_nodes_x_processes_is_a_word(cli: CommandLine, word: str, nodes: str, processes: int) -> None:
    found = rendered(cli, "train.py", "-j", word)
    assert (found["nnodes"], found["nproc"]) == (nodes, processes)


def test_the_image_of_the_environment_is_the_default(
    workdir: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECTL_DDP_IMAGE", "mine:7")
    assert rendered(cli, str(workdir / "train.py"))["image"] == "mine:7"
    assert rendered(cli, "train.py", "--image", "yours:8")["image"] == "yours:8"


@pytest.mark.parametrize(("arguments", "sentence"), [
    (["train.py", "-j", "8"], "-j: '8' is not nodes x processes. Write it as '4x8'"),
    (["train.py", "-j", "8:2x1"], "-j: '8:2' has a minimum (8) above the maximum (2)."),
    (["train.py", "-j", "1x1", "--nproc", "2"], "-j and --nproc say the same thing. Leave one of them out."),
    (["train.py", "--module", "a"], "The script 'train.py' and --module exclude each other."),
    (["--module", "a", "--command", "b"], "--module and --command exclude each other."),
], ids=lambda part: " ".join(part)[:60] if isinstance(part, list) else "")  # fmt: skip
def test_a_mistake_is_one_sentence_with_the_value_and_the_way_out(
    workdir: Path, cli: CommandLine, arguments: list[str], sentence: str
) -> None:
    for command in ("render", "submit"):
        assert sentence in cli.refused(command, *arguments)


def test_a_script_that_may_not_be_read_is_refused(workdir: Path) -> None:
    """Render in a separate process, without the privileges of root."""
    (workdir / "train.py").chmod(0)
    workdir.chmod(0o755)
    probe = """
import os, sys
from kubectl_ddp.cli.run import run
run(["render", "-q", "-f", "job.yaml"])  # imports what a lesser user may not reach
os.getuid() or os.setuid(65534)
sys.exit(run(["render", "train.py"]))
"""
    done = captured([sys.executable, "-c", probe], cwd=workdir)
    assert done.returncode == 2
    assert done.stderr.endswith(
        "error: The script 'train.py' cannot be read: Permission denied. Name a file you may read.\n"
    )


@pytest.mark.parametrize(("name", "content", "sentence"), [
    ("large.py", b"#" * (PART_BYTES + 1), f"has {PART_BYTES + 1} bytes, and at most {PART_BYTES} can travel"),
    ("binary.py", b"\xff\x00", "is not UTF-8 text: byte 0 is invalid."),
    ("my train.py", b"", "'my train.py' cannot travel under this name."),
])  # fmt: skip
def test_a_script_that_cannot_travel_is_refused_on_a_cluster_only(
    workdir: Path, cli: CommandLine, name: str, content: bytes, sentence: str
) -> None:
    (workdir / name).write_bytes(content)
    assert sentence in cli.refused("render", name)
    assert run(["render", name, "--local"]) == 0


def test_a_script_stays_here_and_travels_to_a_cluster(workdir: Path, cli: CommandLine) -> None:
    local = json.loads(cli("render", "train.py", "--local", "-o", "json").out)["items"]
    assert "ConfigMap" not in {item["kind"] for item in local}
    assert str(workdir / "train.py") in json.dumps(local[0]["spec"])
    remote = {item["kind"]: item for item in json.loads(cli("render", "train.py", "-o", "json").out)["items"]}
    assert remote["ConfigMap"]["data"] == {"train.py": "print('hello')\n"}


def test_nodes_of_this_machine_share_their_checkpoints(cli: CommandLine) -> None:
    assert rendered(cli, "train.py", "--local")["checkpointClaim"] == "checkpoints"
    assert rendered(cli, "train.py", "--local", "--checkpoint-claim", "mine")["checkpointClaim"] == "mine"
    assert "checkpointClaim" not in rendered(cli, "train.py")


def test_render_prints_yaml_and_the_same_each_time_but_for_the_secret(cli: CommandLine) -> None:
    texts = [cli("render", "-f", "job.yaml").out for _ in range(2)]
    assert texts[0] != texts[1]
    assert without_secret(texts[0]) == without_secret(texts[1])
    kinds = [item["kind"] for item in yaml.safe_load_all(texts[0])]
    assert kinds == ["PyTorchJob", "Secret", "Job", "Service", "NetworkPolicy", "PodMonitor"]


def without_secret(printed: str) -> str:
    return re.sub("[0-9a-f]{64}", "SECRET", printed)


def test_explain_says_where_each_value_came_from(cli: CommandLine) -> None:
    printed = cli("render", "-f", "job.yaml", "--nproc", "1", "--set", "ttl=1h", "--explain").out
    table = printed.partition("\n\n")[0]
    rows = {line.split()[0]: " ".join(line.split()[2:]) for line in table.splitlines()}
    assert rows["nnodes"] == "job.yaml line 8"
    assert rows["nproc"] == "--nproc"
    assert rows["ttl"] == "--set ttl"
    assert rows["cpu"] == "rule nproc: one core per process"
    assert rows["env.NVIDIA_VISIBLE_DEVICES"].startswith("preset cpu-gloo: ")
    assert rows["maxRestarts"] == "default"
    assert "nnodes 1:2 may be below a majority" in printed


def test_warnings_are_messages_and_not_data(cli: CommandLine) -> None:
    output = cli("render", "train.py", "--image", "train:latest")
    assert "warning: The image 'train:latest' may be another one on each node" in output.err
    assert "warning" not in output.out
    assert cli("render", "train.py", "--image", "train:latest", "-q").err == ""


def test_render_warns_of_variables_that_cannot_work_in_the_job(cli: CommandLine) -> None:
    job = ["render", "train.py", "--image", "example.com/a:1", "--nnodes", "2", "--env", "GLOO_SOCKET_IFNAME=lo"]
    assert "warning: GLOO_SOCKET_IFNAME N08: " in cli(*job).err
    for right in (["--env", "DDP_LINT_IGNORE=N08"], ["--local"]):  # the loopback reaches all nodes of one machine
        assert "N08" not in cli(*job, *right).err


@pytest.mark.parametrize("form", [["--dry-run"], ["--dry-run=client"], ["--dry-run", "client"]], ids=" ".join)
def test_a_bare_dry_run_means_client_and_takes_no_word(cli: CommandLine, form: list[str]) -> None:
    printed = cli("submit", *form, "train.py", "--name", "t", "-o", "name").out
    without_digests = re.sub(r"-[0-9a-f]{10}$", "", printed, flags=re.MULTILINE)
    assert without_digests.splitlines()[:3] == ["pytorchjob.kubeflow.org/t", "secret/t-run", "configmap/t-code"]


def test_a_dry_run_prints_what_render_prints(cli: CommandLine) -> None:
    plain = cli("render", "-f", "job.yaml").out
    assert without_secret(cli("submit", "-f", "job.yaml", "--dry-run", "-o", "yaml").out) == without_secret(plain)


def test_a_dry_run_on_a_server_needs_one(cli: CommandLine) -> None:
    report = cli.refused("submit", "-f", "job.yaml", "--dry-run=server", "--local")
    assert "--dry-run=server asks a cluster" in report


def test_a_secret_must_be_exported_where_there_are_no_secrets() -> None:
    spec = a_job(secret_env={"TOKEN": SecretKey("hub", "token")})
    with pytest.raises(PreflightFailed, match=r"TOKEN is kept in the Secret 'hub:token'.* Export TOKEN in this shell"):
        check_local(spec, {})
    assert check_local(spec, {"TOKEN": "x"}) == []


def test_what_means_nothing_on_one_machine_is_said() -> None:
    report = check_local(a_job(gang=Gang.VOLCANO, env_from=(EnvSource("secret", "s"),)), {})
    assert len(report) == 2
    assert "secret/s" in report[0]
    assert "gang" in report[1]


def test_a_script_that_is_not_there_is_as_a_job_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert [run(["render", *named]) for named in (["nope.py"], ["-f", "nope.yaml"])] == [3, 3]
    assert capsys.readouterr().err.startswith("error: There is no script 'nope.py'.")


@pytest.mark.parametrize("command", [["render"], ["submit", "--dry-run=client"]], ids=" ".join)
def test_an_image_that_no_registry_serves_is_warned_of_where_a_cluster_is_meant(
    cli: CommandLine, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = cli(*command, "train.py", "--name", "t", "--gpus", "8").err
    assert all(word in errors for word in ("warning: ", "'ddp-trainer:", "--image", "$KUBECTL_DDP_IMAGE"))
    for words in (["--local"], ["--image", "registry.example.com/ddp-trainer:1"], ["--image", "python:3.12"]):
        assert "registry serves" not in cli(*command, "train.py", "--name", "t", *words).err
    monkeypatch.setenv("KUBECTL_DDP_IMAGE", "registry.example.com/ddp-trainer:1")
    assert "registry serves" not in cli(*command, "train.py", "--name", "t").err
