"""What stays behind is what git would leave out: checked against git itself."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from kubectl_ddp.code import pack
from kubectl_ddp.code.ignore import read, stays_behind
from tests.archives import names_in

PATHS = (
    "train.py", "a.log", "keep.log", "build/x.py", "src/build/y.py", "src/deep/er/z.py", "src/build.py", "docs/a.txt",
    "docs/b/a.txt", "data/raw/one.bin", "data/two.bin", "data/keep/three.bin", "#odd", "!bang", "with space ",
    "src/[x].py", "a1.txt", "ab.txt", "abc/foo/d", "abc/x/foo", "foo/abc",
)  # fmt: skip

CASES = {
    "names at any depth": "*.log\nbuild",
    "brought back": "*.log\n!keep.log",
    "directories only": "build/",
    "tied to the root": "/build\n/data/two.bin",
    "a slash within ties too": "docs/a.txt",
    "two stars before": "**/a.txt",
    "two stars after": "data/**",
    "two stars within": "src/**/z.py\nabc/**/foo",
    "one star stops at a slash": "docs/*.txt",
    "one letter": "a?.txt",
    "classes": "a[0-9].txt\n",
    "no class": "a[!0-9].txt",
    "escapes": "\\#odd\n\\!bang\nwith\\ space\\ \n",
    "a comment and a blank": "# *.py\n\n   \n",
    "not out of a directory that is left out": "data/\n!data/keep/three.bin",
    "out of one whose files are left out": "data/*\n!data/keep",
}


@pytest.mark.parametrize("text", CASES.values(), ids=CASES.keys())
def test_a_pattern_leaves_out_what_git_leaves_out(tmp_path: Path, text: str) -> None:
    if shutil.which("git") is None:
        pytest.skip("git says what is right here, and is not installed.")
    for path in PATHS:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    (tmp_path / ".gitignore").write_text(text)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    listed = subprocess.run(
        ["git", "-C", tmp_path, "ls-files", "-z", "--others", "--exclude-standard"],
        check=True, capture_output=True, text=True, env={"HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"},
    )  # fmt: skip
    assert names_in(pack(str(tmp_path))) == sorted(name for name in listed.stdout.split("\0") if name)


def test_ddpignore_has_the_last_word_and_files_of_directories_count_below_them() -> None:
    patterns = [*read("*.bin"), *read("!weights.bin"), *read("/x.py", "src/")]
    assert stays_behind(patterns, "a/other.bin", is_directory=False)
    assert not stays_behind(patterns, "a/weights.bin", is_directory=False)
    assert stays_behind(patterns, "src/x.py", is_directory=False)
    assert not stays_behind(patterns, "x.py", is_directory=False)
    assert not stays_behind(patterns, "src/deep/x.py", is_directory=False)
