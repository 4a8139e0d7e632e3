"""Restarts of local pods: by exit code, in place, up to a limit; of the store; and none after the engine's death."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from kubectl_ddp.backends.local.process import descendants, marked
from kubectl_ddp.errors import DdpError, InfrastructureFailed
from kubectl_ddp.status.job_state import State, failure, job_state
from tests.support.local_place import Place, all_run, condition, container, seen_in_log, workers


def once(place: Place, first: str, then: str) -> str:
    """A script that does one thing in its first life, and another in its next."""
    return f"[ -e {place.state}/once ] || {{ touch {place.state}/once; {first}; }}; {then}"


@pytest.mark.parametrize("how", ["exit 143", "kill -9 $$"])
def test_under_exit_code_a_retryable_end_makes_a_new_pod(place: Place, how: str) -> None:
    place.run(once(place, how, "exit 0"), replicas=1)
    shown = place.ended()
    assert condition("Succeeded")(shown)
    (pod,) = workers(shown)
    assert container(pod)["restartCount"] == 0
    assert container(pod)["lastState"]["terminated"]["exitCode"] >= 128
    assert [event["reason"] for event in shown.events].count("SuccessfulCreatePod") == 2
    assert "ExitedWithCode" in [event["reason"] for event in shown.events]


def test_under_exit_code_a_permanent_end_fails_the_job_and_stops_the_others(place: Place) -> None:
    place.run("case $HOSTNAME in *-0) exit 93;; esac; exec sleep 100")
    shown = place.ended()
    assert condition("Failed")(shown)
    assert {container(pod)["state"]["terminated"]["exitCode"] for pod in shown.pods} == {93, 143}


def test_on_failure_restarts_in_place(place: Place) -> None:
    place.run(once(place, "exit 1", "exit 0"), replicas=1, policy="OnFailure")
    shown = place.ended()
    assert condition("Succeeded")(shown)
    (pod,) = workers(shown)
    assert container(pod)["restartCount"] == 1
    assert container(pod)["lastState"]["terminated"]["exitCode"] == 1


def test_a_killed_store_is_back_at_the_same_address_while_the_workers_go_on(place: Place) -> None:
    place.run("exec sleep 100", store="echo started; exec sleep 100")
    before = place.until(
        lambda shown: len(shown.pods) == 3 and all("running" in container(pod)["state"] for pod in shown.pods)
    )
    store = next(pod for pod in before.pods if pod["metadata"]["labels"]["ddp.dev/role"] == "store")
    engine = place.engine()
    (pid,) = [
        pid
        for pid in descendants(engine.identity.pid)
        if f"DDP_POD_IP={store['status']['podIP']}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    ]
    os.kill(pid, signal.SIGKILL)
    after = place.until(
        lambda shown: any(
            container(pod)["restartCount"] == 1 and "running" in container(pod)["state"] for pod in shown.pods
        )
    )
    assert {pod["status"]["podIP"] for pod in after.pods} == {pod["status"]["podIP"] for pod in before.pods}
    assert [container(pod)["restartCount"] for pod in workers(after)] == [0, 0]


def test_the_engines_death_takes_the_pods_down_and_is_told(place: Place) -> None:
    uid = place.run("exec sleep 100")["metadata"]["uid"]
    place.until(all_run(2))
    place.kill_engine()
    state = job_state(place.job("digits"), {}, where="local")
    assert state.state is State.LOST
    assert state.nodes.ready == 0
    assert "ended without reporting a status" in state.reason
    assert isinstance(failure(state), InfrastructureFailed)
    while marked(f"{uid}/"):  # the kernel has sent SIGKILL to each; a process takes a moment to go
        pass
    place.delete("digits")
    assert place.jobs() == []


def test_a_lost_job_can_be_deleted_with_what_its_pods_left(place: Place) -> None:
    uid = place.run("setsid sleep 1000 & exec sleep 100", replicas=1)["metadata"]["uid"]
    place.until(all_run(1))
    while len(marked(f"{uid}/")) < 2:
        pass
    place.kill_engine()
    place.delete("digits")
    assert marked(f"{uid}/") == []
    assert place.jobs() == []


def test_a_lost_job_leaves_no_directory_outside_of_its_own(place: Place) -> None:
    mounts = [{"name": "scratch", "mountPath": "/tmp"}, {"name": "boards", "mountPath": "/boards"}]
    volumes = [{"name": "scratch", "emptyDir": {}}, {"name": "boards", "emptyDir": {"medium": "Memory"}}]
    boards = [{"name": "BOARDS", "value": "/boards"}]
    script = "echo $TMPDIR; echo $BOARDS; touch $TMPDIR/a $BOARDS/b; echo made; exec sleep 100"
    place.run(script, replicas=1, container={"volumeMounts": mounts, "env": boards}, pod={"volumes": volumes})
    scratch, in_memory, _ = (Path(line) for line in seen_in_log(place, "made"))
    assert (scratch / "a").exists()
    assert (in_memory / "b").exists()
    place.kill_engine()
    place.delete("digits")
    assert not scratch.exists()
    assert not in_memory.exists()


def test_a_lost_job_can_be_resumed(place: Place) -> None:
    place.run(once(place, "echo first; exec sleep 100", "exit 0"), replicas=1)
    seen_in_log(place, "first")
    place.kill_engine()
    place.suspend("digits", suspended=False)
    assert condition("Succeeded")(place.ended())


def test_a_lost_job_whose_directory_is_incomplete_is_refused_in_one_sentence(place: Place) -> None:
    place.run(once(place, "echo first; exec sleep 100", "exit 0"), replicas=1)
    seen_in_log(place, "first")
    place.kill_engine()
    place.files().machine_file.unlink()
    with pytest.raises(DdpError, match=r"Job 'digits' cannot start: .* is missing"):
        place.suspend("digits", suspended=False)


def test_an_engine_that_is_told_to_stop_stops_its_pods_in_good_order(place: Place) -> None:
    place.run("trap 'echo saved; exit 143' TERM; echo ready; while :; do sleep 0.1; done", replicas=1)
    pod = workers(place.until(all_run(1)))[0]
    lines = place.logs(pod, follow=True)
    assert next(lines) == "ready"
    place.engine().identity.signal(signal.SIGTERM)
    assert list(lines) == ["saved"]
    shown = place.ended()
    assert "SIGTERM" in job_state(shown, {}).reason
