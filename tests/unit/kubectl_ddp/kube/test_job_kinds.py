"""Each kind of root object is read with its own words; the statuses are those of real runs (Kubernetes 1.36,
training operator 1.9.4, Trainer 2.3, JobSet 0.12)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kubectl_ddp.engines import ENGINES as ENGINE_KINDS
from kubectl_ddp.engines import Engine
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object, Snapshot, epoch
from kubectl_ddp.render import render
from kubectl_ddp.status.job_state import State, job_state
from kubectl_ddp.values.quantity import NodeRange
from tests.support import kube_objects
from tests.support.jobs import ENGINES, a_job

STATUSES = json.loads((Path(__file__).parent / "root_statuses.json").read_text(encoding="utf-8"))
STATES = {"suspended": State.SUSPENDED, "running": State.RUNNING, "failed": State.FAILED, "succeeded": State.SUCCEEDED}


def root(engine: Engine, status: str, **changes: Any) -> Object:
    rendered = render(a_job(engine=engine, **changes), "run1", suspended=status == "suspended")
    found = job_kinds.root_of(rendered)
    found["metadata"] |= {"uid": "u-1", "creationTimestamp": kube_objects.CREATED}
    return found | {"status": STATUSES[engine][status]}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("status", STATES)
def test_the_state_of_a_job_is_the_same_whichever_engine_tells_it(engine: Engine, status: str) -> None:
    pods = (kube_objects.pod(0), kube_objects.pod(1)) if status == "running" else ()
    state = job_state(Snapshot(root(engine, status, nnodes=NodeRange(1, 3)), pods), {})
    assert state.state is STATES[status]
    assert (state.nodes.minimum, state.nodes.desired, state.nodes.maximum) == (1, 3, 3)
    assert state.processes_per_node == 2
    assert (state.finished is not None) == (status in {"failed", "succeeded"})


@pytest.mark.parametrize("engine", ENGINES)
def test_a_failure_comes_with_the_engines_reason(engine: Engine) -> None:
    reason = job_state(Snapshot(root(engine, "failed"), ()), {}).reason
    assert reason, "what the engine says"
    assert len(reason.splitlines()) == 1


def test_a_store_is_no_job_and_neither_is_what_somebody_else_made() -> None:
    objects = render(a_job(engine=Engine.JOB), "run1")
    assert [job_kinds.kind_of(item) for item in objects] == [ENGINE_KINDS[Engine.JOB], *[None] * 6]
    assert job_kinds.kind_of({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {}}) is None


def test_a_specification_that_cannot_be_read_says_nothing() -> None:
    for text in ("", "{", "[]"):
        found = root(Engine.JOB, "running")
        found["metadata"]["annotations"]["ddp.dev/spec"] = text
        assert job_kinds.submitted_spec(found) == {}
        assert job_kinds.bounds(found) == (2, 2)
        assert job_kinds.processes_per_node(found) == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_list_and_status_show_a_duration_whichever_engine_runs_the_job(engine: Engine) -> None:
    running = job_state(Snapshot(root(engine, "running"), (kube_objects.pod(0),)), {})
    assert running.started is not None
    assert running.duration(running.started + 7.0) == 7.0
    ended = job_state(Snapshot(root(engine, "failed"), ()), {})
    assert (ended.started, ended.finished) != (None, None)
    assert ended.duration(0.0) == max(0.0, (ended.finished or 0.0) - (ended.started or 0.0))


@pytest.mark.parametrize("engine", [Engine.TRAINJOB, Engine.JOBSET])
def test_a_job_without_a_start_time_has_the_best_time_there_is(engine: Engine) -> None:
    made = root(engine, "running")
    suspended = made["status"]["conditions"][0]
    assert job_state(Snapshot(made, ()), {}).started == epoch(suspended["lastTransitionTime"]), "resumed"
    never = {**made, "status": {**made["status"], "conditions": []}}
    assert job_state(Snapshot(never, (kube_objects.pod(0),)), {}).started == kube_objects.CREATED_EPOCH
    assert job_state(Snapshot(root(engine, "suspended"), ()), {}).started is None
    assert job_state(Snapshot({**made, "status": {}}, ()), {}).started is None, "no pod has run"
