"""``kubectl ddp list``: order, selection, forms of output and changes."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kubectl_ddp.backends.local.directory import local_jobs_directory
from kubectl_ddp.observe.job_list import watch_list
from kubectl_ddp.render import render
from tests.support.command_line import CommandLine
from tests.support.jobs import a_job


@pytest.fixture(autouse=True)
def jobs(workdir: Path) -> None:
    """A machine without a cluster, with two jobs whose engines have never started."""
    add_job("images", labels={"team": "b"}, created="2026-01-02T00:00:00Z")
    add_job("digits", labels={"team": "a"}, created="2026-01-03T00:00:00Z")


def add_job(name: str, *, labels: dict[str, str], created: str) -> None:
    directory = local_jobs_directory() / name
    directory.mkdir(parents=True)
    objects = render(a_job(name=name), "run1")
    root = objects[0]["metadata"]
    root |= {"creationTimestamp": created, "labels": root["labels"] | labels}
    (directory / "objects.json").write_text(json.dumps(objects))


@pytest.mark.parametrize(("words", "expected"), [
    ("list --no-headers", ["images", "digits"]),
    ("list", ["NAME", "images", "digits"]),
    ("list --no-headers --sort-by .name", ["digits", "images"]),
    ("list --sort-by {.metadata.creationTimestamp} -o custom-columns=JOB:.name", ["JOB", "images", "digits"]),
    ("list --sort-by name -o name", ["pytorchjob.kubeflow.org/digits", "pytorchjob.kubeflow.org/images"]),
    ("list --no-headers -l team=a", ["digits"]),
    ("list -l team -o name -l team!=a", ["pytorchjob.kubeflow.org/images"]),
    ("list --no-headers -o custom-columns=X:.loss,JOB:.name digits", ["<none>"]),
    ("status digits --no-headers -o custom-columns=JOB:.name", ["digits"]),
])  # fmt: skip
def test_order_selection_and_form_apply(words: str, expected: list[str], cli: CommandLine) -> None:
    assert [line.split()[0] for line in cli(*words.split()).out.splitlines()] == expected


def test_one_name_gives_one_document_and_more_give_a_list(cli: CommandLine) -> None:
    for words, kind in ((["digits"], "JobState"), (["digits", "images"], "JobStateList"), ([], "JobStateList")):
        assert json.loads(cli("list", *words, "-o", "json").out)["kind"] == kind


def test_a_selection_without_a_job_prints_nothing(cli: CommandLine) -> None:
    assert cli("list", "-l", "team=c", "-q").out == ""


@pytest.fixture
def moments(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Actions between two reads of a watch. After the last one, the user presses Ctrl-C."""
    actions: list[Callable[[], None]] = []

    def pause(_seconds: float) -> None:
        if not actions:
            raise KeyboardInterrupt
        actions.pop(0)()

    monkeypatch.setattr("kubectl_ddp.cli.jobs.list.watch_list", functools.partial(watch_list, pause=pause))
    return actions


def remove_digits() -> None:
    (local_jobs_directory() / "digits" / "objects.json").unlink()
    (local_jobs_directory() / "digits").rmdir()


def add_text() -> None:
    add_job("text", labels={"team": "a"}, created="2026-01-04T00:00:00Z")


def test_a_watch_prints_list_and_changes(moments: list[Callable[[], None]], cli: CommandLine) -> None:
    moments += [lambda: None, add_text, remove_digits]
    output = cli("get", "jobs", "-w", code=130)
    rows = [" ".join(line.split()[:2]) for line in output.out.splitlines()]
    assert rows == ["NAME STATUS", "images Lost", "digits Lost", "text Lost", "digits Deleting"]
    assert output.err == "error: Stopped watching.\n"


@pytest.mark.parametrize(("form", "printed"), [
    ("name", "pytorchjob.kubeflow.org/digits\npytorchjob.kubeflow.org/text\npytorchjob.kubeflow.org/digits\n"),
    ("jsonpath={.name} {.state};", "digits Lost;text Lost;digits Deleting;"),
    ("custom-columns=JOB:.name", "JOB\ndigits\ntext\ndigits\n"),
])  # fmt: skip
def test_a_watch_prints_a_document_for_each_change(
    form: str, printed: str, moments: list[Callable[[], None]], cli: CommandLine
) -> None:
    moments += [add_text, remove_digits]
    assert cli("list", "-l", "team=a", "--watch", "-o", form, code=130).out == printed


def test_a_watch_of_a_name_that_no_job_has_ends(cli: CommandLine) -> None:
    assert "Did you mean 'digits'?" in cli("get", "job", "digist", "-w", code=3).err
