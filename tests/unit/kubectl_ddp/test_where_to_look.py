"""Which flags mean this machine and which mean a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubectl_ddp.backends import (
    Where,
    has_kubeconfig,
    is_local,
    kubeconfig_files,
    local_job_names,
    local_jobs_directory,
)
from kubectl_ddp.errors import UsageError


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A machine with a kubeconfig and a local job named mine."""
    config = tmp_path / ".kube" / "config"
    config.parent.mkdir()
    config.write_text("contexts: []")
    environ = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    (local_jobs_directory(environ) / "mine").mkdir(parents=True)
    return environ


@pytest.mark.parametrize(
    ("where", "name", "is_here"),
    [
        (Where(local=True), None, True),
        (Where(local=True), "other", True),
        (Where(), "mine", True),
        (Where(), "other", False),
        (Where(), None, False),
        (Where(namespace="a"), "mine", False),
        (Where(context="a"), "mine", False),
        (Where(kubeconfig="a"), "mine", False),
        (Where(all_namespaces=True), None, False),
        (Where(local=True, namespace="a"), None, True),
    ],
)
def test_flags_and_names_say_where(environ: dict[str, str], where: Where, name: str | None, is_here: bool) -> None:
    assert is_local(where, name, environ) is is_here


def test_without_a_kubeconfig_everything_is_here(environ: dict[str, str]) -> None:
    environ["HOME"] = "/nowhere"
    assert is_local(Where(), "other", environ)
    assert is_local(Where(), None, environ)
    assert not is_local(Where(context="a"), None, environ)


@pytest.mark.parametrize("flag", ["context", "kubeconfig"])
def test_local_and_a_cluster_contradict_each_other(flag: str) -> None:
    with pytest.raises(UsageError, match=f"--local and --{flag} contradict each other"):
        is_local(Where(local=True, **{flag: "a"}))


def test_kubeconfig_is_a_list_of_files_of_which_those_that_exist_count(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_text("")
    environ = {"KUBECONFIG": f"{tmp_path / 'gone'}:{there}:", "HOME": str(tmp_path)}
    assert kubeconfig_files(environ) == [there]
    assert not has_kubeconfig({"KUBECONFIG": str(tmp_path / "gone"), "HOME": str(tmp_path)})


def test_files_among_the_jobs_and_hidden_directories_are_no_jobs(environ: dict[str, str]) -> None:
    jobs = local_jobs_directory(environ)
    (jobs / "note.txt").write_text("")
    (jobs / ".draft").mkdir()
    assert local_job_names(environ) == ["mine"]
    assert local_job_names({"HOME": "/nowhere"}) == []


@pytest.mark.parametrize(
    ("state", "directory"),
    [
        ("", "/home/someone/.local/state/kubectl-ddp/jobs"),
        ("relative/path", "/home/someone/.local/state/kubectl-ddp/jobs"),
        ("/var/state", "/var/state/kubectl-ddp/jobs"),
    ],
)
def test_local_jobs_are_kept_where_xdg_says(state: str, directory: str) -> None:
    assert local_jobs_directory({"HOME": "/home/someone", "XDG_STATE_HOME": state}) == Path(directory)


def test_a_command_that_is_to_be_typed_next_looks_at_the_same_place() -> None:
    assert Where(local=True).flags == ""
    assert Where(namespace="team", kubeconfig="my config").flags == " -n team --kubeconfig 'my config'"
