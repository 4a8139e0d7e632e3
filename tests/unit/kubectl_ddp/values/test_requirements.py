"""A requirements file of pip becomes lines of the job, which pods without the file can install."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubectl_ddp.errors import UsageError
from kubectl_ddp.values.parsers import Egress
from kubectl_ddp.values.program import parse_requirements
from kubectl_ddp.values.quantity import BadValue
from tests.support.jobs import a_job


def test_a_file_and_its_lines_are_the_same_value(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text(
        "# ours\neinops==0.8.1  # why\n\n--index-url https://pip.example.com/\na \\\n  >=2\ngit+https://x/y#egg=z\n"
    )
    lines = ("einops==0.8.1", "--index-url https://pip.example.com/", "a    >=2", "git+https://x/y#egg=z")
    assert parse_requirements(str(file)) == parse_requirements(list(lines)) == lines


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("gone.txt", "the file 'gone.txt' cannot be read: No such file or directory"),
        (["-r more.txt"], "'-r more.txt' names a file of this machine"),
        (["-e ."], "names a file of this machine"),
        (["./wheels/a.whl"], "names a file of this machine"),
        (["a @ file:///a.whl"], "names a file of this machine"),
        (["--index-url https://me:pass@pip.example.com/"], "a line has credentials"),
        (["# nothing"], "there is no package"),
    ],
)
def test_what_pods_cannot_install_or_must_not_show_is_refused(given: str | list[str], sentence: str) -> None:
    with pytest.raises(BadValue, match=sentence) as refused:
        parse_requirements(given)
    assert refused.value.hint
    assert "pass" not in refused.value.message


def test_pods_without_egress_cannot_fetch_them() -> None:
    with pytest.raises(UsageError, match="cannot fetch requirements with egress closed"):
        a_job(requirements=("a",), egress=Egress.CLOSED)
