"""Kubeflow's PyTorchJob, worker-only and elastic."""

from __future__ import annotations

from typing import Final

from kubectl_ddp.spec.model import JobSpec

TEMPLATE: Final = "pytorchjob.yaml.j2"


def view(spec: JobSpec) -> dict[str, int]:
    """What only this engine's template uses."""
    return {"backoff_limit": spec.nnodes.maximum * max(1, spec.max_restarts)}
