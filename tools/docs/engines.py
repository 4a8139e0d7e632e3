"""Engines in the chart ddp-job and in ``docs/cluster.md``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from kubectl_ddp.engines.engine_kind import EngineKind
from kubectl_ddp.engines.registry import ENGINES, Engine

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "charts" / "ddp-job"
_ENUM: Final = re.compile(r'(?<="engine": {"enum": )\[.*?\]')
_TABLE: Final = re.compile(r"(?<=\| `--engine` \| Needs \| Differs \|\n\|---\|---\|---\|\n)(?:\|.*\n)+")


def files() -> Mapping[Path, str]:
    """Return path → text of each file."""
    schema, page = CHART / "values.schema.json", ROOT / "docs" / "cluster.md"
    enum = json.dumps([str(engine) for engine in Engine])
    lines = ",\n".join(f"  {json.dumps(_fields(engine))}" for engine in ENGINES.values())
    rows = "".join(map(_row, ENGINES.values()))
    return {
        CHART / "files" / "engines.json": f"[\n{lines}\n]\n",
        schema: _ENUM.sub(enum, schema.read_text(encoding="utf-8")),
        page: _TABLE.sub(rows, page.read_text(encoding="utf-8")),
    }


def _fields(engine: EngineKind) -> dict[str, Any]:
    return {
        "name": engine.name,
        "apiVersion": engine.api_version,
        "kind": engine.kind,
        "builtIn": not engine.product,
        "suspend": engine.suspend,
        "scalable": engine.nodes[0] if engine.is_scalable or engine.scaling_gate else [],
        "container": engine.container,
        "restartPolicy": engine.restart_policy,
        "subdomain": engine.has_subdomain,
        "jobLabels": dict(engine.job_labels),
        "limitsJob": engine.runtime is None,
    }


def _row(engine: EngineKind) -> str:
    least = "Kubernetes {}.{}".format(*engine.least_kubernetes)
    return f"| `{engine.name}` | {engine.product or least} | {'; '.join(_differences(engine))} |\n"


def _differences(engine: EngineKind) -> Iterator[str]:
    if engine.runtime:
        yield f"creates its own {engine.runtime.kind}"
    if engine.scaling_gate:
        yield f"can be scaled while it runs if the feature gate `{engine.scaling_gate}` of its controller is on"
    else:
        yield "can be scaled while it runs" if engine.is_scalable else "cannot be scaled while it runs"
    if engine.ttl_note:
        yield engine.ttl_note.rstrip(".")
    if engine.is_partially_admitted:
        yield (
            "with `--queue`, Kueue may start it with the minimum number of nodes, unless `--topology replica=LABEL` "
            "keeps replicas together"
        )
