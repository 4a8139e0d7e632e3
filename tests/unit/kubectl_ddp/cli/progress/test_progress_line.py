"""The line of a job for each of its states, and the line of its end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddp_trainer.common.time_classes import StartupPhase
from kubectl_ddp.cli.internal.progress import ProgressLine, end_line, progress_line, start_line
from kubectl_ddp.kube.objects import Queued, Snapshot
from kubectl_ddp.status.job_state import JobState, Nodes, State, job_state
from kubectl_ddp.status.startup import Startup
from tests.support.kube_objects import CREATED, CREATED_EPOCH, job, pod, waiting
from tests.unit.kubectl_ddp.status.test_startup import event

TRAINING = JobState(
    name="digits", namespace="team", where="lab", uid="u", state=State.RUNNING, reason="", step=120, steps_planned=690,
    nodes=Nodes(ready=4, desired=4, minimum=1, maximum=4), processes_per_node=2, world_size=8, eta_seconds=118.0,
    created=CREATED_EPOCH, started=CREATED_EPOCH,
)  # fmt: skip
NOW = CREATED_EPOCH + 20.0
HALF_READY = replace(TRAINING.nodes, ready=2)
NONE_READY = replace(TRAINING.nodes, ready=0)
ALL, HALF, FAILED = TRAINING.nodes, "2 of 4 pods ready", "Job digits failed after 12s"
RESTARTING = replace(TRAINING, state=State.RESTARTING, restarts={"failure": 2}, nodes=HALF_READY)
SUMMARY = {"steps": 690, "samples_lost": 0, "goodput": 0.9, "accuracy": 0.98, "restarts": {"failure": 2}}


def starting(phase: StartupPhase, state: State = State.PENDING, *, image_bytes: int | None = None) -> JobState:
    """A job whose slowest pod is in a phase of the start."""
    startup = Startup(submitted=CREATED_EPOCH, current=phase, image_bytes=image_bytes)
    return replace(TRAINING, state=state, nodes=HALF_READY, step=None, world_size=None, startup=startup)


def queued(position: int | None) -> JobState:
    """A job that waits in a queue."""
    queue = Queued("team-a", is_admitted=False, position=position)
    return replace(TRAINING, state=State.QUEUED, nodes=NONE_READY, step=None, queue=queue)


@pytest.mark.parametrize(("state", "phase", "text"), [
    (queued(None), "queued", "queued in team-a"),
    (queued(1), "queued", "queued in team-a as number 1, the next"),
    (queued(3), "queued", "queued in team-a as number 3, 2 jobs before it"),
    (starting(StartupPhase.QUEUE), "queue", "waiting for its pods, 2 of 4 pods ready"),
    (starting(StartupPhase.SCHEDULE), "schedule", "scheduling, 2 of 4 pods ready"),
    (starting(StartupPhase.PULL), "pull", "pulling the image, 2 of 4 pods ready"),
    (starting(StartupPhase.PULL, image_bytes=5 << 30), "pull", f"pulling the image, {HALF}, 5.0 GiB each"),
    (starting(StartupPhase.CONTAINER, image_bytes=5 << 30), "container", "starting containers, 2 of 4 pods ready"),
    (starting(StartupPhase.INTERPRETER, State.RUNNING), "interpreter", "starting Python, 2 of 4 pods ready"),
    (replace(starting(StartupPhase.INTERPRETER, State.RUNNING), nodes=ALL, world_size=8), "imports", "importing"),
    (starting(StartupPhase.IMPORTS, State.STARTING), "imports", "importing, 2 of 4 pods ready"),
    (starting(StartupPhase.RENDEZVOUS, State.STARTING), "rendezvous", "rendezvous, 2 of 4 pods ready"),
    (replace(starting(StartupPhase.COMPILE, State.RUNNING), nodes=TRAINING.nodes), "compile", "compiling"),
    (replace(TRAINING, state=State.STARTING, startup=None), "rendezvous", "rendezvous"),
    (TRAINING, "training", "step 120 of 690 (17%), about 2m to go"),
    (replace(TRAINING, nodes=HALF_READY), "training", "step 120 of 690 (17%), about 2m to go, 2 of 4 pods ready"),
    (replace(TRAINING, world_size=6), "training", "step 120 of 690 (17%), about 2m to go, 6 of 8 ranks train"),
    (replace(TRAINING, world_size=None), "training", "step 120 of 690 (17%), about 2m to go"),
    (replace(TRAINING, step=690, eta_seconds=0.0, nodes=HALF_READY), "training", "step 690 of 690 (100%)"),
    (replace(TRAINING, step=None), "running", "running"),
    (replace(TRAINING, steps_planned=None, eta_seconds=None), "training", "step 120"),
    (RESTARTING, "restarting", f"re-forming the worker group, restarts: 2 (failure 2), {HALF}"),
    (replace(TRAINING, state=State.SUSPENDED), "suspended", "stopping, 4 pods left"),
    (replace(TRAINING, state=State.SUSPENDED, nodes=NONE_READY), "suspended", "suspended"),
    (replace(TRAINING, state=State.DELETING), "deleting", "being deleted"),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
def test_each_state_has_its_line(state: JobState, phase: str, text: str) -> None:
    assert progress_line(state, NOW) == ProgressLine("digits", phase, text)


def test_a_program_that_joins_no_group_runs_and_does_not_import_for_ever() -> None:
    state = starting(StartupPhase.IMPORTS, State.RUNNING)
    assert progress_line(state, NOW).phase == "imports"
    assert progress_line(state, NOW + 60.0).phase == "running"
    assert progress_line(starting(StartupPhase.FIRST_BATCH, State.RUNNING), NOW + 600.0).phase == "first_batch"


@pytest.mark.parametrize(("state", "line"), [
    (
        replace(TRAINING, state=State.SUCCEEDED, summary=SUMMARY),
        "Job digits succeeded in 12s: accuracy 0.98, 690 steps, 0 samples lost, 2 restarts.",
    ),
    (replace(TRAINING, state=State.SUCCEEDED), "Job digits succeeded in 12s: 120 steps, 0 restarts."),
    (replace(TRAINING, state=State.SUCCEEDED, step=None), "Job digits succeeded in 12s: 0 restarts."),
    (replace(TRAINING, state=State.FAILED, restarts={"failure": 1}), f"{FAILED}: 120 of 690 steps, 1 restart."),
    (replace(TRAINING, state=State.LOST), "Job digits failed after 12s: 120 of 690 steps, 0 restarts."),
    (replace(TRAINING, state=State.FAILED, step=None, uses_torchrun=True), "Job digits failed after 12s."),
], ids=["the trainer's", "a script's", "without steps", "failed", "lost", "torchrun's"])  # fmt: skip
def test_the_end_is_one_line_with_duration_steps_restarts_and_lost_samples(state: JobState, line: str) -> None:
    assert end_line(replace(state, finished=CREATED_EPOCH + 12.4), now=0.0) == line


def test_a_job_that_runs_again_is_told_with_its_ranks_and_its_step() -> None:
    assert start_line(TRAINING, 4.2) == "Job digits runs after 4s: 8 ranks, step 120 of 690 (17%)."
    assert start_line(replace(TRAINING, step=None, world_size=None), 4.2) == "Job digits runs after 4s."


def test_the_size_of_the_image_is_known_once_a_pod_has_pulled_it() -> None:
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": CREATED}
    pulling = pod(1, waiting(), creationTimestamp=CREATED)
    pulling["status"]["conditions"] = [scheduled]
    report = 'Successfully pulled image "a.b/train:1" in 9s (9s including waiting). Image size: 3221225472 bytes.'
    events = (event("Pulling"), event("Pulling", index=1))
    before = Snapshot(job("Created"), (pod(0), pulling), events)
    after = replace(before, events=(*events, event("Pulled", report)))
    text = "pulling the image, 1 of 2 pods ready"
    assert progress_line(job_state(before, {}), NOW).text == text
    assert progress_line(job_state(after, {}), NOW).text == f"{text}, 3.0 GiB each"
