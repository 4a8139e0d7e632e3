"""Warnings about what a script imports."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubectl_ddp.code.script import script_warnings


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
