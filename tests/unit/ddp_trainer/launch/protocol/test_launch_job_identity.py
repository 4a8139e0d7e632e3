"""Nodes of one job: they are accepted, and nodes of another job are rejected with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddp_trainer.launch.config import identity_of
from ddp_trainer.launch.protocol.messages import ProgramIdentity, Rejected, WorkerState, is_same_job
from ddp_trainer.launch.rendezvous.membership import RunPhase
from ddp_trainer.launch.workers.worker_group import Program
from tests.support.launch_simulation import SimulatedAgent, SimulatedRun, a_policy

TRAIN_JOB = ProgramIdentity(program="train.py", path="/home/ann/train.py", digest="1")
SERVE_JOB = ProgramIdentity(program="serve.py", path="/home/bob/serve.py", digest="2")


def comes(run: SimulatedRun, index: int, what: ProgramIdentity | None, *, role: str = "default") -> SimulatedAgent:
    agent = run.agent(index)
    agent.identity, agent.role = what, role
    return agent.connect()


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        (TRAIN_JOB, True),
        (ProgramIdentity(program="train.py", path="/mnt/train.py", digest="1"), True),  # another host's path
        (ProgramIdentity(program="train.py", path="/home/ann/train.py", digest="7"), True),  # edited while it runs
        (None, True),
        (ProgramIdentity(program="train.py", path="/home/bob/train.py", digest="7"), False),
        (ProgramIdentity(program="eval.py", path="/home/ann/eval.py", digest="1"), False),
        (ProgramIdentity(program="pkg.train"), False),
    ],
)
def test_one_job_has_programs_of_one_name_with_one_content_or_place(
    other: ProgramIdentity | None, is_same: bool
) -> None:
    assert is_same_job(TRAIN_JOB, other) is is_same_job(other, TRAIN_JOB) is is_same


def test_arguments_and_the_place_of_a_script_make_no_other_job(tmp_path: Path) -> None:
    def identity(folder: str, text: str) -> ProgramIdentity:
        script = tmp_path / folder / "train.py"
        script.parent.mkdir(exist_ok=True)
        script.write_text(text)
        return identity_of(Program(kind="script", target=str(script), arguments=(folder,)), {})

    one, other, changed = identity("a", "pass"), identity("b", "pass"), identity("b", "exit")
    assert one.digest == other.digest != ""
    assert [is_same_job(one, other), is_same_job(one, changed), is_same_job(other, changed)] == [True, False, True]


def test_commands_modules_and_folders_are_known_by_what_is_run(tmp_path: Path) -> None:
    program = tmp_path / "run"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    found = identity_of(Program(kind="command", target="run"), {"PATH": str(tmp_path)})
    assert (found.program, found.path) == ("run", str(program))
    assert identity_of(Program(kind="module", target="pkg.train"), {}) == ProgramIdentity(program="pkg.train")
    (tmp_path / "app").mkdir()
    empty = identity_of(Program(kind="script", target=str(tmp_path / "app")), {})
    (tmp_path / "app" / "__main__.py").write_text("pass")
    assert empty.digest == ""
    assert identity_of(Program(kind="script", target=str(tmp_path / "app")), {}).digest != ""


def test_programs_of_different_roles_are_of_one_job() -> None:
    run = SimulatedRun(a_policy(2, 2))
    comes(run, 0, TRAIN_JOB).join()
    assert comes(run, 1, SERVE_JOB, role="evaluator").join().runs == 1


def test_the_run_is_free_again_when_the_other_job_has_gone() -> None:
    run = SimulatedRun(a_policy(1, 2))
    first = comes(run, 0, TRAIN_JOB).join()
    run.wait(5)
    first.leave().mark_disconnected()
    second = comes(run, 1, SERVE_JOB).join()
    run.wait(5)
    assert second.runs == 2


def test_a_pod_that_is_created_again_with_another_program_takes_its_own_place() -> None:
    run = SimulatedRun(a_policy(1, 1))
    first = comes(run, 0, TRAIN_JOB).join()
    second = comes(run, 0, SERVE_JOB).join()
    first.mark_disconnected()
    run.wait(5)
    assert second.runs == 2


def test_a_restarted_store_accepts_the_nodes_of_its_run_and_rejects_those_of_another_job() -> None:
    run = SimulatedRun(a_policy(2, 3))
    agents = [comes(run, index, TRAIN_JOB) for index in (0, 1)]
    for agent in agents:
        agent.join()
    run.wait(5)
    run.restart_store()
    intruder = comes(run, 5, SERVE_JOB).join()
    assert not isinstance(intruder.last, Rejected)
    for agent in agents:
        run.reconnect(agent)
        assert agent.standing is WorkerState.RUNNING
    assert "which runs /home/ann/train.py on worker-0, and this one runs /home/bob/serve.py;" in intruder.last.why
    run.wait(60)
    assert run.membership.phase is RunPhase.RUNNING
    assert [agent.asked_to_stop for agent in agents] == [None, None]
