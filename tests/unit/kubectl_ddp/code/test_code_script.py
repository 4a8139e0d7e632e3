"""Warnings about what a script imports."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubectl_ddp.code.script import left_behind, script_warnings, starts_launchers
from kubectl_ddp.spec.launcher_command import LAUNCHERS


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


def test_modules_beside_a_script_that_travels_alone_are_named(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os, mymodel.parts\nfrom blocks import Block\nimport torch, absent\n")
    (tmp_path / "mymodel").mkdir()
    (tmp_path / "mymodel" / "__init__.py").touch()
    (tmp_path / "blocks.py").touch()
    [found] = left_behind(script)
    assert f"'{script}' imports blocks, mymodel from the files beside it" in str(found)
    assert f"--code {tmp_path}" in str(found.hint)
    (tmp_path / "blocks.py").unlink()
    (tmp_path / "mymodel" / "__init__.py").rename(tmp_path / "mymodel" / "parts.py")  # a namespace package
    assert "imports mymodel from" in "".join(map(str, left_behind(script)))
    (tmp_path / "mymodel" / "parts.py").unlink()
    assert list(left_behind(script)) == []


@pytest.mark.parametrize(
    ("name", "text", "launcher"),
    [
        (
            "train.sh",
            "#!/bin/bash\npython -m torch.distributed.run --nnodes=2 \\\n  t.py\n",
            "torch.distributed.run",
        ),
        ("train.sh", "exec /opt/bin/torchrun --nnodes $N t.py\n", "torchrun"),
        ("train.sh", "accelerate launch --config c.yaml t.py\n", "accelerate launch"),
        ("train.sh", "# torchrun t.py\npython t.py\n", ""),
        ("train.sh", "torchrun --standalone --nproc-per-node 2 evaluate.py\n", ""),
        ("train.sh", "pip install deepspeed-kernels accelerate\n", ""),
        ("train.py", "import subprocess\nsubprocess.run(['torchrun', '--nproc-per-node=2', 'inner.py'])\n", "torchrun"),
        ("train.py", "import os\nos.system('deepspeed train.py --deepspeed')\n", "deepspeed"),
        ("train.sh", "pip install deepspeed accelerate\n", ""),
        ("run.py", "import subprocess\ncmd = ['torchrun', f'--nnodes={N}', 't.py']\nsubprocess.run(cmd)\n", "torchrun"),
        ("run.py", "p.add_argument('--launcher', choices=['deepspeed', 'ddp'])\nsubprocess.run(['ls'])\n", ""),
        ("train.py", "'''Start me with torchrun --nproc-per-node 2 train.py.'''\nimport torch\n", ""),
        ("train.py", "import subprocess\nsubprocess.run(['torchrun', '--standalone', 'evaluate.py'])\n", ""),
    ],
)
def test_a_script_that_starts_ranks_itself_is_warned_of(name: str, text: str, launcher: str, tmp_path: Path) -> None:
    script = tmp_path / name
    script.write_text(text)
    found = list(starts_launchers(script, LAUNCHERS))
    assert [f"'{script}' starts {launcher}, and the launcher of the job" in str(finding) for finding in found] == (
        [True] if launcher else []
    )
