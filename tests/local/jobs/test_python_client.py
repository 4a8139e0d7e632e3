"""The Python client on this machine: a script whose job is a function, and a job that is changed as it runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubectl_ddp import Client
from kubectl_ddp.errors import JobFailed, NotFound, TimedOut
from tests.support.programs import captured
from tests.support.threads import no_thread_left

SCRIPT = Path(__file__).parents[2] / "scripts" / "client_job.py"
UNTIL = """
import pathlib, sys, time
print("begin", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.02)
raise ValueError(pathlib.Path(sys.argv[1]).read_text())
"""


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of an empty machine."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    made = Client(local=True)
    yield made
    for state in made.list():
        made.get(state.name).delete()


def test_a_script_of_a_user_trains_a_function_on_two_ranks(client: Client, tmp_path: Path) -> None:
    done = captured([sys.executable, SCRIPT], cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("Succeeded total 4 total 4\nTrue\n[]\n", 0), done.stderr
    assert client.list() == []


def test_a_job_is_followed_left_suspended_resumed_and_fails_with_its_reason(client: Client, tmp_path: Path) -> None:
    (tmp_path / "until.py").write_text(UNTIL)
    job = client.submit("until.py", args=[str(tmp_path / "end")], max_restarts=0)
    with no_thread_left():
        lines = job.logs(0, follow=True)
        assert next(lines).message == "begin"
        lines.close()
        with pytest.raises(TimedOut):
            job.wait(0.2)
    assert [state.name for state in client.list()] == [job.name]
    job.suspend()
    assert job.wait(60, condition="suspended").nodes.ready == 0
    (tmp_path / "end").write_text("no more data")
    job.resume()
    with pytest.raises(JobFailed, match="no more data"):
        job.wait(60)
    assert job.state == "Failed"
    job.delete(wait=True)
    with pytest.raises(NotFound):
        job.status()
