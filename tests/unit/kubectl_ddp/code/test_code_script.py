"""Imports of a script: modules that are sent with it, and warnings."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubectl_ddp.code.script import launcher_warnings, read_script, script_warnings, sibling_modules
from kubectl_ddp.errors import UsageError
from kubectl_ddp.spec.launcher_command import LAUNCHERS
from tests.support.archives import names_in


@pytest.mark.parametrize(
    ("text", "is_warned"),
    [
        ("import horovod.torch as hvd\n", True),
        ("import torch, horovod\n", True),
        ("def main():\n    from horovod import torch\n", True),
        ("# import horovod\nWORD = 'horovod'\n", False),
        ("from .horovod import rank\n", False),
        ("import horovod as\n", False),
    ],
)
def test_an_import_of_horovod_is_warned_of_with_the_page(text: str, is_warned: bool, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    pages = [found.hint.split()[0] for found in script_warnings(script)]
    assert pages == ["docs/howto/migrate-horovod.md"] * is_warned
    assert all((Path(__file__).parents[4] / page).is_file() for page in pages)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script that imports a package and a module beside it, which imports another; and files that it does not."""
    empty = ("shapes.py", "mymodel/__init__.py", "mymodel/deep/layer.py", "mymodel/weights.bin", "other.py", "data.csv")
    files = {
        "train.py": "import os, mymodel.parts\nfrom blocks import Block\nimport torch, absent\n",
        "blocks.py": "import shapes, train\n",
        **dict.fromkeys(empty, ""),
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path / "train.py"


def test_modules_beside_a_script_travel_and_data_does_not(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = read_script(str(script))
    assert names_in(code) == ["blocks.py", "mymodel/__init__.py", "mymodel/deep/layer.py", "shapes.py", "train.py"]
    assert code.files == 5
    monkeypatch.chdir(script.parent)
    assert read_script("train.py") == code
    (script.parent / "shapes.py").write_text("key = 'hf_" + "a1B2" * 9 + "'\n")
    with pytest.raises(UsageError, match=r"'shapes\.py' would travel in a ConfigMap, and looks like credentials"):
        read_script("train.py")


def test_a_package_without_an_init_file_is_a_module_beside_a_script_and_a_folder_of_data_is_none(script: Path) -> None:
    script.write_text("import mymodel\n")
    (script.parent / "mymodel" / "__init__.py").rename(script.parent / "mymodel" / "parts.py")
    assert [file.name for file in sibling_modules(script) if file.parent.name == "mymodel"] == ["parts.py"]
    (script.parent / "mymodel" / "parts.py").unlink()
    assert sibling_modules(script) == []
    assert read_script(str(script)).file == "train.py"


@pytest.mark.parametrize(
    ("name", "text", "launcher"),
    [
        ("train.sh", "#!/bin/bash\npython -m torch.distributed.run --nnodes=2 \\\n  t.py\n", "torch.distributed.run"),
        ("train.sh", "exec /opt/bin/torchrun --nnodes $N t.py\n", "torchrun"),
        ("train.sh", "accelerate launch --config c.yaml t.py\n", "accelerate launch"),
        ("train.sh", "# torchrun t.py\npython t.py\n", ""),
        ("train.sh", "torchrun --standalone --nproc-per-node 2 evaluate.py\n", ""),
        ("train.sh", "pip install deepspeed-kernels accelerate\n", ""),
        ("train.py", "import subprocess\nsubprocess.run(['torchrun', '--nproc-per-node=2', 'inner.py'])\n", "torchrun"),
        ("train.py", "import os\nos.system('deepspeed train.py --deepspeed')\n", "deepspeed"),
        ("run.py", "import subprocess\ncmd = ['torchrun', f'--nnodes={N}', 't.py']\nsubprocess.run(cmd)\n", "torchrun"),
        ("run.py", "p.add_argument('--launcher', choices=['deepspeed', 'ddp'])\nsubprocess.run(['ls'])\n", ""),
        ("train.py", "'''Start me with torchrun --nproc-per-node 2 train.py.'''\nimport torch\n", ""),
        ("train.py", "import subprocess\nsubprocess.run(['torchrun', '--standalone', 'evaluate.py'])\n", ""),
    ],
)
def test_a_script_that_starts_ranks_itself_is_warned_of(name: str, text: str, launcher: str, tmp_path: Path) -> None:
    script = tmp_path / name
    script.write_text(text)
    found = list(launcher_warnings(script, LAUNCHERS))
    assert [f"'{script}' starts {launcher}, and the launcher of the job" in str(finding) for finding in found] == (
        [True] if launcher else []
    )
