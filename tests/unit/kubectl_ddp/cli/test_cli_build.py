"""``submit --build``: which tool runs with which words, and which image the job gets.

The tools are executables on PATH that record their arguments and write the files that the real ones write.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from kubectl_ddp.cli.run import run
from tests.support.api_server import ApiServer

ID: Final = "0123456789abcdef" * 4
DIGEST: Final = "sha256:" + "d" * 64
REPOSITORY: Final = "registry.example.com/team/train"
TOOL: Final = f"""\
#!{sys.executable} -IS
import json, pathlib, sys
here = pathlib.Path({{folder!r}})
with (here / "calls").open("a") as calls:
    print(json.dumps([pathlib.Path(sys.argv[0]).name, *sys.argv[1:]]), file=calls)
print("output of the tool")
for word in sys.argv:
    flag, _, value = word.partition("=")
    if flag in ("--iidfile", "--digestfile"):
        pathlib.Path(value).write_text({{written!r}}[flag])
if sys.argv[1] == "image":
    print("example.com/other@sha256:0", "{REPOSITORY}@{DIGEST}", sep=chr(10))
sys.exit({{codes!r}}.get(sys.argv[1], 0))
"""
JOB: Final = "/apis/kubeflow.org/v1/namespaces/team/pytorchjobs/mine"

Install = Callable[..., None]


@pytest.fixture(autouse=True)
def no_tools(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Dockerfile, and no tool on PATH."""
    (workdir / "bin").mkdir()
    (workdir / "Dockerfile").write_text("FROM scratch\n")
    monkeypatch.setenv("PATH", str(workdir / "bin"))


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """Put a tool on PATH; ``push=3`` makes its ``push`` fail with that code."""

    def put(name: str, **codes: int) -> None:
        written = {"--iidfile": f"sha256:{ID}", "--digestfile": DIGEST}
        text = TOOL.format(folder=str(tmp_path), written=written, codes=codes)
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)

    return put


def calls() -> list[list[str]]:
    """Name and arguments of each call of a tool, without the paths of its result files."""
    recorded = [json.loads(line) for line in Path("calls").read_text().splitlines()]
    return [[word for word in words if not word.startswith(("--iidfile", "--digestfile"))] for words in recorded]


def submit(*words: str) -> int:
    return run(["submit", "train.py", "--name", "mine", "--preflight", "off", "--engine", "pytorchjob", *words])


def image_of(cluster: ApiServer) -> str:
    template = cluster.objects[JOB]["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    image: str = template["spec"]["containers"][0]["image"]
    return image


@pytest.mark.parametrize(("tool", "ignored"), [("docker", "podman"), ("podman", "buildah"), ("buildah", "kaniko")])
def test_the_first_tool_builds_tags_and_pushes_and_the_job_gets_the_digest(
    cluster: ApiServer, install: Install, capfd: pytest.CaptureFixture[str], tool: str, ignored: str
) -> None:
    install(tool)
    install(ignored)
    assert submit("--image", REPOSITORY, "--build", "-o", "name") == 0
    tagged = f"{REPOSITORY}:{ID[:12]}"
    inspect = [["docker", "image", "inspect", "--format={{range .RepoDigests}}{{println .}}{{end}}", tagged]] * (
        tool == "docker"
    )
    cached = ["--layers"] * (tool == "buildah")
    assert calls() == [[tool, "build", *cached, "."], [tool, "tag", ID, tagged], [tool, "push", tagged], *inspect]
    assert image_of(cluster) == f"{tagged}@{DIGEST}"
    output = capfd.readouterr()
    assert output.out == "pytorchjob.kubeflow.org/mine\n"
    assert "output of the tool" in output.err


def test_a_tag_that_is_given_is_pushed_to(cluster: ApiServer, install: Install) -> None:
    install("buildah")
    assert submit("--image", f"{REPOSITORY}:1", "--build") == 0
    assert calls()[-1] == ["buildah", "push", f"{REPOSITORY}:1"]
    assert image_of(cluster) == f"{REPOSITORY}:1@{DIGEST}"


def test_the_directory_is_that_of_the_job_file_unless_a_value_names_one(cluster: ApiServer, install: Install) -> None:
    install("podman")
    for name in ("a", "b"):
        Path(name).mkdir()
        shutil.copy("Dockerfile", name)
    Path("a/job.ddp.yaml").write_text(
        f"{{apiVersion: ddp.dev/v1, kind: Job, name: mine, script: ../train.py, image: {REPOSITORY}}}"
    )
    options = ["--preflight", "off", "--engine", "pytorchjob"]
    assert run(["submit", "-f", "a/job.ddp.yaml", "--build", *options]) == 0
    assert run(["submit", "-f", "a/job.ddp.yaml", "--build=b", *options]) == 0
    assert [words for words in calls() if words[1] == "build"] == [["podman", "build", "a"], ["podman", "build", "b"]]


@pytest.mark.parametrize("step", ["build", "tag", "push"])
def test_a_tool_that_fails_ends_the_submission_with_its_exit_code_in_the_sentence(
    cluster: ApiServer, install: Install, capfd: pytest.CaptureFixture[str], step: str
) -> None:
    install("buildah", **{step: 7})
    assert submit("--image", REPOSITORY, "--build") == 1
    assert f"'buildah {step}' ended with exit code 7" in capfd.readouterr().err
    assert JOB not in cluster.objects


@pytest.mark.parametrize(("words", "code", "way_out"), [
    (["--image", REPOSITORY, "--build"], 4, "docker, podman or buildah"),
    (["--image", REPOSITORY, "--build=nowhere"], 3, "init"),
    (["--image", f"{REPOSITORY}@{DIGEST}", "--build"], 2, "--image"),
    (["--build"], 2, "--image"),
    (["--image", REPOSITORY, "--build", "train.py"], 2, "--build=."),
    (["--image", REPOSITORY, "--build", "--local"], 2, "Leave --build out"),
    (["--image", REPOSITORY, "--build", "--timeout", "5"], 2, "--wait"),
])  # fmt: skip
def test_what_cannot_be_built_is_refused_with_the_way_out(
    cluster: ApiServer, capfd: pytest.CaptureFixture[str], words: list[str], code: int, way_out: str
) -> None:
    assert submit(*words) == code
    assert way_out in capfd.readouterr().err
    assert JOB not in cluster.objects


def test_a_shared_default_is_kept(cluster: ApiServer, install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("docker")
    monkeypatch.setenv("KUBECTL_DDP_IMAGE", f"{REPOSITORY}:1")
    assert submit("--build") == 2
    assert not Path("calls").exists()


def test_a_dry_run_builds_nothing(cluster: ApiServer, install: Install) -> None:
    install("docker")
    assert submit("--image", REPOSITORY, "--build", "--dry-run") == 0
    assert not Path("calls").exists()
