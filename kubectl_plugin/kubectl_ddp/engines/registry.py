"""All engines, in the order in which ``--engine auto`` prefers them.

An engine is the kind of object that runs a job. A kind can be one if a field of it suspends the job, another one
holds the number of pods, it has a deadline and a time after which it is deleted, it reports ``status.conditions``,
and it fails the job for exit codes 1-127 and recreates the pod from 128. Volcano's Job has no field that suspends it.

How to add an engine:

1. Copy ``pytorchjob.py`` (a kind with its own pod template) or ``jobset.py`` (a kind around a batch Job), and its
   template in ``render/templates``. ``engine_kind.py`` has a line for each field. ``conditions`` maps the kind's
   conditions to those of a PyTorchJob, and ``pod_label`` is the label with the job's name that the operator adds to
   pods.
2. Add the member of ``Engine``, and ``ENGINE`` to ``ENGINES``, in the order of preference of ``--engine auto``.
3. Add the status of a suspended, a running, a failed and a succeeded job to
   ``tests/unit/kubectl_ddp/kube/root_statuses.json``, from real runs.
4. Run ``make docs manifests``, then ``test_job_kinds.py``, ``test_render_engines.py`` and
   ``test_render_examples.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from kubectl_ddp.engines import indexed_job, jobset, pytorchjob, trainjob
from kubectl_ddp.engines.engine_kind import EngineKind


class Engine(StrEnum):
    """Value of ``--engine``. All engines run the same pods with the same exit codes."""

    AUTO = "auto"
    """The first engine that the cluster serves."""
    PYTORCHJOB = "pytorchjob"
    TRAINJOB = "trainjob"
    JOBSET = "jobset"
    JOB = "job"


ENGINES: Final[Mapping[str, EngineKind]] = {
    engine.name: engine for engine in (pytorchjob.ENGINE, trainjob.ENGINE, jobset.ENGINE, indexed_job.ENGINE)
}
DEFAULT_ENGINE: Final = Engine.PYTORCHJOB
"""Engine if the cluster was not queried, and for this machine, which supports only this kind."""
PARTIALLY_ADMITTED: Final = frozenset(name for name, engine in ENGINES.items() if engine.is_partially_admitted)
"""Engines whose jobs Kueue may start with fewer nodes."""
RUNTIMES: Final = {
    engine.runtime.kind: (engine.api_version, engine.runtime.plural) for engine in ENGINES.values() if engine.runtime
}
"""Kinds that must exist before the root object, with API version and plural."""
