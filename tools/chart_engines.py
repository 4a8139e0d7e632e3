"""``python -m tools.chart_engines CHART``: the engines in files/engines.json and values.schema.json of a chart."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kubectl_ddp.engines.engine_kind import EngineKind
from kubectl_ddp.engines.registry import ENGINES, Engine


def files(chart: Path) -> Mapping[Path, str]:
    """Return path → text of each file."""
    schema = chart / "values.schema.json"
    enum = json.dumps([str(engine) for engine in Engine])
    lines = ",\n".join(f"  {json.dumps(_fields(engine))}" for engine in ENGINES.values())
    return {
        schema: re.sub(r'("engine": {"enum": )\[.*?\]', rf"\1{enum}", schema.read_text(encoding="utf-8"), count=1),
        chart / "files" / "engines.json": f"[\n{lines}\n]\n",
    }


def _fields(engine: EngineKind) -> dict[str, Any]:
    return {
        "name": engine.name,
        "apiVersion": engine.api_version,
        "kind": engine.kind,
        "builtIn": not engine.product,
        "suspend": engine.suspend,
        "scalable": engine.nodes[0] if engine.is_scalable else [],
        "container": engine.container,
        "restartPolicy": engine.restart_policy,
        "subdomain": engine.has_subdomain,
        "jobLabels": dict(engine.job_labels),
        "limitsJob": engine.runtime is None,
    }


if __name__ == "__main__":
    for path, text in files(Path(sys.argv[1])).items():
        path.write_text(text, encoding="utf-8")
