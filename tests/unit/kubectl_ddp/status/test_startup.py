"""Startup waterfall of a job: phases from pods, events and metrics, which add up to the time from submission on."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from ddp_trainer.common.constants import Annotation
from ddp_trainer.common.metric_names import Metric, MetricLabel
from ddp_trainer.common.time_classes import IN_POD, StartupPhase
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.observe.job_results import persist_result
from kubectl_ddp.status.describe import startup_text
from kubectl_ddp.status.job_state import job_state
from kubectl_ddp.status.metrics_parser import GROUPS_JOINED, Samples, parse
from kubectl_ddp.status.startup import Startup, startup
from tests.support.kube_objects import CREATED_EPOCH, condition, job, pod, pod_metrics, snapshot, terminated, waiting
from tests.support.scripted_backend import ScriptedBackend

SPENT = {StartupPhase.INTERPRETER: 0.5, StartupPhase.IMPORTS: 1.5, StartupPhase.RENDEZVOUS: 0.25}
SPENT |= {StartupPhase.FIRST_BATCH: 0.25, StartupPhase.COMPILE: 4.0, StartupPhase.FIRST_STEP: 0.5}


def stamp(seconds: float) -> str:
    """Kubernetes' time, some seconds after the job's creation."""
    return dt.datetime.fromtimestamp(CREATED_EPOCH + seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def a_pod(
    index: int = 0, *, created: int = 2, scheduled: int | None = 3, started: int | None = 10, network: int | None = None
) -> Object:
    """A worker pod, by the seconds at which it reached what is not None."""
    state = waiting() if started is None else {"running": {"startedAt": stamp(started)}}
    made = pod(index, state, creationTimestamp=stamp(created))
    known = {"PodScheduled": scheduled, "PodReadyToStartContainers": network}
    made["status"]["conditions"] = [
        {"type": kind, "status": "True", "lastTransitionTime": stamp(moment)}
        for kind, moment in known.items()
        if moment is not None
    ]
    return made


def told(
    spent: Mapping[str, float] = SPENT,
    *,
    began: float = 10.5,
    job_start: float | None = None,
    groups: tuple[int, int] | None = None,
) -> Samples:
    """Return the startup metrics of a pod; ``groups`` is the number of groups it joined, and of the last round."""
    phases = "".join(
        f'{Metric.STARTUP}{{{MetricLabel.PHASE}="{phase}"}} {seconds}\n' for phase, seconds in spent.items()
    )
    first = "" if job_start is None else f"{Metric.JOB_START} {CREATED_EPOCH + job_start}\n"
    if groups is not None:
        first += f"{GROUPS_JOINED} {groups[0]}\n{Metric.RENDEZVOUS_ROUND} {groups[1]}\n"
    return parse(f"{phases}{Metric.AGENT_START} {CREATED_EPOCH + began}\n{first}")


def event(reason: str, message: str = "", index: int = 0) -> Object:
    metadata = {"kind": "Pod", "name": f"digits-worker-{index}"}
    return {"involvedObject": metadata, "reason": reason, "message": message}


PULLED = event("Pulled", 'Successfully pulled image "x" in 4.2s (5s including waiting). Image size: 7 bytes.')


def of(*pods: Object, events: tuple[Object, ...] = (), submitted: str = "", **samples: Samples) -> Startup:
    made = job(metadata={"annotations": {Annotation.SUBMITTED: submitted}} if submitted else None)
    found = startup(made, pods, {f"digits-worker-{name[1:]}": sample for name, sample in samples.items()}, events)
    assert found is not None
    return found


def test_every_second_from_submission_to_the_first_step_has_one_phase() -> None:
    found = of(a_pod(), events=(event("Pulling"), PULLED), w0=told())
    assert found.seconds == pytest.approx({"queue": 2, "schedule": 1, "pull": 5, "container": 2.5, **SPENT})
    assert found.is_over
    assert found.total == pytest.approx(10.5 + sum(SPENT.values()))
    assert [*found.seconds] == [phase for phase in StartupPhase if phase in found.seconds]


def test_the_submission_is_exact_where_it_was_annotated() -> None:
    found = of(a_pod(), submitted=f"{CREATED_EPOCH - 0.75:.3f}", w0=told())
    assert found.total == pytest.approx(11.25 + sum(SPENT.values()))


@pytest.mark.parametrize("annotated", ["soon", f"{CREATED_EPOCH - 86_400:.3f}", "nan"])
def test_an_annotation_that_cannot_be_of_this_job_is_ignored(annotated: str) -> None:
    assert of(submitted=annotated).submitted == CREATED_EPOCH


@pytest.mark.parametrize(
    ("pods", "events", "current"),
    [
        ([], (), StartupPhase.QUEUE),
        ([a_pod(scheduled=None, started=None)], (), StartupPhase.SCHEDULE),
        ([a_pod(started=None)], (), StartupPhase.CONTAINER),
        ([a_pod(started=None)], (event("Pulling"),), StartupPhase.PULL),
        ([a_pod(started=None)], (event("Pulling"), PULLED), StartupPhase.CONTAINER),
        ([a_pod()], (), StartupPhase.INTERPRETER),
        ([a_pod(), a_pod(1, started=None)], (), StartupPhase.CONTAINER),
    ],
)
def test_the_current_phase_is_that_of_the_pod_that_has_come_least_far(
    pods: list[Object], events: tuple[Object, ...], current: StartupPhase
) -> None:
    assert of(*pods, events=events).current is current


@pytest.mark.parametrize(("last", "current"), [*zip(IN_POD, [*IN_POD[1:], None], strict=True)])
def test_a_phase_that_was_measured_is_followed_by_the_next(last: StartupPhase, current: StartupPhase | None) -> None:
    measured = dict.fromkeys(IN_POD[: IN_POD.index(last) + 1], 1.0)
    found = of(a_pod(), w0=told(measured))
    assert found.current is current
    assert found.since == pytest.approx(CREATED_EPOCH + 10.5 + len(measured))


def test_a_launcher_that_waits_for_the_group_of_a_script_is_in_the_rendezvous() -> None:
    assert of(a_pod(), w0=parse(pod_metrics(state="rendezvous"))).current is StartupPhase.RENDEZVOUS
    assert of(a_pod(), w0=parse(pod_metrics(state="starting"))).current is StartupPhase.INTERPRETER


def test_the_pod_that_the_others_waited_for_is_shown() -> None:
    late = SPENT | {StartupPhase.IMPORTS: 3.5, StartupPhase.RENDEZVOUS: 0.0}
    early = SPENT | {StartupPhase.RENDEZVOUS: 2.0}
    found = of(a_pod(), a_pod(1), w0=told(early), w1=told(late))
    assert (found.pod, found.seconds["imports"]) == ("digits-worker-1", 3.5)


def test_a_pod_that_joined_after_the_first_step_changes_nothing() -> None:
    found = of(a_pod(), a_pod(1, created=60, scheduled=61, started=62), w0=told(), w1=told(began=62.5))
    assert found.pod == "digits-worker-0"


def test_pods_that_replaced_those_of_the_first_start_say_nothing_about_it() -> None:
    pods = [a_pod(created=600, scheduled=601, started=602)]
    assert startup(job(), pods, {"digits-worker-0": told(began=602.5, job_start=10.5)}) is None
    assert startup(job(), pods, {"digits-worker-0": told(began=602.5, job_start=602.5)}) is not None


REPLACED = a_pod(created=600, scheduled=601, started=602)


def test_a_pod_that_was_not_in_the_first_group_says_nothing_about_the_start_of_a_script() -> None:
    late = told(began=602.5, groups=(1, 2))
    assert startup(job(), [REPLACED], {"digits-worker-0": late}) is None
    found = of(REPLACED, a_pod(1), w0=late, w1=told(groups=(2, 2)))
    assert (found.pod, found.seconds["queue"]) == ("digits-worker-1", 2)


def test_a_pod_that_joined_before_the_first_step_may_be_the_one_that_the_others_waited_for() -> None:
    slow = SPENT | {StartupPhase.IMPORTS: 3.5, StartupPhase.RENDEZVOUS: 0.0}
    waited = SPENT | {StartupPhase.RENDEZVOUS: 2.0}
    both = {"w0": told(waited, groups=(2, 2)), "w1": told(slow, groups=(1, 2))}
    assert of(a_pod(), a_pod(1), **both).pod == "digits-worker-1"
    starting = {"w0": told({}, groups=(2, 2)), "w1": told({}, groups=(1, 2))}
    assert of(a_pod(), a_pod(1), **starting).current is StartupPhase.INTERPRETER


SUSPENDED = job("Created", "Suspended", run_policy={"suspend": True})
RESUMED = job("Created", condition("Suspended", "False", reason="PyTorchJobResumed"))


@pytest.mark.parametrize("made", [SUSPENDED, RESUMED], ids=["suspended", "resumed"])
@pytest.mark.parametrize("pods", [(), (REPLACED,)], ids=["without pods", "with pods"])
def test_a_suspension_is_no_queue(made: Object, pods: tuple[Object, ...]) -> None:
    assert job_state(snapshot(made, *pods), {}).startup is None
    samples = {"digits-worker-0": told(began=602.5, groups=(1, 1))} if pods else {}
    assert job_state(snapshot(made, *pods), samples).startup is None


def test_a_root_that_its_submission_has_resumed_was_not_suspended() -> None:
    resumed = {**condition("Suspended", "False"), "lastTransitionTime": stamp(1)}
    state = job_state(snapshot(job("Created", "Running", resumed), a_pod()), {"digits-worker-0": told()})
    assert state.startup == of(a_pod(), w0=told())


def test_a_start_that_was_kept_stays() -> None:
    first = job_state(snapshot(job("Running"), a_pod()), {"digits-worker-0": told()})
    backend = ScriptedBackend([])
    persist_result(backend, job("Running"), first)
    made = job("Running", metadata={"annotations": backend.annotations})
    late = {"digits-worker-0": told(began=602.5, groups=(1, 1))}
    assert job_state(snapshot(made, REPLACED), late).startup == replace(first.startup, pod="")
    after = ScriptedBackend([])
    persist_result(after, made, job_state(snapshot(made, REPLACED), late))
    assert after.annotations == {}


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"startup": 3, "restarts": [], "step": "x"}', '{"startup": {"queue": 1}}']
)
def test_a_kept_start_that_is_malformed_counts_as_missing(text: str) -> None:
    made = job("Running", metadata={"annotations": {Annotation.EARLIER: text}})
    state = job_state(snapshot(made, a_pod()), {"digits-worker-0": told()})
    assert state.startup is not None
    assert state.startup.is_over
    assert state.restarts == {}


def test_without_events_a_long_pull_is_seen_by_the_conditions() -> None:
    assert "pull" not in of(a_pod(network=9), w0=told()).seconds
    assert of(a_pod(network=4), w0=told()).seconds["pull"] == 6.5


def test_the_start_outlives_metrics_and_pods() -> None:
    left = {"began": CREATED_EPOCH + 10.5, **SPENT}
    ended = a_pod()
    state = {**terminated(0, {"result": "succeeded", "startup": left})["terminated"], "startedAt": stamp(10)}
    ended["status"]["containerStatuses"][0]["state"] = {"terminated": state}
    over = job_state(snapshot(job("Succeeded"), ended), {})
    assert over.startup is not None
    assert over.startup.total == pytest.approx(10.5 + sum(SPENT.values()))
    assert over.summary is not None
    stored: dict[str, Any] = over.summary
    assert startup(job(), [], {}, (), stored) == Startup(submitted=CREATED_EPOCH, seconds=over.startup.seconds)


def test_the_text_has_the_time_of_each_phase() -> None:
    current = Startup(submitted=100.0, seconds={"queue": 1.0, "container": 2.0}, current=StartupPhase.IMPORTS)
    phases = "queue 1.0s, container 2.0s, imports 1.5s"
    assert startup_text(current, 104.5) == f"imports since 1.5s, submitted 4.5s ago: {phases}"
    assert startup_text(current, 999.0, 104.5) == f"4.5s from submission to the end, without a step: {phases}"
    over = Startup(submitted=100.0, seconds={"queue": 1.0, "first_step": 2.0})
    assert startup_text(over, 999.0) == "3.0s from submission to the first step: queue 1.0s, first step 2.0s"
