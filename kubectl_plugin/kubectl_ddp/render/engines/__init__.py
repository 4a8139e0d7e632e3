"""Engines: one module per kind of root object, with its templates and settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kubectl_ddp.render.engines import job, jobset, pytorchjob, trainjob
from kubectl_ddp.render.engines.engine import EngineTemplates
from kubectl_ddp.values.engine import Engine

RENDERINGS: Final[Mapping[Engine, EngineTemplates]] = {
    Engine.PYTORCHJOB: pytorchjob.RENDERING,
    Engine.TRAINJOB: trainjob.RENDERING,
    Engine.JOBSET: jobset.RENDERING,
    Engine.JOB: job.RENDERING,
}
