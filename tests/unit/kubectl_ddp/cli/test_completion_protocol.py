"""The tab key: cobra's protocol, through our own executable, kubectl and a real shell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kubectl_ddp.backends.select import Where
from kubectl_ddp.cli.complete import CompletionResult, Directive, complete
from kubectl_ddp.cli.internal import candidates
from kubectl_ddp.observe.waiting import GOALS

BIN = Path(sys.executable).parent
COMPLETE = BIN / "kubectl_complete-ddp"
PATH = f"{BIN}:{os.environ['PATH']}"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with two local jobs, two contexts, and no cluster that answers."""
    for name in ("digits", "vision"):
        (tmp_path / "state" / "kubectl-ddp" / "jobs" / name).mkdir(parents=True)
    config = tmp_path / "config"
    config.write_text(
        "contexts:\n"
        "- {name: lab, context: {cluster: lab, user: me, namespace: team}}\n"
        "- {name: prod, context: {cluster: prod, user: me}}\n"
        "clusters:\n"
        "- {name: east, cluster: {server: 'https://east.example.com'}}\n"
        "users: [{name: me}, {name: eve}]\n"
    )
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("KUBECONFIG", str(config))
    return tmp_path


def printed(*command: str | Path, **options: Any) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, **options).stdout


def words(found: CompletionResult) -> list[str]:
    return [candidate.value for candidate in found.candidates]


@pytest.mark.parametrize(("line", "expected"), [
    (["su"], ["submit", "suspend"]),
    (["c"], ["capacity", "clone", "config", "completion", "cancel"]),
    (["submit", "--nn"], ["--nnodes"]),
    (["port-forward", "digits", "m"], ["metrics"]),
    (["config", "set", "que"], ["queue", "queuePriority", "queueResize"]),
    (["submit", "torchrun", "--nn"], ["--nnodes"]),
    (["config", "view", "que"], []),
    (["submit", "--gang", "k"], ["kueue", "kai"]),
    (["submit", "--dry-run", ""], ["none", "client", "server"]),
    (["submit", "--dry-run=c"], ["--dry-run=client"]),
    (["render", "--preset", "gpu"], ["gpu-nccl"]),
    (["nonsense", ""], []),
    (["ls", "--all"], ["--all-namespaces"]),
], ids=" ".join)  # fmt: skip
def test_words_are_completed_where_they_stand(line: list[str], expected: list[str]) -> None:
    assert words(complete(line)) == expected


@pytest.mark.parametrize(("line", "expected"), [
    (["status", "--local", ""], ["digits", "vision"]),
    (["logs", "--local", "di"], ["digits"]),
    (["delete", "--local", "digits", ""], ["vision"]),
    (["status", "digits", "--local", ""], []),
    (["list", "--context", ""], ["lab", "prod"]),
    (["list", "--context=l"], ["--context=lab"]),
    (["status", "--cluster", ""], ["east"]),
    (["list", "-n", ""], ["default", "team"]),
    (["logs", "--rank", ""], ["all", "failed"]),
], ids=" ".join)  # fmt: skip
def test_jobs_contexts_and_namespaces_are_this_machines(machine: Path, line: list[str], expected: list[str]) -> None:
    assert machine.is_dir()
    assert words(complete(line)) == expected


def test_what_can_be_waited_for_is_what_wait_takes() -> None:
    assert {word.rstrip("=") for word in words(complete(["wait", "--for", ""]))} == {
        goal.removesuffix("=N") for goal in GOALS
    }


@pytest.mark.parametrize(("line", "directive"), [
    (["submit", "tr"], Directive.FILES),
    (["submit", "train.py", "--", "da"], Directive.FILES),
    (["list", "--kubeconfig", ""], Directive.FILES),
    (["submit", "-f", ""], Directive.FILTER_EXTENSION),
    (["status", "--local", ""], Directive.NO_FILES),
], ids=lambda part: " ".join(part) if isinstance(part, list) else part.name)  # fmt: skip
def test_the_shell_completes_files_where_files_stand(line: list[str], directive: Directive) -> None:
    assert complete(line).directive is directive


def test_a_cluster_that_does_not_answer_offers_nothing_and_says_nothing(machine: Path) -> None:
    assert machine.is_dir()
    assert words(complete(["status", ""])) == ["digits", "vision"]
    assert printed(COMPLETE, "status", "--context", "lab", "", stderr=subprocess.STDOUT) == ":4\n"


def test_ranks_are_counted_from_the_job_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[tuple[Where, str]] = []

    def world(where: Where, name: str) -> int:
        requests.append((where, name))
        return 3

    monkeypatch.setattr(candidates, "_world", world)
    assert words(complete(["logs", "--local", "digits", "--rank", ""])) == ["all", "failed", "0", "1", "2"]
    assert requests == [(Where(local=True), "digits")]


def test_a_broken_kubeconfig_is_no_error_of_the_shell(machine: Path) -> None:
    (machine / "config").write_text("contexts: [")
    assert printed(COMPLETE, "list", "--context", "", stderr=subprocess.STDOUT) == ":4\n"


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_itself_asks_us() -> None:
    shown = printed("kubectl", "__complete", "ddp", "submit", "--nnod", env=os.environ | {"PATH": PATH})
    assert shown == "--nnodes\tNodes: N, or MIN:MAX for an elastic job.\n:4\n"


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_through_the_script_we_print(machine: Path) -> None:
    script = printed(BIN / "kubectl-ddp", "completion", "bash")
    for line, expected in (
        ("kubectl-ddp sus", ["suspend"]),
        ("kubectl-ddp status --local d", ["digits"]),
        ("kubectl-ddp submit --nnod", ["--nnodes"]),
    ):
        command = f"""
            {script}
            COMP_WORDS=({line}); COMP_CWORD={len(line.split()) - 1}
            _kubectl_ddp
            printf '%s\\n' "${{COMPREPLY[@]}}"
        """
        assert printed("bash", "-c", command, env=os.environ | {"PATH": PATH}, cwd=machine).split() == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_accepts_its_script(shell: str, tmp_path: Path) -> None:
    script = printed(BIN / "kubectl-ddp", "completion", shell)
    assert "kubectl_complete-ddp" in script
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(script)
    subprocess.run([shell, "-n", tmp_path / "script"], check=True)
