"""Keyword arguments of :meth:`kubectl_ddp.client.client.Client.submit`, written by ``make docs``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict


class JobKeys(TypedDict, total=False):
    """Keys of a job file, in snake_case."""

    name: str
    """Name of the job, and prefix of all derived names."""
    namespace: str
    """Namespace of the job."""
    script: str | PathLike[str]
    """Local Python file to run; it is sent along with the job."""
    module: str
    """Python module of the image to run, as 'python -m' does."""
    command: str | Sequence[str]
    """Command of the image to run instead of Python."""
    code: str | PathLike[str]
    """Local directory to send with the job, without what .gitignore names."""
    code_claim: str
    """Directory of a claim with the code, mounted read-only; a script is a path in it."""
    args: Sequence[str]
    """Arguments of the program."""
    nnodes: int | str
    """Nodes: N, or MIN:MAX for an elastic job."""
    spares: int | str
    """Spare pods beyond the maximum of nodes; one takes the place of a lost node immediately."""
    nproc: int | str
    """Processes per node, one rank each."""
    parallel: str
    """Parallel layout; a size is N, or MIN:MAX in an elastic job."""
    gpus: int | str
    """GPUs per node."""
    cpu: float | str
    """Cores per node."""
    memory: str
    """Memory per node, including shared memory."""
    shm: str
    """Maximum size of /dev/shm, part of the memory."""
    image: str
    """Container image; $KUBECTL_DDP_IMAGE sets the default."""
    python: str
    """Python interpreter of the image (python; python3 with runtimeImage)."""
    runtime_image: str
    """Image with the launcher, for an image without it."""
    launcher: Literal["ddp", "torchrun"]
    """Launcher of the ranks: ddp-launch (default ddp), or the image's own torchrun."""
    torchrun_shim: str
    """A torchrun in the command, such as one in a shell script, starts its program as a rank of the job."""
    runtime_mount: Literal["image", "copy"]
    """Mount of the runtime image: an image volume, or a copy by an init container."""
    requirements: str | Sequence[str]
    """Packages that an init container installs with the image's pip: a requirements file, or its lines."""
    image_pull_secrets: Sequence[str]
    """Secret with credentials for the registry of the image."""
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"]
    """Time at which nodes pull the image (IfNotPresent)."""
    env: Mapping[str, str]
    """Environment variable."""
    secret_env: Mapping[str, str]
    """Environment variable with a value from a Secret."""
    env_from: Sequence[str]
    """Secret or ConfigMap whose entries all become variables."""
    max_restarts: int | str
    """Maximum restarts after failures, over the whole job (default 10)."""
    grace: int | str
    """Time from SIGTERM to SIGKILL, to finish a step and save."""
    checkpoint_claim: str
    """Shared volume for checkpoints (a PersistentVolumeClaim)."""
    compile_cache: str
    """Shared cache of torch.compile: a PersistentVolumeClaim, or a directory of a mounted volume."""
    deadline: int | str
    """Stop the job after this time; it counts as failed."""
    ttl: int | str
    """Keep the finished job this long."""
    priority: str
    """Priority class of the pods."""
    node_selector: Mapping[str, str]
    """Required label of nodes."""
    tolerations: Sequence[str]
    """Tolerated taint of nodes."""
    affinity: Mapping[str, Any] | str
    """Affinity of the workers, as in a pod."""
    engine: Literal["auto", "pytorchjob", "trainjob", "jobset", "job"]
    """Kind of the job object on a cluster."""
    mounts: Sequence[str]
    """Volume to mount: a claim, a ConfigMap or an empty directory."""
    secrets: Sequence[str]
    """Secret to mount as files."""
    queue: str
    """Queue of the job: Kueue's, or the gang scheduler's."""
    queue_priority: str
    """Priority class in Kueue's queue; --priority is that of the pods."""
    queue_resize: Literal["start", "running"]
    """Time at which a job in a queue can be resized: at its 'start' (default), or while it is 'running'."""
    gang: Literal["none", "auto", "kueue", "volcano", "scheduler-plugins", "kai", "native"]
    """Scheduler that starts either the minimum number of nodes together or none."""
    scheduler: str
    """Scheduler of the workers."""
    topology: Sequence[str]
    """Placement constraint between nodes, by node label."""
    gpu_type: str
    """Product name of the GPUs."""
    mig: str
    """MIG profile of the slice that each node gets instead of a GPU."""
    rdma: str
    """RDMA devices per node."""
    networks: Sequence[str]
    """Additional network (a NetworkAttachmentDefinition); repeat it to attach it several times."""
    fabric: str
    """Network between the GPUs; 'kubectl ddp presets' lists them."""
    metrics_from: Sequence[str]
    """Additional sources that may scrape metrics."""
    egress: Literal["open", "closed", "unrestricted"]
    """Allowed egress of the pods; open is the cluster, and IPv4 without the metadata service."""
    dns: Sequence[str]
    """DNS server that pods reach with closed egress (kube-system/k8s-app=kube-dns, 169.254.20.10/32)."""
    service_account: str
    """Service account of the pods; its token is not mounted."""
    labels: Mapping[str, str]
    """Label of the job and its pods."""
    annotations: Mapping[str, str]
    """Annotation of the job and its pods."""
    run_as_user: int | str
    """User id of the pods (default 65532); 'none' leaves it to the platform."""
    run_as_group: int | str
    """Group id of the pods."""
    fs_group: int | str
    """Group id of the files in volumes."""
    pod_template: Mapping[str, Any] | str
    """Strategic merge patch of the workers' pods, applied last."""
    preset: str
    """Preset of values that belong together."""
