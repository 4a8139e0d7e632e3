"""``preflight`` and ``submit`` report a job that cannot run before they create it, on a real cluster."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from ddp_trainer.common.constants import Annotation
from tests.cluster.live_cluster import Namespace, Result, until

TINY = ("--nproc", "1", "--cpu", "50m", "--memory", "128Mi", "--shm", "16Mi", "--command", "sleep 3600")
STRICT = {"KUBECTL_DDP_PREFLIGHT": ""}
"""The default, which the other tests override."""
AWAY = {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
"""Taints of a lost node. A cordoned node has none of them: the test does not wait for it."""

pytestmark = pytest.mark.alone


def submit(space: Namespace, *words: str, environ: dict[str, str] | None = None) -> Result:
    return space.ddp("submit", "--name", "job", "--image", space.image, *words, *TINY, environ=environ or STRICT)


def findings(space: Namespace, *words: str) -> list[tuple[str, str]]:
    document = space.ddp("preflight", "--name", "job", "--image", space.image, *words, *TINY, "-o", "json").json
    assert (document["apiVersion"], document["kind"], document["namespace"]) == ("cli.ddp/v1", "Preflight", space.name)
    return [(finding["severity"], finding["message"]) for finding in document["findings"]]


def unsettled(space: Namespace) -> list[str]:
    """Return nodes that are not ready after earlier tests, and pods that are terminating and may still hold GPUs."""
    pods, _ = space.api.items("/api/v1/pods")
    nodes, _ = space.api.items("/api/v1/nodes")
    busy = [pod["metadata"] for pod in pods if pod["status"]["phase"] not in {"Failed", "Succeeded"}]
    leaving = [metadata["name"] for metadata in busy if "deletionTimestamp" in metadata]
    taints = [(node, taint["key"]) for node in nodes for taint in node["spec"].get("taints", [])]
    away = [node["metadata"]["name"] for node, key in taints if key in AWAY]
    return [*leaving, *away]


def gpus(space: Namespace) -> list[int]:
    """Return the GPU counts of the nodes with GPUs, once earlier tests have released them."""
    until("the end of what earlier tests have left", lambda: not unsettled(space))
    nodes, _ = space.api.items("/api/v1/nodes")
    counts = [int(node["status"]["allocatable"].get("nvidia.com/gpu", 0)) for node in nodes]
    return [count for count in counts if count] or pytest.skip("No machine of this cluster has GPUs.")


def test_a_gpu_job_that_can_never_fit_is_refused_before_anything_is_created(space: Namespace) -> None:
    """The job needs one GPU node more than the cluster has."""
    machines = gpus(space)
    words = ("--nnodes", str(len(machines) + 1), "--gpus", str(max(machines)))
    refused = submit(space, *words)
    assert refused.code == 4
    assert f"The job can never fit: it needs {len(machines) + 1} nodes at the same time" in refused.err
    assert not space.left()

    warned = submit(space, *words, "--preflight=warn").ok()
    assert "warning: machines: The job can never fit" in warned.err
    again = submit(space, *words)
    assert (again.code, "was there already, unchanged" in again.err) == (0, True), "what is there is not refused"
    space.ddp("delete", "job", "--yes").ok()


def test_all_that_a_job_lacks_is_said_at_once(space: Namespace) -> None:
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claims = space.path("v1", "persistentvolumeclaims")
    space.api.create(claims, {"metadata": {"name": "one"}, "spec": {**claim, "storageClassName": "none"}})
    space.api.create(space.path("v1", "secrets"), {"metadata": {"name": "hub"}, "stringData": {"user": "me"}})
    words = (
        *("--nnodes", "2", "--mount", "pvc=one:/data", "--checkpoint-claim", "none"),
        *("--secret-env", "TOKEN=hub:token", "--secret", "keys:/keys", "--env-from", "configmap/settings"),
        *("--priority", "no-such", "--queue", "no-such"),
    )
    report = findings(space, *words)
    failed = [message for severity, message in report if severity == "error"]
    for sentence in (
        f"PersistentVolumeClaim 'none' does not exist in namespace '{space.name}'.",
        "The Secret 'hub' has no entry token.",
        f"Secret 'keys' does not exist in namespace '{space.name}'.",
        f"ConfigMap 'settings' does not exist in namespace '{space.name}'.",
        "PriorityClass 'no-such' does not exist.",
    ):
        assert sentence in failed, failed
    assert any(message.startswith("LocalQueue 'no-such' does not exist") for message in failed)
    assert any("The volume 'one' can be mounted by one machine only" in message for _, message in report)
    refused = submit(space, *words)
    assert (refused.code, space.left()) == (4, [])
    assert "PriorityClass 'no-such' does not exist." in refused.err


def test_admission_of_the_pods_is_asked_before_there_is_a_job(space: Namespace) -> None:
    """Limits and quota of the namespace; otherwise, only events of the operator would report them."""
    limits = [{"type": "Container", "max": {"memory": "64Mi"}}]
    space.api.create(space.path("v1", "limitranges"), {"metadata": {"name": "small"}, "spec": {"limits": limits}})
    space.api.create(space.path("v1", "resourcequotas"), {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "2"}}})
    until("the quota", lambda: space.api.get(space.path("v1", "resourcequotas", "few")).get("status", {}).get("hard"))
    failed = [message for severity, message in findings(space, "--nnodes", "2") if severity == "error"]
    assert any("Its pods would be refused: maximum memory usage per Container is 64Mi" in item for item in failed)
    assert any("The quota 'few' allows 2 pods, and 2 nodes with the store take 3 pods" in item for item in failed)
    assert submit(space, "--nnodes", "2").code == 4
    assert not space.left()


def test_rights_that_are_missing_are_said_all_at_once_and_the_role_that_is_asked_for_is_enough(
    space: Namespace,
) -> None:
    kubeconfig = str(space.kubeconfig_of_nobody())
    for level in ("strict", "off"):
        refused = submit(space, "--kubeconfig", kubeconfig, f"--preflight={level}", "--engine", "job")
        assert refused.code == 5
        for right in ("create jobs.batch", "patch jobs.batch", "create services", "create networkpolicies.networking"):
            assert right in refused.err
        requested = [(entry["kind"], entry["metadata"]["namespace"]) for entry in asked_for(refused)]
        assert requested == [(kind, place) for place in (space.name, "default") for kind in ("Role", "RoleBinding")]
        assert len([line for line in refused.err.splitlines() if line.startswith("error: ")]) == 1
    checked = space.ddp("preflight", "--kubeconfig", kubeconfig, "--image", "x:1", "--engine", "job", *TINY)
    assert checked.code == 5
    assert "UNKNOWN  machines" in checked.out
    role, binding = asked_for(refused)[:2]  # those for `default` only let `status` see the ranks
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "nobody", "namespace": space.name}]
    for plural, item in (("roles", role), ("rolebindings", binding)):
        space.api.create(space.path("rbac.authorization.k8s.io/v1", plural), item)
    done = submit(space, "--kubeconfig", kubeconfig, "--engine", "job").ok()
    assert "warning" not in done.err, "submit does not report that machines cannot be read"
    root = space.api.get(space.path("batch/v1", "jobs", "job"))
    assert {Annotation.SPEC, Annotation.DIGEST} <= root["metadata"]["annotations"].keys()
    space.ddp("delete", "job", "--yes", "--kubeconfig", kubeconfig).ok()


def asked_for(refused: Result) -> list[dict[str, Any]]:
    """Return the objects that a refusal suggests to apply."""
    return list(yaml.safe_load_all(refused.err.partition("apply -f -':\n")[2]))


def test_a_name_that_is_taken_and_a_namespace_that_is_not_there_are_said_by_preflight(space: Namespace) -> None:
    space.api.create(
        space.path("v1", "services"), {"metadata": {"name": "job-store"}, "spec": {"ports": [{"port": 1}]}}
    )
    failed = [message for severity, message in findings(space) if severity == "error"]
    assert failed == [
        f"There is another Service 'job-store' in namespace '{space.name}' already; choose another --name."
    ]
    for command in ("preflight", "submit"):
        nowhere = Namespace("ddp-test-nowhere", space.api, space.image, space.home)
        done = nowhere.ddp(command, "--name", "job", "--image", "x:1", *TINY, environ=STRICT)
        assert (done.code, "Namespace 'ddp-test-nowhere' does not exist" in done.err) == (3, True)


def test_capacity_says_what_the_machines_have_and_what_is_free(space: Namespace) -> None:
    document = space.ddp("capacity", "-o", "json").ok().json
    assert (document["apiVersion"], document["kind"], document["namespace"]) == ("cli.ddp/v1", "Capacity", space.name)
    has = {machine["name"]: machine["gpus"] for machine in document["machines"] if machine["gpus"]}
    assert sorted(has.values()) == sorted(gpus(space))
    assert all(0 <= machine["cpu_cores_free"] <= machine["cpu_cores"] for machine in document["machines"])
    shown = space.ddp("capacity").ok().out
    assert all(name in shown for name in has)
