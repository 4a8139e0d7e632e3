"""Kubernetes objects as tests need them: a PyTorchJob and its pods, as either engine would show them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kubectl_ddp.kube.objects import Object, Snapshot

CREATED = "2026-01-02T03:04:05Z"
CREATED_EPOCH = 1767323045.0


def condition(kind: str, value: str = "True", *, reason: str = "", message: str = "") -> dict[str, str]:
    """One condition of a job."""
    return {
        "type": kind,
        "status": value,
        "reason": reason or f"PyTorchJob{kind}",
        "message": message or f"PyTorchJob digits is {kind.lower()}.",
        "lastTransitionTime": "2026-01-02T03:05:05Z",
    }


def job(
    *conditions: Mapping[str, str] | str,
    replicas: int = 2,
    bounds: tuple[int, int] | None = (1, 4),
    policy: str = "ExitCode",
    metadata: Mapping[str, Any] | None = None,
    run_policy: Mapping[str, Any] | None = None,
    template: Object | None = None,
    **status: Any,
) -> Object:
    """A PyTorchJob of workers; conditions may be given by their names."""
    spec: dict[str, Any] = {
        "nprocPerNode": "2",
        "runPolicy": {"cleanPodPolicy": "Running", "suspend": False, **(run_policy or {})},
        "pytorchReplicaSpecs": {
            "Worker": {"replicas": replicas, "restartPolicy": policy, "template": template or a_template()}
        },
    }
    if bounds is not None:
        spec["elasticPolicy"] = {"minReplicas": bounds[0], "maxReplicas": bounds[1], "rdzvBackend": "c10d"}
    messages = [condition(item) if isinstance(item, str) else dict(item) for item in conditions]
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {
            "name": "digits",
            "namespace": "team",
            "uid": "u-1",
            "creationTimestamp": CREATED,
            "labels": {"ddp.dev/job": "digits"},
            **(metadata or {}),
        },
        "spec": spec,
        "status": {"conditions": messages, **status},
    }


def a_template(command: Sequence[str] = ("true",), **container: Any) -> Object:
    """A pod template with one container."""
    return {
        "metadata": {"labels": {"ddp.dev/job": "digits", "ddp.dev/role": "worker"}},
        "spec": {"containers": [{"name": "pytorch", "image": "example.com/ddp:1", "command": [*command], **container}]},
    }


def running() -> dict[str, Any]:
    """State of a container that runs."""
    return {"running": {"startedAt": CREATED}}


def waiting(reason: str = "ContainerCreating", message: str = "") -> dict[str, Any]:
    """State of a container that does not run yet."""
    return {"waiting": {"reason": reason, "message": message}}


def terminated(code: int, message: str | Mapping[str, Any] = "") -> dict[str, Any]:
    """State of a container that ended, with what the launcher wrote."""
    text = message if isinstance(message, str) else json.dumps(message)
    return {"terminated": {"exitCode": code, "message": text, "finishedAt": CREATED}}


def pod(
    index: int = 0,
    state: Mapping[str, Any] | None = None,
    *,
    restarts: int = 0,
    last: Mapping[str, Any] | None = None,
    role: str = "worker",
    **metadata: Any,
) -> Object:
    """A pod of the job."""
    state = dict(state) if state is not None else running()
    code = state.get("terminated", {}).get("exitCode")
    phase = "Running" if "running" in state else "Pending"
    phase = phase if code is None else ("Succeeded" if code == 0 else "Failed")
    return {
        "metadata": {
            "name": f"digits-{role}-{index}",
            "uid": f"pod-{role}-{index}",
            "labels": {
                "ddp.dev/job": "digits",
                "ddp.dev/role": role,
                "training.kubeflow.org/replica-index": str(index),
            },
            **metadata,
        },
        "spec": {"nodeName": f"node-{index}", "containers": [{"name": "pytorch"}]},
        "status": {
            "phase": phase,
            "containerStatuses": [
                {
                    "name": "pytorch",
                    "ready": "running" in state,
                    "restartCount": restarts,
                    "state": state,
                    "lastState": dict(last or {}),
                }
            ],
        },
    }


def snapshot(job_object: Object, *pods: Object) -> Snapshot:
    """A job and its pods."""
    return Snapshot(job=job_object, pods=pods)


def rank_metrics(
    rank: int,
    *,
    local_rank: int = 0,
    step: int = 10,
    samples: int = 320,
    seconds: float = 2.0,
    up: int = 1,
    last_step: float = 1000.0,
    place: str = "",
) -> str:
    """Metrics of one rank of a pod: half of its time forward, half backward; ``place``: labels, as in ``shard="1"``."""
    labels = f'ddp_job="digits",rank="{rank}"'
    info = f'{labels},local_rank="{local_rank}",node_rank="0",backend="gloo",device="cpu"{f",{place}" if place else ""}'
    return f"""# TYPE ddp_steps counter
ddp_steps_total{{{labels}}} {step}
ddp_samples_total{{{labels}}} {samples}
ddp_step_phase_seconds_total{{{labels},phase="forward"}} {seconds / 2}
ddp_step_phase_seconds_total{{{labels},phase="backward"}} {seconds / 2}
ddp_step{{{labels}}} {step}
ddp_last_step_timestamp_seconds{{{labels}}} {last_step}
ddp_rank_up{{{labels}}} {up}
ddp_rank_info{{{info}}} 1
"""


def pod_metrics(*, state: str = "running", generation: int = 1, world: int = 2, restarts: int = 0) -> str:
    """Metrics of the launcher of a pod."""
    return f"""ddp_worker_group_state{{ddp_job="digits",state="{state}"}} 1
ddp_worker_group_state{{ddp_job="digits",state="failed"}} 0
ddp_worker_restarts_total{{ddp_job="digits",cause="failure"}} {restarts}
ddp_worker_restarts_total{{ddp_job="digits",cause="hang"}} 0
ddp_rendezvous_round{{ddp_job="digits"}} {generation}
ddp_world_size{{ddp_job="digits"}} {world}
"""


def stall_metrics(seconds: float, rank: int) -> str:
    """Metrics of the launcher of a pod whose ranks wait."""
    return f"""ddp_stalled_seconds{{ddp_job="digits"}} {seconds}
ddp_stalled_by_rank{{ddp_job="digits"}} {rank}
"""


def job_metrics(*, planned: int = 100, epoch: int = 1, loss: float = 0.5) -> str:
    """Metrics of rank 0 for the whole job."""
    return f"""ddp_steps_planned{{ddp_job="digits"}} {planned}
ddp_epoch{{ddp_job="digits"}} {epoch}
ddp_loss{{ddp_job="digits"}} {loss}
ddp_learning_rate{{ddp_job="digits"}} 0.1
"""
