"""All engines, in the order in which ``--engine auto`` prefers them."""

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
