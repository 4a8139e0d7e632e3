"""No command prints a secret or a terminal control that a job has written, wherever the job has put it."""

from __future__ import annotations

import os
import pty
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest

from ddp_trainer.common.constants import Annotation, Label
from kubectl_ddp.cli.group import root
from kubectl_ddp.cli.run import run
from kubectl_ddp.spec.serialization import compact, spec_to_dict
from kubectl_ddp.util.text_table import escape_text, write_log_line
from tests.support import kube_objects
from tests.support.api_server import EVENTS, JOBS, PODS, Answer, ApiServer, Request, kubeconfig, serving, status
from tests.support.jobs import a_job
from tests.support.secret_corpus import CONTROLS, SECRETS, WORD, raw_controls

_LAST = "PEM without an end"  # hides what comes after it
TEXTS = [*(text for name, text in SECRETS.items() if name != _LAST), SECRETS[_LAST]]
HOSTILE = "".join(CONTROLS.values()) + "\n" + "\n\n".join(TEXTS)
LINE = "".join(CONTROLS.values()) + " " + "  ".join(text.replace("\n", " ") for text in TEXTS)


def commands() -> dict[str, click.Command]:
    """Every command of the tree."""
    group = root()
    context = click.Context(group)
    found = {name: group.get_command(context, name) for name in group.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


ARGUMENTS: Mapping[str, list[list[str]]] = {
    **{name: [[name]] for name in ("capacity", "presets", "config", "version")},
    **{name: [[name, "--help"]] for name in ("init", "doctor")},
    **{name: [[name, "digits"]] for name in ("profile", "port-forward", "restart", "suspend", "resume")},
    **{name: [[name, "digits"], [name, "digits", "-o", "json"]] for name in ("why", "hang", "events")},
    "submit": [["submit", "{script}", "--image", "example.com/a:1", "--name", "other"]],
    "preflight": [["preflight", "{script}", "--image", "example.com/a:1"]],
    "render": [["render", "{script}", "--image", "example.com/a:1"]],
    "clone": [["clone", "digits", "--name", "more", "--dry-run=client"], ["clone", "digits", "--name", "more"]],
    "explain": [["explain"], ["explain", "nnodes", "-o", "json"]],
    "list": [["list"], ["list", "-o", "wide"], ["list", "-o", "json"]],
    "status": [["status", "digits"], ["status", "digits", "-o", "json"], ["status", "digits", "-o", "yaml"]],
    "history": [["history"], ["history", "-o", "json"]],
    "bundle": [["bundle", "digits", "-O", "{folder}/bundle.tar.gz"]],
    "logs": [["logs", "digits", "--first-error"], ["logs", "digits", "--first-error", "-o", "json"]],
    "top": [["top", "digits", "--once"]],
    "report": [["report", "digits", "-o", "{folder}/report.html"]],
    "dashboard": [["dashboard", "digits", "--print"]],
    "wait": [["wait", "digits", "--for", "complete", "--timeout", "1s"]],
    "exec": [["exec", "digits", "--", "true"]],
    "scale": [["scale", "digits", "--nnodes", "3"]],
    "prune": [["prune", "--dry-run"]],
    "delete": [["delete", "digits", "--yes"]],
    "completion": [["completion", "bash"]],
}
"""Calls of each command. ``logs`` without ``--first-error`` prints the job's own lines, see below."""


class HostileServer(ApiServer):
    """Pods write the corpus into their logs, and every refusal quotes it."""

    def answer(self, request: Request) -> Answer:
        if request.path.endswith("/log"):
            return Answer(200, "".join(f"2026-01-01T00:00:01.1Z {line}\n" for line in HOSTILE.split("\n")))
        if request.method in {"POST", "PATCH", "DELETE", "PUT"} and "/namespaces/" in request.path:
            return Answer(422, status(422, "Invalid", f"the object is invalid: {HOSTILE}"))
        return super().answer(request)


def failed(server: ApiServer) -> None:
    """A job whose rank 0 failed with the corpus as its message."""
    report = {"message": LINE, "stack": HOSTILE, "rank": 0, "reason": "PythonException", "pod": "digits-worker-0"}
    put(server, kube_objects.terminated(1, {**report, "result": "failed", "note": HOSTILE}), "Failed")


def succeeded(server: ApiServer) -> None:
    """A job whose program wrote the corpus into its summary."""
    report = {"result": "succeeded", "steps": 3, "note": LINE, "more": {"text": HOSTILE}}
    put(server, kube_objects.terminated(0, report), "Succeeded")


def stuck(server: ApiServer) -> None:
    """A job whose pods wait for something that the kubelet words with the corpus."""
    put(server, kube_objects.waiting("CreateContainerConfigError", LINE), "Created")


def put(server: ApiServer, state: Mapping[str, Any], condition: str) -> None:
    document = compact(spec_to_dict(a_job(args=("--db-pass", WORD), env={"SOMETHING": WORD})))
    env = [{"name": "SOMETHING", "value": WORD}, {"name": "HTTPS_PROXY", "value": SECRETS["token of a URL"]}]
    template = kube_objects.a_template(["python", "train.py", "--db-pass", WORD], env=env)
    job = kube_objects.job(kube_objects.condition(condition, message=HOSTILE), template=template)
    labels = {Label.JOB: "digits", Label.RUN_ID: "run1"}
    annotations = {Annotation.SPEC: document}
    job["metadata"] = {"creationTimestamp": kube_objects.CREATED, "labels": labels, "annotations": annotations}
    stored = server.put(f"{JOBS}/digits", job)
    pod = kube_objects.pod(0, state)
    pod["spec"] = {**template["spec"], "nodeName": "node-0"}
    pod["metadata"] = {"labels": {**labels, Label.ROLE: "worker"}}
    server.put(f"{PODS}/digits-worker-0", pod)
    metadata = {"kind": "PyTorchJob", "name": "digits", "uid": stored["metadata"]["uid"]}
    event = {"involvedObject": metadata, "type": "Warning", "reason": "Odd", "message": LINE}
    server.put(f"{EVENTS}/odd", {**event, "lastTimestamp": kube_objects.CREATED})


@pytest.fixture(params=[failed, succeeded, stuck])
def hostile_workdir(request: pytest.FixtureRequest, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with serving(HostileServer()) as server:
        setup: Callable[[ApiServer], None] = request.param
        setup(server)
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(workdir, server.url)))
        yield workdir


def test_every_command_of_the_tree_is_called_here() -> None:
    assert ARGUMENTS.keys() == commands().keys()


def test_no_command_prints_a_secret_or_a_control_of_the_job(
    hostile_workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, calls in ARGUMENTS.items():
        for call in calls:
            run([word.format(script=hostile_workdir / "train.py", folder=hostile_workdir) for word in call])
            shown = "".join(capsys.readouterr())
            assert WORD not in shown, (name, call)
            assert "This is a bug" not in shown, (name, call)
            assert raw_controls(shown) == set(), (name, call)
    for file in contents(hostile_workdir):
        assert WORD not in file
        assert WORD.upper()[:16] not in file


def contents(folder: Path) -> Iterator[str]:
    """The files that commands have written."""
    yield (folder / "report.html").read_text()
    with tarfile.open(folder / "bundle.tar.gz") as archive:
        names = archive.getnames()
        assert any("/logs/" in name for name in names)
        for member in archive:
            if (file := archive.extractfile(member)) is not None:
                yield file.read().decode()


@pytest.mark.parametrize("control", CONTROLS.values(), ids=CONTROLS.keys())
def test_text_for_a_terminal_holds_no_control_but_our_own_colours(control: str) -> None:
    assert raw_controls(escape_text(f"a{control}b\nc\td")) == set()
    assert escape_text(f"\x1b[32mup{control}\x1b[0m").startswith("\x1b[32mup")


def written(line: str) -> bytes:
    """Return the bytes that a terminal receives for one line of a log."""
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w", encoding="utf-8") as terminal:
        write_log_line(terminal, line)
        terminal.flush()
        shown = os.read(leader, 65536)
    os.close(leader)
    return shown


def test_a_line_of_a_log_keeps_its_colours_on_a_terminal_and_no_other_control() -> None:
    assert written("[rank0] \x1b[31mloss\x1b[0m") == b"[rank0] \x1b[31mloss\x1b[0m\r\n"
    for control in CONTROLS.values():
        if "m" not in control:
            shown = written(f"[rank0] a{control}b").decode()
            assert raw_controls(shown.removesuffix("\r\n")) == set()


def test_a_progress_bar_shows_its_last_state_and_cannot_write_over_the_rank() -> None:
    assert written("[rank0] 10%\r20%\r[rank1] 30%") == b"[rank0] [rank1] 30%\r\n"


def test_a_line_of_a_log_is_unchanged_in_a_file(tmp_path: Path) -> None:
    line = f"[rank0] {''.join(control for control in CONTROLS.values() if chr(0x85) not in control)}"
    with (tmp_path / "log").open("w", encoding="utf-8", newline="") as file:
        write_log_line(file, line)
    assert (tmp_path / "log").read_bytes() == f"{line}\n".encode()
