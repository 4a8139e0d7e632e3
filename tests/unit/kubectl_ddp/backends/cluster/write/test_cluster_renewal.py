"""A failed job gets a new run, and is never gone: the command dies after any call, and the next one finishes it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from ddp_trainer.common.constants import Label
from kubectl_ddp.backends.cluster.http import api
from kubectl_ddp.backends.cluster.write.submission import INCOMPLETE
from kubectl_ddp.backends.job_recovery import run_of
from kubectl_ddp.cli.run import run
from kubectl_ddp.code import archive
from kubectl_ddp.code.archive import ARCHIVE, read_back
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.render import Code, render
from kubectl_ddp.values.program import Script
from tests.support import kube_objects
from tests.support.api_server import GROUPS, Answer, ApiServer, Json, Request, kubeconfig, serving
from tests.support.jobs import a_job

JOB: Final = "/apis/kubeflow.org/v1/namespaces/team/pytorchjobs/digits"
CONFIG_MAPS: Final = "/api/v1/namespaces/team/configmaps/"
RECORD: Final = f"{CONFIG_MAPS}digits-restart"
SCRIPT: Final = Code("train.py", "print('the 7th layer')\n")
PARTS: Final = Code(ARCHIVE, "QUJDREVGR0hJSktM")
MOST_CHANGES: Final = 40


class Mortal(ApiServer):
    """API server that stops answering after a number of changes, before or after the answer to the last one.

    It deletes the dependents of a deleted object.
    """

    left: int | None = None
    """Changes that are still made; any number when ``None``."""
    loses_answer = False

    def answer(self, request: Request) -> Answer:
        if self.left is not None and self.left <= 0:
            return Answer(200, cut=True)
        found = super().answer(request)
        if request.method == "DELETE":
            self.collect_garbage()
        if self.left is None or request.method == "GET":
            return found
        self.left -= 1
        return Answer(200, cut=True) if self.left == 0 and self.loses_answer else found


@pytest.fixture
def mortal(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mortal]:
    groups = {**GROUPS, "/apis/discovery.k8s.io/v1": {"EndpointSlice": "endpointslices"}}
    with serving(Mortal(groups)) as mortal:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(workdir, mortal.url)))
        yield mortal


def furnish(mortal: Mortal, code: Code = SCRIPT) -> None:
    """A job with its code that has failed, and nothing else."""
    mortal.objects.clear()
    made = render(a_job(program=Script("train.py")), "run1", code=code)
    root = job_kinds.root_of(made)
    root["status"] = {"conditions": [kube_objects.condition("Failed")]}
    root["metadata"]["creationTimestamp"] = kube_objects.CREATED
    owner = {"kind": root["kind"], "name": "digits", "uid": mortal.put(JOB, root)["metadata"]["uid"]}
    for part in [item for item in made if item["kind"] == "ConfigMap"]:
        part["metadata"]["ownerReferences"] = [owner]
        mortal.put(f"{CONFIG_MAPS}{part['metadata']['name']}", part)


def restart(mortal: Mortal, left: int | None = None) -> int:
    mortal.left = left
    try:
        return run(["restart", "digits", "--yes", "--quiet"])
    finally:
        mortal.left = None


def what_it_needs_is_kept(mortal: Mortal, code: Code) -> bool:
    """Return True if spec and code exist, with the old run or in the record of the restart."""
    groups = defaultdict(list)
    for path, item in mortal.objects.items():
        if path.startswith(CONFIG_MAPS):
            groups[run_of(item) or item["metadata"]["labels"][Label.RUN_ID]].append(item)
    return (JOB in mortal.objects or RECORD in mortal.objects) and any(
        read_back([item for item in group if bool(run_of(item)) is is_record]) == code
        for group in groups.values()
        for is_record in (True, False)
    )


def is_one_new_job(mortal: Mortal) -> None:
    job = mortal.objects[JOB]
    assert is_new(job)
    assert not job_kinds.is_suspend_requested(job)
    run_id = job["metadata"]["labels"][Label.RUN_ID]
    own = [
        item for item in mortal.objects.values() if (item["metadata"].get("labels") or {}).get(Label.RUN_ID) == run_id
    ]
    assert {item["kind"] for item in own} >= {"PyTorchJob", "ConfigMap", "Job", "Service", "NetworkPolicy"}
    assert not [path for path in mortal.objects if path.startswith(RECORD)]


def test_a_job_that_fails_while_it_stops_gets_a_new_run_too(mortal: Mortal, monkeypatch: pytest.MonkeyPatch) -> None:
    furnish(mortal)
    mortal.objects[JOB]["status"] = {"conditions": [kube_objects.condition("Running")]}
    answered = mortal.answer

    def answer(request: Request) -> Answer:
        found = answered(request)
        if request.method == "PATCH" and request.path == JOB and not is_new(mortal.objects[JOB]):
            mortal.objects[JOB]["status"] = {"conditions": [kube_objects.condition("Failed")]}
        return found

    monkeypatch.setattr(mortal, "answer", answer)
    assert restart(mortal) == 0
    is_one_new_job(mortal)


@pytest.mark.parametrize("code", [SCRIPT, PARTS], ids=["script", "parts"])
def test_the_client_that_dies_after_any_change_of_restart_and_is_run_again_makes_exactly_one_job(
    mortal: Mortal, monkeypatch: pytest.MonkeyPatch, code: Code
) -> None:
    monkeypatch.setattr(api, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(archive, "PART_LETTERS", 8)
    changes, is_through = 0, False
    while not is_through:
        changes += 1
        assert changes < MOST_CHANGES
        furnish(mortal, code)
        mortal.loses_answer = changes % 2 == 0
        restart(mortal, changes)
        assert what_it_needs_is_kept(mortal, code), f"after change {changes}"
        is_through = is_new(mortal.objects.get(JOB)) and RECORD not in mortal.objects
        if not is_new(mortal.objects.get(JOB)):
            assert restart(mortal) == 0, f"after change {changes}"
        else:
            assert run(["delete", "digits", "--yes", "--quiet"]) == 0, "what is left of the record goes with the job"
            assert not [path for path in mortal.objects if path.startswith(CONFIG_MAPS)]
            furnish(mortal, code)
            assert restart(mortal) == 0
        is_one_new_job(mortal)
        assert what_it_needs_is_kept(mortal, code)
    assert changes > 8, "record, old run, new run and its companions, and the record again"


def is_new(job: Json | None) -> bool:
    """Return True if the job is a new run with all its objects."""
    return (
        job is not None
        and job["metadata"]["labels"][Label.RUN_ID] != "run1"
        and INCOMPLETE not in job["metadata"]["annotations"]
    )


def test_a_refused_submission_says_that_nothing_is_lost(mortal: Mortal, capsys: pytest.CaptureFixture[str]) -> None:
    furnish(mortal)
    denied = {"kind": "Status", "message": "denied by policy", "reason": "Forbidden"}
    mortal.next("POST /apis/kubeflow.org/v1/namespaces/team/pytorchjobs", Answer(403, denied))
    assert restart(mortal) == 5
    assert "What the job is made of is kept: 'kubectl-ddp restart digits' tries again." in capsys.readouterr().err
    assert RECORD in mortal.objects
    assert restart(mortal) == 0
    is_one_new_job(mortal)


def test_what_a_restart_has_left_goes_when_the_job_is_deleted(mortal: Mortal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "PART_LETTERS", 8)
    furnish(mortal, PARTS)
    mortal.next("POST /apis/kubeflow.org/v1/namespaces/team/pytorchjobs", Answer(403, {"kind": "Status"}))
    assert restart(mortal) == 5
    assert run(["delete", "digits", "--yes"]) == 0
    assert not [path for path in mortal.objects if path.startswith(CONFIG_MAPS)]
    assert run(["restart", "digits", "--yes"]) == 3


def test_a_config_map_of_others_and_the_old_run_are_kept(mortal: Mortal, capsys: pytest.CaptureFixture[str]) -> None:
    furnish(mortal)
    mortal.put(RECORD, {"metadata": {}, "data": {"a": "b"}})
    assert restart(mortal) == 1
    assert "There is another ConfigMap 'digits-restart'" in capsys.readouterr().err
    assert mortal.objects[JOB]["metadata"]["labels"][Label.RUN_ID] == "run1"
