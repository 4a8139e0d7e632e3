"""A function as a job: the script that it becomes runs alone, and a function that could not is refused."""

from __future__ import annotations

import functools
import json
import sys
import xml.etree.ElementTree  # noqa: ICN001 - a module of a module
from collections import OrderedDict as Ordered
from collections.abc import Callable
from math import sqrt
from pathlib import Path
from typing import Any

import pytest

from kubectl_ddp.client.function_source import arguments_as_json, code_of_function, job_name_of
from kubectl_ddp.errors import UsageError
from tests.support.programs import captured

LIMIT = 3


def of_other_modules(number: int, deep: Unknown = sqrt(4.0)) -> None:  # noqa: B008, F821 - annotations do not run
    class Local:
        roots = tuple(sqrt(item) for item in range(number))

    tag = xml.etree.ElementTree.Element("a").tag
    print(json.dumps([tag, deep, Local.roots[-1], Ordered(a=1)["a"], __name__]))


def of_itself(count: int) -> None:
    """Counts "down", with braces: {count}."""
    print(count)
    if count:
        of_itself(count - 1)


@pytest.mark.parametrize(
    ("function", "arguments", "printed"),
    [(of_other_modules, {"number": 10}, '["a", 2.0, 3.0, 1, "__main__"]\n'), (of_itself, {"count": 1}, "1\n0\n")],
)
def test_the_script_runs_alone_with_the_imports_of_the_function(
    tmp_path: Path, function: Callable[..., object], arguments: dict[str, Any], printed: str
) -> None:
    code = code_of_function(function)
    (tmp_path / code.file).write_text(code.text)
    words = [sys.executable, code.file, arguments_as_json(function, arguments)]
    done = captured(words, cwd=tmp_path)
    assert (done.stdout, done.stderr) == (printed, "")


def test_the_same_function_is_the_same_code_and_the_script_hides_no_module() -> None:
    assert code_of_function(of_itself).hash == code_of_function(of_itself).hash
    assert (code_of_function(of_itself).file, job_name_of(of_itself)) == ("call_of_itself.py", "of-itself")


def uses_constant() -> None:
    print(LIMIT)


def calls_neighbour() -> None:
    of_itself(1)


def defaults_to_constant(limit: int = LIMIT) -> None:
    print(limit)


@functools.cache
def decorated() -> None:
    pass


def wrapped(function: Callable[[], None]) -> Callable[[], None]:
    def inner() -> None:
        function()

    return inner


@wrapped
def closes() -> None:
    pass


async def is_async() -> None:
    pass


class Loop:
    def method(self) -> None:
        pass


def without_source() -> Callable[..., object]:
    found: dict[str, Any] = {"__name__": __name__}
    exec("def typed(): pass", found)
    made: Callable[..., object] = found["typed"]
    return made


@pytest.mark.parametrize(
    ("function", "named"),
    [
        *((uses_constant, "LIMIT"), (defaults_to_constant, "LIMIT"), (calls_neighbour, "of_itself")),
        *((decorated, "decorated"), (closes, "function"), (is_async, "is_async"), (lambda: None, "lambda")),
        *((Loop().method, "method"), (print, "print"), (functools.partial(of_itself, 1), "partial")),
        (without_source(), "typed"),
    ],
)
def test_a_function_that_cannot_run_alone_is_refused_by_name(function: Callable[..., object], named: str) -> None:
    with pytest.raises(UsageError, match=named) as refused:
        code_of_function(function)
    assert refused.value.hint


def test_a_function_with_a_credential_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keyed.py").write_text('def login():\n    key = "aws_secret_access_key=' + "a" * 40 + '"\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    import keyed  # type: ignore[import-not-found]

    with pytest.raises(UsageError, match="credentials"):
        code_of_function(keyed.login)


@pytest.mark.parametrize("value", [(1, 2), {1: 2}, float("nan"), {3}, b"x", Path("x"), [print]], ids=repr)
def test_an_argument_that_json_does_not_keep_is_refused_by_its_name(value: object) -> None:
    with pytest.raises(UsageError, match="The argument count of of_itself"):
        arguments_as_json(of_itself, {"count": value})


@pytest.mark.parametrize("arguments", [{}, {"count": 1, "other": 2}])
def test_arguments_that_do_not_fit_the_function_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="of_itself cannot be called"):
        arguments_as_json(of_itself, arguments)


def test_arguments_that_no_program_takes_are_refused() -> None:
    assert arguments_as_json(of_itself, {"count": "x" * 100_000})
    with pytest.raises(UsageError, match="200013 bytes"):
        arguments_as_json(of_itself, {"count": "x" * 200_000})
