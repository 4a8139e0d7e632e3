"""Table of the differences between ddp-launch and the image's torchrun, in ``docs/cluster.md``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kubectl_ddp.spec.torchrun import DIFFERENCES

PAGE: Final = Path(__file__).parents[2] / "docs" / "cluster.md"
_TABLE: Final = re.compile(r"(?<=\| \| `ddp` \| `torchrun` \|\n\|---\|---\|---\|\n)(?:\|.*\n)+")


def files() -> Mapping[Path, str]:
    """Return path → text of the page."""
    rows = "".join(
        f"| {difference.subject} | {difference.ddp} | {difference.torchrun} |\n" for difference in DIFFERENCES
    )
    return {PAGE: _TABLE.sub(rows, PAGE.read_text(encoding="utf-8"))}
