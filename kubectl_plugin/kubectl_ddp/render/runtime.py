"""The runtime image: the launcher for pods whose own image does not hold it.

The target ``runtime`` of the Dockerfile makes the image, without an interpreter. :func:`command` returns the words that
start the launcher, and :func:`runtime_view` the volume that holds it.
"""

from __future__ import annotations

from typing import Any, Final

from ddp_trainer.common.constants import Env, Exit, Path
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.values.pod import PullPolicy, RuntimeMount

LAUNCH: Final = "launch"
STORE: Final = "store"
LAUNCHER: Final = "ddp-launch"
"""Console script of an image that holds the launcher."""
HOOKS: Final = "ddp_trainer/launch/in_worker/python_path"
"""Directory of the runtime whose ``sitecustomize`` counts the steps of a rank."""
TORCHRUN: Final = f"""\
import os, runpy, subprocess, sys
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous import RendezvousError
if "{Env.METRICS_DIR}" in os.environ:
    subprocess.Popen([sys.executable, "{Path.RUNTIME}", "aggregate"])
    paths = os.environ.get("PYTHONPATH"), "{Path.RUNTIME}/{HOOKS}", "{Path.RUNTIME}"
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
try:
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
except SignalException as stop:
    sys.exit({Exit.SIGNAL_BASE:d} + stop.sigval)
except RendezvousError as lost:
    print("torchrun:", repr(lost), file=sys.stderr)
    sys.exit({Exit.RENDEZVOUS_LOST:d})
"""
"""Program that runs torchrun. torchrun exits with 1 also where its pod was stopped or has lost worker 0, and engines
would then end the job. Where the runtime is mounted, it also serves the metrics of the ranks.
"""
PYTHON3: Final = "python3"
VOLUME: Final = "runtime"
_TOOLS: Final = "/copy"
"""Directory of the runtime image with a program that copies, and its libraries."""
COPY: Final = (
    *(f"{_TOOLS}/ld.so", "--library-path", _TOOLS, f"{_TOOLS}/cp"),
    *("--recursive", "/__main__.py", "/ddp_trainer", str(Path.RUNTIME)),
)


def interpreter(spec: JobSpec) -> str:
    """Return the Python of the job's image. Images of others often have no ``python``."""
    return spec.python or (PYTHON3 if spec.runtime_image or spec.uses_torchrun else "python")


def command(spec: JobSpec, name: str, *, is_local: bool) -> list[str]:
    """Return the words that start a command of ``ddp_trainer``, or the launcher of the job, in a pod."""
    if name == LAUNCH and spec.uses_torchrun:
        return ["python" if is_local else interpreter(spec), "-c", TORCHRUN, "torch.distributed.run"]
    if spec.runtime_image and not is_local:
        return [interpreter(spec), str(Path.RUNTIME), name]
    if name == LAUNCH and (spec.python is None or is_local):
        return [LAUNCHER]
    return ["python" if is_local else interpreter(spec), "-m", "ddp_trainer", name]


def words_in_pod(job: Object, name: str) -> tuple[str, ...]:
    """Return the words that start a command of ``ddp_trainer`` in a running pod; empty if the pod's image holds it."""
    spec = job_kinds.submitted_spec(job)
    return (str(spec.get("python") or PYTHON3), str(Path.RUNTIME), name) if spec.get("runtimeImage") else ()


def runtime_view(spec: JobSpec, pull_policy: PullPolicy, *, is_local: bool) -> dict[str, Any]:
    """Return the values for the templates: volume and mount of the runtime image, and the container that copies it."""
    image = None if is_local else spec.runtime_image
    is_copied = image is not None and spec.runtime_mount is not RuntimeMount.IMAGE
    source = {"emptyDir": {}} if is_copied else {"image": {"reference": image, "pullPolicy": pull_policy.value}}
    return {
        "store_command": command(spec, STORE, is_local=is_local),
        "runtime_copy": COPY if is_copied else None,
        "runtime_volume": {"name": VOLUME, **source} if image else None,
        "runtime_mount": {"name": VOLUME, "mountPath": str(Path.RUNTIME)},
    }
