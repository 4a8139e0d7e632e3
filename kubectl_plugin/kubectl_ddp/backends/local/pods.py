"""Pod objects as JSON: creation from a template, and changes of their status.

No processes are started here; see :mod:`kubectl_ddp.backends.local.kubelet`.
"""

from __future__ import annotations

import copy
import platform
import time
import uuid
from collections.abc import Mapping
from typing import Any, Final

from ddp_trainer.common.constants import Label, Role
from kubectl_ddp.kube.objects import Object

REPLICA_INDEX: Final = "training.kubeflow.org/replica-index"
RETRYABLE: Final = 128
"""Lowest exit code that the operator retries under ``restartPolicy: ExitCode``."""

DEFAULT_GRACE_SECONDS: Final = 30


def now() -> str:
    """Return the current time in Kubernetes' format."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def worker_name(job: str, index: int) -> str:
    """Return the operator's name for a worker pod."""
    return f"{job}-worker-{index}"


def worker_pod(job: Object, index: int, address: str) -> Object:
    """Return a worker pod of a PyTorchJob, as the operator creates it."""
    replica = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    name = job["metadata"]["name"]
    labels = {
        "training.kubeflow.org/job-name": name,
        "training.kubeflow.org/operator-name": "pytorchjob-controller",
        "training.kubeflow.org/replica-type": "worker",
        REPLICA_INDEX: str(index),
        Label.JOB.value: name,
        Label.ROLE.value: Role.WORKER.value,
    } | ({"training.kubeflow.org/job-role": "master"} if index == 0 else {})
    policy = replica.get("restartPolicy", "OnFailure")
    # The operator restarts pods under ExitCode itself, by creating new ones.
    in_place = "Never" if policy == "ExitCode" else policy
    return _pod(worker_name(name, index), replica["template"], labels, job, address, in_place)


def batch_pod(job: Object, batch_job: Object, address: str) -> Object:
    """Return the pod of a batch Job, as the Job controller creates it."""
    name = batch_job["metadata"]["name"]
    template = batch_job["spec"]["template"]
    labels = {"batch.kubernetes.io/job-name": name, Label.JOB.value: job["metadata"]["name"]}
    policy = template["spec"].get("restartPolicy", "Never")
    return _pod(f"{name}-{uuid.uuid4().hex[:5]}", template, labels, batch_job, address, policy)


def _pod(
    name: str, template: Mapping[str, Any], labels: Mapping[str, str], owner: Object, address: str, policy: str
) -> Object:
    metadata = copy.deepcopy(dict(template.get("metadata") or {}))
    spec = copy.deepcopy(dict(template["spec"]))
    metadata |= {
        "name": name,
        "namespace": owner["metadata"].get("namespace", "default"),
        "uid": str(uuid.uuid4()),
        "creationTimestamp": now(),
        "labels": {**(metadata.get("labels") or {}), **labels},
        "ownerReferences": [
            {
                "apiVersion": owner["apiVersion"],
                "kind": owner["kind"],
                "name": owner["metadata"]["name"],
                "uid": owner["metadata"].get("uid", ""),
                "controller": True,
            }
        ],
    }
    spec |= {"restartPolicy": policy, "nodeName": platform.node()}
    container = spec["containers"][0]
    status = {
        "phase": "Pending",
        "podIP": address,
        "hostIP": "127.0.0.1",
        "conditions": [],
        "containerStatuses": [
            {
                "name": container["name"],
                "image": container.get("image", ""),
                "imageID": "",
                "ready": False,
                "started": False,
                "restartCount": 0,
                "state": {"waiting": {"reason": "ContainerCreating"}},
                "lastState": {},
            }
        ],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def container_status(pod: Object) -> dict[str, Any]:
    """Return the status of the pod's container."""
    status: dict[str, Any] = pod["status"]["containerStatuses"][0]
    return status


def index(pod: Object) -> int | None:
    """Return the index of a worker pod; None for other pods."""
    number = pod["metadata"].get("labels", {}).get(REPLICA_INDEX)
    return int(number) if number is not None else None


def exit_code(pod: Object) -> int | None:
    """Return the container's exit code; None until it has ended."""
    code = container_status(pod)["state"].get("terminated", {}).get("exitCode")
    return int(code) if code is not None else None


def grace_seconds(pod: Object) -> float:
    """Return the seconds between SIGTERM and SIGKILL."""
    return float(pod["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS))


def is_over(pod: Object) -> bool:
    """Return True if the container has ended and will not restart."""
    return pod["status"]["phase"] in {"Succeeded", "Failed"}


def is_terminating(pod: Object) -> bool:
    """Return True if the pod is being deleted."""
    return "deletionTimestamp" in pod["metadata"]


def mark_running(pod: Object, container_id: str) -> None:
    """Set the status of a running container."""
    pod["status"].setdefault("startTime", now())
    pod["status"]["phase"] = "Running"
    container_status(pod).update(
        {"ready": True, "started": True, "containerID": container_id, "state": {"running": {"startedAt": now()}}}
    )
    _set_ready(pod, ready=True)


def mark_terminated(pod: Object, code: int, *, reason: str, message: str, signal: int | None) -> None:
    """Set the status of an ended container; the restart policy decides whether the pod has ended."""
    status = container_status(pod)
    running = status["state"].get("running", {})
    ended = {
        "exitCode": code,
        "reason": reason,
        "message": message,
        "startedAt": running.get("startedAt", now()),
        "finishedAt": now(),
        "containerID": status.get("containerID", ""),
    } | ({"signal": signal} if signal is not None else {})
    status.update({"ready": False, "started": False, "state": {"terminated": ended}})
    _set_ready(pod, ready=False)
    policy = pod["spec"]["restartPolicy"]
    if is_terminating(pod) or policy == "Never" or (policy == "OnFailure" and code == 0):
        pod["status"]["phase"] = "Succeeded" if code == 0 else "Failed"


def mark_waiting(pod: Object, delay: float) -> None:
    """Set the status of a container that waits for an in-place restart."""
    status = container_status(pod)
    waiting = {"reason": "CrashLoopBackOff", "message": f"back-off {delay:g}s restarting failed container"}
    status.update({"lastState": status["state"], "state": {"waiting": waiting}})
    status["restartCount"] += 1


def _set_ready(pod: Object, *, ready: bool) -> None:
    pod["status"]["conditions"] = [
        {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": now()}
    ]
