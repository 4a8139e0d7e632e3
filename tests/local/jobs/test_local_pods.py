"""Environment, addresses, names, volumes and files of a pod of a local job; and files that remain after its end."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from kubectl_ddp.backends.local.process import descendants
from kubectl_ddp.errors import PreflightFailed, UsageError
from tests.support.kube_objects import a_template, job
from tests.support.local_place import Place, a_place, all_run, condition, container, seen_in_log, workers


def environment(place: Place, index: int = 0) -> dict[str, str]:
    return dict(line.split("=", 1) for line in place.lines(index) if "=" in line)


def test_a_pod_has_the_operators_environment_and_an_address_of_its_own(place: Place) -> None:
    variables = [
        {"name": "DDP_POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "PEER", "value": "digits-worker-1:1"},
        {"name": "STORE", "value": "digits-store.team.svc"},
    ]
    place.environ.update(RANK="7", PET_NNODES="9")
    place.run("env; sleep 100", container={"env": variables}, store="sleep 100")
    for index in (0, 1):
        seen_in_log(place, "PEER=", index)
    shown = place.until(all_run(2))
    first, second = (environment(place, index) for index in (0, 1))
    assert (first["PET_NNODES"], first["PET_NPROC_PER_NODE"], first["PYTHONUNBUFFERED"]) == ("1:4", "2", "1")
    assert (first["DDP_POD_NAME"], second["DDP_POD_NAME"]) == ("digits-worker-0", "digits-worker-1")
    assert first["DDP_POD_IP"] == first["DDP_METRICS_ADDRESS"] == workers(shown)[0]["status"]["podIP"]
    assert first["PET_RDZV_ENDPOINT"] == f"{first['DDP_POD_IP']}:23456"
    assert first["PEER"] == f"{second['DDP_POD_IP']}:1"
    assert first["GLOO_SOCKET_IFNAME"] == "lo"
    assert first["PATH"].startswith(str(Path(sys.executable).parent))
    assert "RANK" not in first
    addresses = {pod["status"]["podIP"] for pod in shown.pods}
    assert len(addresses) == 3
    assert all(address.startswith("127.") for address in addresses)
    assert first["STORE"] in addresses


def test_state_directories_may_have_unusual_names(tmp_path: Path) -> None:
    with a_place(tmp_path / "a b:c'd\"é$(x)") as place:
        place.run('echo "$DDP_TERMINATION_LOG"; echo -n it was me > "$DDP_TERMINATION_LOG"', replicas=1)
        shown = place.ended()
        assert container(workers(shown)[0])["state"]["terminated"]["message"] == "it was me"


def test_what_cannot_be_started_fails_the_job_with_its_name(place: Place) -> None:
    template = a_template(["no-such-program"])
    place.submit([job(template=template)])
    shown = place.ended()
    assert condition("Failed")(shown)
    assert container(workers(shown)[0])["state"]["terminated"] | {"startedAt": 0, "finishedAt": 0} == {
        "exitCode": 127,
        "reason": "StartError",
        "message": 'exec: "no-such-program": executable file not found in $PATH',
        "startedAt": 0,
        "finishedAt": 0,
        "containerID": "",
    }


def test_the_last_lines_are_the_message_when_the_template_says_so(place: Place) -> None:
    policy = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    place.run("echo first; echo last; exit 3", replicas=1, container=policy)
    ended = container(workers(place.ended())[0])["state"]["terminated"]
    assert (ended["exitCode"], ended["message"]) == (3, "first\nlast")


def test_the_fullest_summary_outlives_the_pods(place: Place) -> None:
    container_parts = {"volumeMounts": [{"name": "run", "mountPath": "/var/run/ddp"}]}
    script = """echo '{"result": "succeeded"}' > $0/summary.json; [ $1 = 0 ] || exit 0
        echo '{"result": "succeeded", "steps": 7}' > $0/summary.json"""
    index = {"fieldRef": {"fieldPath": "metadata.labels['training.kubeflow.org/replica-index']"}}
    container_parts["env"] = [{"name": "INDEX", "valueFrom": index}]  # type: ignore[list-item]
    template = a_template(["sh", "-c", script, "/var/run/ddp", "$(INDEX)"], **container_parts)
    template["spec"]["volumes"] = [{"name": "run", "emptyDir": {}}]
    place.submit([job(template=template, bounds=None, policy="Never")])
    place.ended()
    assert json.loads(place.files().summary_file.read_text()) == {"result": "succeeded", "steps": 7}


def test_the_end_of_a_container_ends_all_it_started(place: Place) -> None:
    # One keeps the mark, one drops its environment, one leaves the session, one does both and is orphaned.
    script = "sleep 1000 & env -i sleep 1001 & setsid sleep 1002 & (env -i setsid sleep 1003 &) ; sleep 0.2; kill -9 $$"
    place.run(f"[ -e {place.state}/once ] && exec sleep 100; touch {place.state}/once; {script}", replicas=1)
    place.until(lambda shown: [container(pod)["lastState"] for pod in workers(shown) if container(pod)["lastState"]])
    place.until(all_run(1))
    left = descendants(place.engine().identity.pid)
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left]
    # The last of the four has nothing that tells whose it was: it goes with the job, below.
    assert sorted(command for command in commands if b"sleep" in command) in (
        [b"sleep\x00100\x00"],
        [b"sleep\x00100\x00", b"sleep\x001003\x00"],
    )
    place.delete("digits")
    assert not [pid for pid in left if _sleeps(pid)]


def _sleeps(pid: int) -> bool:
    try:
        return b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return False


def test_a_pod_that_ignores_sigterm_is_killed_after_its_grace_period(place: Place) -> None:
    place.run(
        "trap '' TERM; echo ready; while :; do sleep 0.1; done", replicas=1, pod={"terminationGracePeriodSeconds": 1}
    )
    seen_in_log(place, "ready")
    pid = descendants(place.engine().identity.pid)[0]
    place.delete("digits")
    assert not Path(f"/proc/{pid}").exists()


def test_a_signal_is_told_as_a_container_runtime_tells_it(place: Place) -> None:
    place.run("kill -SEGV $$", replicas=1, policy="Never")
    ended = container(workers(place.ended())[0])["state"]["terminated"]
    assert (ended["exitCode"], ended["signal"]) == (128 + signal.SIGSEGV, signal.SIGSEGV)


TWO_CONTAINERS = a_template()
TWO_CONTAINERS["spec"]["containers"].append({"name": "sidecar"})


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        ([], "A local job is one PyTorchJob with what it needs; here are 0"),
        ([job(replicas=300, bounds=None)], "at most 253 nodes, not 300"),
        ([job(template=TWO_CONTAINERS)], r"has one container, not 2 \(pytorch, sidecar\)"),
    ],
    ids=["no root", "too many nodes", "two containers"],
)
def test_what_is_no_local_job_is_refused(place: Place, broken: list[dict[str, object]], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        place.submit(broken)
    assert place.jobs() == []


def test_an_interpreter_without_torch_is_refused_with_the_way_out(tmp_path: Path) -> None:
    bare = tmp_path / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    with a_place(tmp_path / "state", KUBECTL_DDP_PYTHON=str(bare)) as place:
        template = a_template(["ddp-launch", "train.py"])
        with pytest.raises(
            PreflightFailed, match=r"cannot import torch and ddp_trainer.*pip install \"kubectl-ddp\[trainer\]\""
        ):
            place.submit([job(template=template)])


def test_an_interpreter_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with (
        a_place(tmp_path / "state", KUBECTL_DDP_PYTHON="/no/such/python") as place,
        pytest.raises(PreflightFailed, match="There is no Python at '/no/such/python'"),
    ):
        place.submit([job(template=a_template(["ddp-launch"]))])


def test_a_home_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        a_place(tmp_path / "file") as place,
        pytest.raises(PreflightFailed, match=r"file/kubectl-ddp/jobs', which cannot be written.*Set XDG_STATE_HOME"),
    ):
        place.submit([job()])
