"""Controllers that create the pods of each kind of job, and how to find them in a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kubectl_ddp.kube.job_kinds import JOB, JOBSET, PYTORCHJOB, TRAINJOB


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One controller."""

    name: str
    """Name for use in a sentence."""
    selector: str
    """Label selector of the operator's pods, the same in its manifests and its chart; empty if it does not run as a
    pod.
    """
    managers: frozenset[str]
    """Values of ``managedBy`` for which the operator acts."""


OPERATORS: Final[Mapping[str, Operator]] = {
    PYTORCHJOB.engine: Operator(
        name="Kubeflow's training operator",
        selector="control-plane=kubeflow-training-operator",
        managers=frozenset({"kubeflow.org/training-operator"}),
    ),
    TRAINJOB.engine: Operator(
        name="Kubeflow Trainer",
        selector="app.kubernetes.io/name=trainer",
        managers=frozenset({"trainer.kubeflow.org/trainjob-controller"}),
    ),
    JOBSET.engine: Operator(
        name="JobSet's controller",
        selector="app.kubernetes.io/name=jobset",
        managers=frozenset({"jobset.sigs.k8s.io/jobset-controller"}),
    ),
    JOB.engine: Operator(
        name="the cluster's controller manager", selector="", managers=frozenset({"kubernetes.io/job-controller"})
    ),
}
"""Engine → its operator."""

KUEUE: Final = Operator(name="Kueue", selector="app.kubernetes.io/name=kueue", managers=frozenset())
