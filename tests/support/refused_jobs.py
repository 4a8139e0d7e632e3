"""Specifications of DDPJobs that are refused: by the API server, from schema and CEL, or in the condition Valid."""

from __future__ import annotations

from typing import Any, Final

BASE: Final[dict[str, Any]] = {"module": "train", "nnodes": "1:2", "nproc": 2, "cpu": 1, "memory": "2Gi"}
"""A valid specification, which the cases change."""
_OTHER_PROGRAM: Final = {"module": None}

BY_SERVER: Final[tuple[tuple[dict[str, Any], str], ...]] = (
    ({"nnodes": "4:2"}, "has a minimum (4) above the maximum (2)"),
    ({"nnodes": 0}, "is not a valid number of nodes"),
    ({"nnodes": "many"}, "is not a valid number of nodes"),
    ({"nnodes": "1:100001"}, "is not a valid number of nodes"),
    ({"gpus": 65}, "is not an integer from 0 to 64"),
    ({"nproc": "auto"}, "is resolved on each node"),
    ({"gpus": 1}, "2 processes cannot share 1 GPU"),
    ({"memory": "16"}, "has no unit"),
    ({"shm": "2Gi"}, "Shared memory is charged to the memory"),
    ({"shm": "2048Mi"}, "Shared memory is charged to the memory"),
    ({"engine": "slurm"}, "is not one of"),
    ({"image": "a b"}, "is not an image"),
    ({"env": {"RANK": "1"}}, "is set by the launcher"),
    ({"env": {"DDP_RUN_ID": "1"}}, "is set by the launcher"),
    ({"env": {"PET_NNODES": "2"}}, "would contradict the job's key nnodes"),
    ({"env": {"1A": "x"}}, "is not a valid environment variable"),
    ({"secretEnv": {"WORLD_SIZE": "a:b"}}, "is set by the launcher"),
    ({"secretEnv": {"A": "no-key"}}, "names no entry of a Secret"),
    ({"env": {"A": "1"}, "secretEnv": {"A": "s:k"}}, "is given twice"),
    ({"metricsFrom": []}, "the list is empty"),
    ({"command": ["x"]}, "exclude each other"),
    (_OTHER_PROGRAM, "has no program"),
    ({"module": "train.py"}, "is the name of a file"),
    ({"grace": 4}, "are too few to finish a step"),
    ({"grace": "4s"}, "are too few to finish a step"),
    ({"deadline": 0}, "would stop the job before it starts"),
    ({"deadline": "0h"}, "would stop the job before it starts"),
    ({"mounts": ["pvc=a:/checkpoints"]}, "is in the way of"),
    ({"mounts": ["pvc=a:/dev/shm/x:ro"]}, "is in the way of"),
    ({"topology": ["pack=zone", "pack=zone:required"]}, "is given twice"),
    ({"gpuType": "A"}, "requests no GPU"),
    ({"mig": "3g.40gb"}, "has one process and one slice"),
    ({"gang": "kueue"}, "is in no queue"),
    ({"gang": "scheduler-plugins", "queue": "q"}, "have no queues"),
    ({"queuePriority": "urgent"}, "is in no queue of Kueue's"),
    ({"queueResize": "running"}, "cannot be resized while it runs"),
    ({"labels": {"ddp.dev/job": "x"}}, "is set by the job itself"),
    ({"annotations": {"batch.kubernetes.io/x": "y"}}, "is set by the job itself"),
    ({"requirements": ["einops"], "egress": "closed"}, "cannot fetch requirements"),
    ({"affinity": {"podAffinity": {"a": 1}}, "topology": ["pack=zone"]}, "set the same field of the pods"),
    ({"affinity": {"nodes": {}}}, "is not one of nodeAffinity"),
    ({"code": "src", "codeClaim": "c:/x"}, "is in 'src' and on the claim"),
    ({**_OTHER_PROGRAM, "codeClaim": "c:/x", "script": "../a.py"}, "is not a path in"),
    ({"nodes": 2}, "has no key 'nodes'"),
)
"""Changes that the API server refuses, and the message of ``kubectl ddp``."""

AS_TEXT: Final[tuple[dict[str, Any], ...]] = (
    {"env": {"A": 1}},
    {"env": {"A": 12345678901234567890}},
    {"args": ["--epochs", 3]},
    {"memory": 16},
    {"gpus": "8"},
    {"nproc": "1"},
)
"""Changes that the API server refuses since a value has another type; YAML may have changed such a value."""

IN_VALID: Final[tuple[tuple[dict[str, Any], str], ...]] = (
    ({"module": "ddp_trainer", "args": ["train", "--task", "digits", "--global-batch", "1"]}, "cannot feed 4 ranks"),
    ({"parallel": "replicate=3"}, "replicate=3"),
    ({"fabric": "token-ring"}, "token-ring"),
    ({"preset": "nothing"}, "there is no preset 'nothing'"),
    ({"mounts": ["hostpath=/x:/y"]}, "which Pod Security 'restricted' forbids"),
    ({"mounts": ["pvc=a:/data", "pvc=b:/data/"]}, "have the same path"),
    ({"requirements": ["-r more.txt"]}, "names a file of this machine"),
    ({"env": {"HF_TOKEN": "hf_" + "a" * 30}}, "looks like a secret"),
    ({**_OTHER_PROGRAM, "script": "/var/run/secrets/kubernetes.io/serviceaccount/token"}, "of the submitter"),
    ({"code": "/etc"}, "of the submitter"),
)
"""Changes that only the controller refuses, and its sentence."""


def spec_with(changes: dict[str, Any]) -> dict[str, Any]:
    """The specification with changes; None removes a key."""
    return {key: value for key, value in (BASE | changes).items() if value is not None}


def ddpjob(changes: dict[str, Any], name: str = "digits") -> dict[str, Any]:
    """A DDPJob with this specification."""
    return {"apiVersion": "ddp.dev/v1alpha1", "kind": "DDPJob", "metadata": {"name": name}, "spec": spec_with(changes)}
