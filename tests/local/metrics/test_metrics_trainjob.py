"""The status of a TrainJob, told to a real server over TLS by a real aggregator, from the boards of a real rank."""

from __future__ import annotations

import json
import queue
import signal
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ddp_trainer.metrics.serve.trainjob import CA_CERT, SERVER_URL, TOKEN, JobProgress, Reporter, StatusClient, reporter
from tests.support.metrics_processes import DEADLINE_SECONDS, Rank, aggregator
from tests.support.serving import in_thread

PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs/digits/status"


@dataclass
class Kubeflow:
    """A status server: received reports, and answers."""

    url: str = ""
    certificate: str = ""
    answer: int = 200
    told: queue.SimpleQueue[tuple[str, str, dict[str, Any]]] = field(default_factory=queue.SimpleQueue)
    """Path, authorization and body of each request."""


@pytest.fixture
def kubeflow(certificate: Path) -> Iterator[Kubeflow]:
    shown = Kubeflow(certificate=str(certificate))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            shown.told.put((self.path, self.headers["Authorization"], body))
            self.send_response(shown.answer)
            self.send_header("Location", "https://127.0.0.1:9/elsewhere")
            self.end_headers()
            self.wfile.write(b"no such TrainJob")

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    shown.url = f"https://127.0.0.1:{server.server_port}{PATH}"
    with in_thread(server):
        yield shown


def variables(kubeflow: Kubeflow, token: Path) -> dict[str, str]:
    token.write_text("from-a-file\n")
    return {SERVER_URL: kubeflow.url, CA_CERT: kubeflow.certificate, TOKEN: str(token)}


def test_the_status_server_hears_how_far_rank_0_is_and_the_last_word_when_the_pod_ends(
    tmp_path: Path, kubeflow: Kubeflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables(kubeflow, tmp_path / "token").items():
        monkeypatch.setenv(name, value)
    boards = tmp_path / "boards"
    boards.mkdir()
    with Rank(boards, 0) as rank, aggregator(boards) as running:
        rank.tell("step 40")
        rank.tell("loss 0.25")
        running.process.send_signal(signal.SIGTERM)
        path, authorization, body = kubeflow.told.get(timeout=DEADLINE_SECONDS)
        assert running.process.wait(DEADLINE_SECONDS) == 0
    assert (path, authorization) == (PATH, "Bearer from-a-file")
    status = body["trainerStatus"]
    assert {"name": "step", "value": "40"} in status["metrics"]
    assert {"name": "loss", "value": "0.25"} in status["metrics"]
    assert status["lastUpdatedTime"].endswith("Z")


def test_a_server_that_refuses_or_sends_elsewhere_is_told_of_once_and_tried_again(
    tmp_path: Path, kubeflow: Kubeflow, capsys: pytest.CaptureFixture[str]
) -> None:
    token = tmp_path / "token"
    variables(kubeflow, token)
    kubeflow.answer = 302
    with Rank(tmp_path, 0) as rank:
        rank.tell("step 1")
        found = Reporter(tmp_path, StatusClient(kubeflow.url, kubeflow.certificate, str(token)), every_seconds=0.01)
        for _ in range(3):
            kubeflow.told.get(timeout=DEADLINE_SECONDS)
        kubeflow.answer = 200
        kubeflow.told.get(timeout=DEADLINE_SECONDS)
        token.write_text("renewed")
        rank.tell("step 2")
        while kubeflow.told.get(timeout=DEADLINE_SECONDS)[1] != "Bearer renewed":
            pass
        found.stop()
    errors = capsys.readouterr().err
    assert errors.count("aggregate:") == 1
    assert "training continues: the server answers 302 no such TrainJob; it is tried again." in errors


@pytest.mark.parametrize(
    ("url", "ca", "reason"),
    [
        ("http://trainer.example.com/status", "", "goes over https alone"),
        ("https://trainer.example.com/status", "/nonexistent/ca.crt", "FileNotFoundError"),
    ],
)
def test_what_cannot_work_is_said_at_once_and_nothing_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str, ca: str, reason: str
) -> None:
    assert reporter(tmp_path, {SERVER_URL: url, CA_CERT: ca, TOKEN: str(tmp_path / "token")}) is None
    assert reason in capsys.readouterr().err
    assert reporter(tmp_path, {}) is None


def test_progress_and_the_time_that_is_left_are_whole_numbers_in_their_bounds() -> None:
    progress = JobProgress()
    assert progress.status({}, 0.0) is None
    first = progress.status({"ddp_step": 10.0, "ddp_steps_planned": 200.0}, 100.0)
    assert first is not None
    assert first["progressPercentage"] == 5
    assert "estimatedRemainingSeconds" not in first
    second = progress.status({"ddp_step": 20.0, "ddp_steps_planned": 200.0, "ddp_loss": float("nan")}, 105.0)
    assert second is not None
    assert (second["progressPercentage"], second["estimatedRemainingSeconds"]) == (10, 90)
    assert {"name": "loss", "value": "nan"} in second["metrics"]
    # Back to a checkpoint: the pace of before says nothing of the way that is done again.
    again = progress.status({"ddp_step": 5.0, "ddp_steps_planned": 200.0}, 200.0)
    assert again is not None
    assert "estimatedRemainingSeconds" not in again
    done = progress.status({"ddp_step": 200.0, "ddp_steps_planned": 200.0}, 300.0)
    assert done is not None
    assert (done["progressPercentage"], done["estimatedRemainingSeconds"]) == (100, 0)
