"""Pod fields that users set pass the API server and Pod Security "restricted" on each engine, or are refused."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from kubectl_ddp.engines import ENGINES, RUNTIMES, Engine
from kubectl_ddp.kube.objects import Object, main_status
from kubectl_ddp.render import render
from kubectl_ddp.values.pod import PullPolicy
from tests.cluster.live_cluster import Namespace, until
from tests.cluster.test_cluster_engines import need
from tests.support.jobs import a_job
from tests.support.rendered import RUN, templates

SAFE: Final = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True}
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
TERM: Final = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}
SIDECAR: Final = {"name": "proxy", "image": "proxy:1", "restartPolicy": "Always", "securityContext": SAFE}
PROXY: Final = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
print("from the proxy", flush=True)
signal.pause()
"""
FIELDS: Final[dict[str, Any]] = {
    "service_account": "reader",
    "image_pull_secrets": ("registry", "mirror"),
    "image_pull_policy": PullPolicy.ALWAYS,
    "labels": {"example.com/team": "vision", "sidecar.istio.io/inject": "true"},
    "annotations": {"example.com/cost-center": "1234: a\nb"},
    "run_as_user": 1000,
    "run_as_group": 0,
    "fs_group": "none",
    "priority": "system-cluster-critical",
    "affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [TERM]}}},
    "pod_template": {
        "metadata": {"labels": {"mesh": "blue"}},
        "spec": {
            "automountServiceAccountToken": True,
            "dnsConfig": {"options": [{"name": "ndots", "value": "2"}]},
            "hostAliases": [{"ip": "10.0.0.7", "hostnames": ["data.example.com"]}],
            "tolerations": [{"key": "dedicated", "operator": "Exists"}],
            "volumes": [{"name": "more", "emptyDir": {}}],
            "initContainers": [SIDECAR],
            "containers": [{"name": "worker", "volumeMounts": [{"name": "more", "mountPath": "/more"}]}],
        },
    },
}
"""One value for each pod field."""
CHEAP: Final = ("--nnodes", "2", "--cpu", "100m", "--memory", "256Mi", "--shm", "32Mi", "--command", "sleep 60")


def accepted(space: Namespace, engine: Engine, **fields: Any) -> None:
    """Send the object with the pods' template, and a pod of each template, as a server-side dry run."""
    objects = render(a_job(engine=engine, namespace=space.name, **fields), RUN)
    plural = RUNTIMES[objects[0]["kind"]][1] if objects[0]["kind"] in RUNTIMES else ENGINES[engine].plural
    space.api.create(space.path(objects[0]["apiVersion"], plural), objects[0], dryRun="All")
    for template in templates(objects):
        spec = {"restartPolicy": "Never", **template["spec"]}
        metadata = {**template["metadata"], "name": "p"}
        pod: Object = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        space.api.create(space.path("v1", "pods"), pod, dryRun="All")


@pytest.mark.parametrize("engine", list(ENGINES))
def test_each_key_alone_and_all_at_once_pass_the_server_and_pod_security(space: Namespace, engine: Engine) -> None:
    need(space, engine)
    space.api.create(space.path("v1", "serviceaccounts"), {"metadata": {"name": "reader"}})
    for key, value in FIELDS.items():
        accepted(space, engine, **{key: value})
    accepted(space, engine, **FIELDS)


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("--image-pull-secret", "missing"), 4, "Secret 'missing' does not exist in namespace '"),
        (
            ("--pod-template", "{spec: {hostNetwork: true, dnsPolicy: ClusterFirstWithHostNet}}"),
            4,
            "host namespaces (hostNetwork=true)",
        ),
        (("--pod-template", "{spec: {hostAlias: []}}"), 4, 'unknown field "spec.hostAlias"'),
        (("--pod-template", "{spec: {hostAlias: []}}", "--engine", "trainjob"), 4, 'unknown field "spec.hostAlias"'),
        (
            ("--pod-template", "{spec: {containers: [{name: worker, command: null}]}}"),
            2,
            "podTemplate removes or changes spec.containers[worker].command, which the job needs.",
        ),
    ],
)
def test_what_cannot_run_is_named_and_nothing_is_created(
    space: Namespace, words: tuple[str, ...], code: int, sentence: str
) -> None:
    submit = ("submit", "--name", "job", "--image", space.image, "--engine", "job", *CHEAP, *words)
    done = space.ddp(*submit, environ={"KUBECTL_DDP_PREFLIGHT": ""})
    assert (done.code, sentence in done.err) == (code, True), done.err
    assert not space.left()


def test_a_sidecar_ends_with_the_job_and_a_container_of_a_webhook_is_not_taken_for_it(space: Namespace) -> None:
    other = {"image": space.image, "command": ["python", "-c", PROXY], "securityContext": SAFE}
    other["resources"] = {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"cpu": "1", "memory": "64Mi"}}
    patch = json.dumps({"spec": {"initContainers": [{**SIDECAR, **other}]}})
    job = ("--image", space.image, "--engine", "job", *CHEAP[:-2], "--nnodes", "1")
    printing = ("--command", "python -c \"print('from the job')\"")
    space.ddp("submit", "--name", "one", *job, *printing, "--pod-template", patch, "--wait").ok()
    assert "from the job" in space.ddp("logs", "one").ok().out
    assert "from the proxy" not in space.ddp("logs", "one").ok().out

    rendered = space.ddp("render", "--name", "two", *job, "--command", "sleep 600", "-o", "json").ok().json["items"]
    rendered[0]["spec"]["template"]["spec"]["containers"].insert(0, {"name": "a-proxy", **other})
    plurals = {"Job": "jobs", "Secret": "secrets", "Service": "services", "NetworkPolicy": "networkpolicies"}
    for item in (entry for entry in rendered if entry["kind"] in plurals):
        space.api.create(space.path(item["apiVersion"], plurals[item["kind"]]), item)
    [pod] = until("the worker", lambda: [pod for pod in space.pods() if "running" in main_status(pod).get("state", {})])
    name = pod["metadata"]["name"]
    assert space.ddp("exec", "two", "--pod", name, "--", "printenv", "DDP_JOB").ok().out.strip() == "two"
    assert "from the proxy" not in space.ddp("logs", "two").ok().out
