"""The packer leaves out the files that git ignores, compared with git itself."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from kubectl_ddp.code import pack
from kubectl_ddp.code.ignore import is_ignored, read
from tests.support.archives import names_in
from tests.support.programs import captured

PATHS = (
    "train.py", "a.log", "keep.log", "build/x.py", "src/build/y.py", "src/deep/er/z.py", "src/build.py", "docs/a.txt",
    "docs/b/a.txt", "data/raw/one.bin", "data/two.bin", "data/keep/three.bin", "#odd", "!bang", "with space ",
    "src/[x].py", "a1.txt", "ab.txt", "abc/foo/d", "abc/x/foo", "foo/abc",
)  # fmt: skip

CASES = {
    "brought back": "*.log\n!keep.log",
    "directories only": "build/",
    "tied to the root": "/build\n/data/two.bin",
    "a slash within ties too": "docs/a.txt",
    "two stars before": "**/a.txt",
    "two stars after": "data/**",
    "two stars within": "src/**/z.py\nabc/**/foo",
    "one star stops at a slash": "docs/*.txt",
    "classes": "a[0-9].txt\n",
    "no class": "a[!0-9].txt",
    "escapes": "\\#odd\n\\!bang\nwith\\ space\\ \n",
    "a comment and a blank": "# *.py\n\n   \n",
    "not out of a directory that is left out": "data/\n!data/keep/three.bin",
    "out of one whose files are left out": "data/*\n!data/keep",
    "a range from high to low": "[z-a]*\n[b-a]?.txt",
    "a bracket that stays open": "a[.txt\n[a\n",
    "classes by name": "[[:alpha:]][[:digit:]].txt\n",
    "a class that there is not": "[[:any:]]*",
    "a bracket of brackets": "src/[[]x].py\n[]a]1.txt",
    "three stars": "src/***/z.py\n***.log",
    "stars that are none of a directory": "/doc**/a.txt",
    "an escape at the end": "a.log\\",
    "lines that end as on Windows": "*.log\r\n/docs\r\n",
    "a byte order mark": "\ufeff*.log",
}


def git(folder: Path, *words: str, text: str = "", check: bool = True) -> list[str]:
    """Run git in a repository without the configuration of the user; return the names that it prints."""
    call, env = ["git", "-C", str(folder), *words], {"HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    done = captured(call, check=check, input=text, env=env)
    return done.stdout.split("\0")[:-1]


@pytest.mark.parametrize("text", CASES.values(), ids=CASES.keys())
def test_a_pattern_leaves_out_what_git_leaves_out(tmp_path: Path, text: str) -> None:
    if shutil.which("git") is None:
        pytest.skip("This test compares with git, which is not installed.")
    for path in PATHS:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    (tmp_path / ".gitignore").write_text(text)
    git(tmp_path, "init", "-q")
    assert names_in(pack(str(tmp_path))) == sorted(git(tmp_path, "ls-files", "-z", "--others", "--exclude-standard"))


def test_ddpignore_has_the_last_word_and_files_of_directories_count_below_them() -> None:
    patterns = [*read("*.bin"), *read("!weights.bin"), *read("/x.py", "src/")]
    assert is_ignored(patterns, "a/other.bin", is_directory=False)
    assert not is_ignored(patterns, "a/weights.bin", is_directory=False)
    assert is_ignored(patterns, "src/x.py", is_directory=False)
    assert not is_ignored(patterns, "x.py", is_directory=False)
    assert not is_ignored(patterns, "src/deep/x.py", is_directory=False)


def test_random_patterns_match_what_git_matches(tmp_path: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("This test compares with git, which is not installed.")
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    names = ["a", "b", "ab", "a-b", "z", "A1", "]", "!a"]
    paths = sorted({"/".join(chance.choices(names, k=chance.randint(1, 4))) for _ in range(120)})
    git(tmp_path, "init", "-q")
    parts = [*("a", "b", "*", "?", "/", "/**/", "**/", "/**", "[ab]", "[!a]", "[b-a]", "[a-", "[]]")]
    parts += ["[[:upper:]]", "-", "\\\\"]
    for _ in range(100):
        word = "".join(chance.choices(parts, k=chance.randint(1, 6)))
        (tmp_path / ".gitignore").write_text(f"{word}\n")
        found = [path for path in paths if left_out(word, path)]
        ignored = git(tmp_path, "check-ignore", "--no-index", "--stdin", "-z", text="\0".join(paths), check=False)
        assert found == ignored, word


def left_out(line: str, path: str) -> bool:
    """Return True if a line leaves out a file or a directory above it."""
    patterns, names = read(line), path.split("/")
    parts = ("/".join(names[:depth]) for depth in range(1, len(names) + 1))
    return any(is_ignored(patterns, part, is_directory=part != path) for part in parts)


@pytest.mark.parametrize("line", ["**/a**/" * 400 + "x", "*a" * 1000 + "b", "a**/" * 300, "[a-z]*" * 500 + "!"])
def test_no_pattern_takes_more_states_than_it_has_parts(line: str) -> None:
    path = "/".join(["a" * 40] * 40)
    assert not is_ignored(read(line), path, is_directory=False)
