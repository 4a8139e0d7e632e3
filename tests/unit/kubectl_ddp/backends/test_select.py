"""Selection of this machine or a cluster by flags, names and kubeconfigs."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubectl_ddp.backends.access import FLAGS, NOT_WHERE, parse_timeout
from kubectl_ddp.backends.local.directory import local_job_names, local_jobs_directory
from kubectl_ddp.backends.select import Where, is_local
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


@pytest.mark.parametrize(("where", "name", "is_here"), [
    (Where(local=True), None, True),
    (Where(local=True), "other", True),
    (Where(), "mine", True),
    (Where(), "other", False),
    (Where(), None, False),
    (Where(namespace="a"), "mine", False),
    (Where(context="a"), "mine", False),
    (Where(request_timeout="5s"), "mine", True),
    (Where(all_namespaces=True), None, False),
    (Where(local=True, namespace="a"), None, True),
])  # fmt: skip
def test_flags_and_names_say_where(environ: dict[str, str], where: Where, name: str | None, is_here: bool) -> None:
    assert is_local(where, name, environ) is is_here


def test_without_a_kubeconfig_everything_is_here(environ: dict[str, str]) -> None:
    environ["HOME"] = "/nowhere"
    assert is_local(Where(), "other", environ)
    assert is_local(Where(), None, environ)
    assert not is_local(Where(context="a"), None, environ)


@pytest.mark.parametrize("field", sorted(FLAGS.keys() - NOT_WHERE - {"namespace"}))
def test_local_and_a_cluster_contradict_each_other(field: str) -> None:
    with pytest.raises(UsageError, match=f"--local and {FLAGS[field]} contradict each other"):
        is_local(Where(local=True, **{field: "a"}))


def test_a_kubeconfig_variable_that_names_nothing_does_not_mean_this_machine(environ: dict[str, str]) -> None:
    environ["KUBECONFIG"] = "/typo"
    with pytest.raises(UsageError, match=r"^KUBECONFIG names '/typo', which does not exist\. .*--local"):
        is_local(Where(), None, environ)
    environ["KUBECONFIG"] = "/typo:/other"
    with pytest.raises(UsageError, match=r"'/typo' and '/other', which do not exist"):
        is_local(Where(), "other", environ)
    assert is_local(Where(), "mine", environ), "a local job is found by its name"
    assert is_local(Where(local=True), None, environ)
    environ["KUBECONFIG"] = "/dev/null"
    assert is_local(Where(), None, environ), "an empty kubeconfig names no cluster"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("5", 5), ("90s", 90), ("1m30s", 90), ("1.5h", 5400), ("500ms", 0.5), (".5s", 0.5), ("2us", 2e-6)],
)
def test_the_time_that_a_request_may_take_is_read_as_kubectl_reads_it(text: str, seconds: float) -> None:
    assert parse_timeout(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "5 s", "-5s", "1d", "5m30", "soon", "٣s", "1e3s"])
def test_what_is_no_duration_of_kubectls_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--request-timeout: '.*' is not a duration\. Write it as"):
        parse_timeout(text)


def test_files_among_the_jobs_and_hidden_directories_are_no_jobs(environ: dict[str, str]) -> None:
    jobs = local_jobs_directory(environ)
    (jobs / "note.txt").write_text("")
    (jobs / ".draft").mkdir()
    assert local_job_names(environ) == ["mine"]
    assert local_job_names({"HOME": "/nowhere"}) == []


@pytest.mark.parametrize(("state", "directory"), [
    ("", "/home/someone/.local/state/kubectl-ddp/jobs"),
    ("relative/path", "/home/someone/.local/state/kubectl-ddp/jobs"),
    ("/var/state", "/var/state/kubectl-ddp/jobs"),
])  # fmt: skip
def test_local_jobs_are_kept_where_xdg_says(state: str, directory: str) -> None:
    assert local_jobs_directory({"HOME": "/home/someone", "XDG_STATE_HOME": state}) == Path(directory)


def test_a_command_that_is_to_be_typed_next_looks_at_the_same_place() -> None:
    assert Where(local=True).flags == ""
    assert Where(namespace="team", kubeconfig="my config").flags == " -n team --kubeconfig 'my config'"
    everything = Where(
        context="a", cluster="b", user="c", acting_as="d", as_groups=("e", "f"), request_timeout="5s", namespace="g"
    )
    assert everything.flags == " -n g --context a --cluster b --user c --as d --as-group e --as-group f"
