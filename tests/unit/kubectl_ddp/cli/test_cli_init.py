"""``init`` writes files that ``submit`` takes, asks on a terminal, and names missing flags elsewhere."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Final

import pytest

from kubectl_ddp.cli.run import run
from tests.support.command_line import CommandLine
from tests.support.terminals import Typing

IMAGE: Final = "registry.example.com/team/train"
SIZE: Final = ("--nnodes", "2", "--gpus", "8")


@pytest.fixture(autouse=True)
def scripts(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory with one script that uses torch, and no terminal."""
    (workdir / "train.py").write_text("import torch\n")
    (workdir / "download.py").write_text("print()\n")
    monkeypatch.setattr("sys.stdin", io.StringIO())


def init(*words: str) -> int:
    return run(["init", "--image", IMAGE, *words])


def test_flags_and_the_only_script_with_torch_make_a_job_that_submit_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert init(*SIZE) == 0
    assert capsys.readouterr().out.split() == ["train.ddp.yaml", "job.schema.json", "Dockerfile"]
    lines = [line.strip() for line in Path("train.ddp.yaml").read_text().splitlines()]
    assert lines[0] == "# yaml-language-server: $schema=job.schema.json"
    assert {"name: train", 'script: "train.py"', f"image: {IMAGE}", "nnodes: 2", "gpus: 8"} <= set(lines)
    assert run(["submit", "-f", "train.ddp.yaml", "--dry-run=client"]) == 0


def test_a_name_that_submit_refuses_is_refused_and_no_folder_writes_a_key(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path("a\nimage: evil")
    folder.mkdir()
    for script in (Path("train\nimage: evil.py"), folder / "train.py"):
        script.write_text("import torch\n")
    assert init("train\nimage: evil.py", "--name", "x", *SIZE) == 2
    assert "Rename it" in capsys.readouterr().err
    assert init(str(folder / "train.py"), "--name", "x", *SIZE) == 0
    keys = [line for line in Path("x.ddp.yaml").read_text().splitlines() if line.strip().startswith("image")]
    assert keys == [f"  image: {IMAGE}"]


def test_answers_on_a_terminal_take_the_place_of_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Typing(f"\n{IMAGE}\n2:4x0\n"))
    assert run(["init"]) == 0
    assert {'script: "train.py"', f"image: {IMAGE}", "nnodes: 2:4", "nproc: 1"} <= {
        line.strip() for line in Path("train.ddp.yaml").read_text().splitlines()
    }
    assert run(["submit", "-f", "train.ddp.yaml", "--dry-run=client"]) == 0


def test_without_a_terminal_each_missing_flag_is_named(cli: CommandLine) -> None:
    Path("evaluate.py").write_text("import torch\n")
    errors = cli("init", code=2).err
    assert all(word in errors for word in ("SCRIPT", "--image", "--nnodes", "--gpus"))
    assert not Path("Dockerfile").exists()


@pytest.mark.parametrize(
    ("flag", "value"), [("--gpus", "many"), ("--nnodes", "4:2:1"), ("--name", "A b"), ("--base", "-")]
)
def test_a_bad_value_is_refused_with_its_flag(flag: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert init("train.py", *SIZE, flag, value) == 2
    assert flag in capsys.readouterr().err
    assert not Path("Dockerfile").exists()


def test_files_that_exist_are_kept_unless_forced() -> None:
    Path("Dockerfile").write_text("FROM mine\n")
    assert init(*SIZE) == 0
    assert Path("Dockerfile").read_text() == "FROM mine\n"
    Path("train.ddp.yaml").write_text("mine\n")
    assert init(*SIZE) == 2
    assert Path("train.ddp.yaml").read_text() == "mine\n"
    assert init(*SIZE, "--force") == 0
    assert "mine" not in Path("train.ddp.yaml").read_text() + Path("Dockerfile").read_text()


def test_the_dockerfile_installs_the_requirements_and_ends_as_the_user_of_the_pods() -> None:
    Path("requirements.txt").write_text("requests\n")
    assert init(*SIZE, "--base", "example.com/base:1") == 0
    text = Path("Dockerfile").read_text().replace("\\\n", "")
    words = [line.split() for line in text.splitlines() if not line.startswith("#")]
    assert [line[0] for line in words] == ["FROM", "USER", "RUN", "USER"]
    assert words[0][1] == "example.com/base:1"
    assert words[3][1] == "65532:65532"


def test_a_directory_is_sent_if_the_script_imports_a_module_beside_it() -> None:
    Path("model.py").write_text("")
    Path("train.py").write_text("import torch\nfrom model import Net\n")
    assert init(*SIZE) == 0
    assert '  code: "."' in Path("train.ddp.yaml").read_text().splitlines()
