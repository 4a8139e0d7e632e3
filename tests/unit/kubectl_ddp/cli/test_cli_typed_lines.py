"""Lines that users of kubectl, torchrun and SkyPilot type: each works, or is refused with the command that does."""

from __future__ import annotations

import copy
import functools
import re
import shlex
from pathlib import Path
from typing import Final

import pytest

from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.observe.job_list import watch_list
from kubectl_ddp.render import render
from tests.support import kube_objects
from tests.support.api_server import Answer, ApiServer, status
from tests.support.command_line import CommandLine
from tests.support.jobs import a_job

COLLECTIONS: Final = ("/apis/kubeflow.org/v1/namespaces/team/pytorchjobs", "/apis/batch/v1/namespaces/team/jobs")
JOB_FILE: Final = "apiVersion: ddp.dev/v1\nkind: Job\nname: mine\nmodule: ddp_trainer\nargs: [train, --task, digits]\n"

WORKS: Final = {
    # kubectl get
    "get jobs": "digits   Pending",
    "get job digits": "digits   Pending",
    "get job/digits": "digits   Pending",
    "get digits": "digits   Pending",
    "get pytorchjobs": "images   Succeeded",
    "get pytorchjob/images": "images   Succeeded",
    "get jobs digits images": "images   Succeeded",
    "get": "READY",
    "get all": "READY",
    "get jobs -A": "NAMESPACE",
    "get jobs -o wide": "GOODPUT",
    "get jobs -o=wide --no-headers": "images   Succeeded",
    "get job/digits -o yaml": "kind: JobState\n",
    "get jobs -o jsonpath='{.items[*].metadata.name}'": "digits images",
    "get job digits -o jsonpath={.state}": "Pending",
    "get jobs -o jsonpath='{range .items[*]}{.name}{\"\\n\"}{end}'": "digits\nimages\n",
    "ls": "digits",
    # kubectl describe, logs, delete and others
    "describe job digits": "Status:",
    "status job/digits": "Status:",
    "logs job/images --tail=5": "",
    "logs job images": "",
    "logs -n team images -f": "",
    "delete job images --yes": "job images deleted in namespace 'team' of context 'test'",
    "delete job/digits pytorchjob/images -y": "job digits deleted",
    "events job/digits": "",
    "wait --for=condition=Complete job/images --timeout=60s": "",
    "top job images": "images",
    "scale job/digits --nnodes=2 --no-wait": "job digits unchanged at 2 nodes",
    "explain job": "nnodes",
    "explain job.nnodes": "MIN:MAX",
    "explain env.HF_HOME": "--env",
    "": "Usage: kubectl-ddp",
    # torchrun and SkyPilot
    "run --nproc_per_node=2 train.py --dry-run": "pytorchjob",
    "run train.py --nnodes=1:4 --nproc-per-node 8 --max_restarts=3 --dry-run=client -- --lr 0.1": "pytorchjob",
    "run -f digits.ddp.yaml --dry-run": "pytorchjob.kubeflow.org/mine",
    "cancel job/digits": "job digits suspended",
}
"""Line → text that it prints."""

REFUSED: Final = {
    # other kinds of objects, and flags in other places
    "get pods": "kubectl-ddp status JOB --ranks",
    "get po -l app=digits": "kubectl-ddp status JOB --ranks",
    "get nodes": "kubectl-ddp capacity",
    "get events": "kubectl-ddp events JOB",
    "get digist": "Did you mean 'digits'?",
    "get jobs -o jsonpath={.items[*].nam}": "Did you mean 'name'?",
    "get jobs -o jsonpath": "-o jsonpath='{.items[*].name}'",
    "get jobs -o custom-columns=NAME": "NAME:.name",
    "get jobs -o go-template={{.items}}": "jsonpath=",
    "get jobs --sort-by=.status.phase": "Did you mean 'state'?",
    "get jobs -l a=b=c": "KEY=VALUE",
    "-n team get jobs": "kubectl-ddp get -n team jobs",
    "--context lab logs digits -f": "kubectl-ddp logs --context lab digits -f",
    "describe jobs": "kubectl-ddp describe NAME",
    "logs pod/digits-worker-0": "kubectl-ddp logs JOB --rank N",
    "logs -f deployment/digits": "pytorchjob/digits",
    "exec -it digits bash": "kubectl-ddp exec digits -- bash",
    "exec pod digits-worker-0 -- bash": "kubectl-ddp exec JOB --rank N",
    "status queue": "job/queue",
    "top pods": "kubectl-ddp status JOB --ranks",
    "wait --for=jsonpath={.state}=Running digits": "running",
    "config use-context lab": "kubectl config use-context",
    # other commands of kubectl
    "rollout restart job/digits": "kubectl-ddp restart job/digits",
    # torchrun
    "run --standalone --nproc_per_node=2 train.py": "--local",
    "run --nnodes=2 --rdzv_backend=c10d train.py": "rendezvous store",
    "run digits --image=busybox -- sleep 10": "--command",
    # SkyPilot, Ray, Slurm
    "sky launch task.yaml": "kubectl-ddp submit SCRIPT",
    "jobs cancel digits": "kubectl-ddp cancel digits",
    # slips of the finger
    "statsu digits": "Did you mean 'status'?",
}
"""Line → part of its error: the right command, flag or value."""


@pytest.fixture(scope="module")
def jobs() -> list[Object]:
    """A job that waits for its pods, and one that has succeeded."""
    roots = [job_kinds.root_of(render(a_job(name=name), "run1")) for name in ("digits", "images")]
    for root, conditions in zip(roots, ([], [kube_objects.condition("Succeeded")]), strict=True):
        root["metadata"] |= {"creationTimestamp": kube_objects.CREATED, "uid": root["metadata"]["name"]}
        root["status"] = {"conditions": conditions}
    return roots


@pytest.fixture(autouse=True)
def machine(cluster: ApiServer, jobs: list[Object], workdir: Path) -> None:
    """A job file, and a cluster that has two jobs."""
    (workdir / "digits.ddp.yaml").write_text(JOB_FILE)
    for job in jobs:
        cluster.put(f"{COLLECTIONS[0]}/{job['metadata']['name']}", copy.deepcopy(job))


@pytest.mark.parametrize("line", WORKS)
def test_a_line_works(line: str, cli: CommandLine) -> None:
    assert WORKS[line] in cli(*shlex.split(line)).out


@pytest.mark.parametrize("line", REFUSED)
def test_a_line_is_refused_with_what_to_type_instead(line: str, cli: CommandLine) -> None:
    assert REFUSED[line] in cli.refused(*shlex.split(line), codes=(2, 3)).partition(": ")[2]


def test_a_watch_keeps_the_jobs_of_a_place_that_does_not_answer(
    cluster: ApiServer, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = Answer(403, status(403, "Forbidden", "no"))
    pauses = [lambda: [cluster.next(f"GET {path}", refusal) for path in COLLECTIONS], lambda: None]

    def pause(_seconds: float) -> None:
        if not pauses:
            raise KeyboardInterrupt
        pauses.pop(0)()

    monkeypatch.setattr("kubectl_ddp.cli.jobs.list.watch_list", functools.partial(watch_list, pause=pause))
    output = cli("get", "jobs", "-w", "-n", "team", "--no-headers", code=130)
    assert [line.split()[0] for line in output.out.splitlines()] == ["digits", "images"]
    assert output.err.count("warning: ") == 1


@pytest.mark.parametrize("line", ["get jobs", "cancel digits", "describe job/digits", "run train.py --dry-run"])
def test_an_alternative_name_does_what_the_command_does(line: str, cli: CommandLine) -> None:
    own = {"get": "list", "cancel": "suspend", "describe": "status", "run": "submit --name mine"}
    word, _, rest = line.partition(" ")
    commands = (f"{word} --name mine" if word == "run" else word, own[word])
    printed = [cli(*shlex.split(command), *rest.split()).out for command in commands]
    printed = [re.sub(r"\d+", "N", text) for text in printed]  # ages may change between the two
    assert printed[0] == printed[1] != ""
