"""Table of the engines in ``docs/cluster.md``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kubectl_ddp.engines import ENGINES, EngineKind

PAGE: Final = Path(__file__).parents[2] / "docs" / "cluster.md"
_TABLE: Final = re.compile(r"(?<=\| `--engine` \| Needs \| Differs \|\n\|---\|---\|---\|\n)(?:\|.*\n)+")


def text() -> str:
    """Return the page with its table."""
    return _TABLE.sub("".join(map(_row, ENGINES.values())), PAGE.read_text(encoding="utf-8"))


def _row(engine: EngineKind) -> str:
    least = "Kubernetes {}.{}".format(*engine.least_kubernetes)
    return f"| `{engine.name}` | {engine.product or least} | {'; '.join(_describe_engine(engine))} |\n"


def _describe_engine(engine: EngineKind) -> Iterator[str]:
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
