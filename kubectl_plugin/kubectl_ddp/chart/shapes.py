"""``files/shapes.yaml``: patterns of valid texts with their error messages, and units of amounts."""

from __future__ import annotations

import re
from typing import Any, Final

from kubectl_ddp.spec.fields import FIELDS, LABEL, NETWORK, VARIABLE
from kubectl_ddp.values import parsers, quantity
from kubectl_ddp.values.parsers import Matching

LONGEST: Final = re.compile(r"\(\?=\.\{1,(\d+)\}\$\)")
"""Lookahead that limits the length of a pattern. Go's patterns have no lookahead, so the limit is written
separately.
"""


def shapes() -> dict[str, Any]:
    """Return the content of the file."""
    texts = {key: field.parse for key, field in FIELDS.items() if isinstance(field.parse, Matching)}
    texts |= {"nodeSelector": LABEL, "networks": NETWORK}
    return {
        "texts": {key: _shape(matching) for key, matching in texts.items()},
        "patterns": {
            "label": parsers.LABEL,
            "subdomain": parsers.SUBDOMAIN,
            "qualified": parsers.QUALIFIED,
            "labelValue": parsers.LABEL_VALUE,
            "variable": VARIABLE,
        },
        # As text, because the chart's floating-point numbers would round the larger ones.
        "bytes": {suffix: str(unit) for suffix, unit in (quantity.BINARY | quantity.DECIMAL).items()},
        "binary": list(quantity.BINARY),
        "seconds": dict(quantity.SECONDS),
        "largestBytes": str(quantity.LARGEST_BYTES),
        "largestNodes": quantity.Nodes.LARGEST,
        "effects": [str(effect) for effect in parsers.Effect],
    }


def _shape(matching: Matching) -> dict[str, Any]:
    bound = LONGEST.match(matching.pattern)
    pattern = LONGEST.sub("", matching.pattern)
    longest = {"longest": int(bound[1])} if bound else {}
    return {"pattern": f"^(?:{pattern})$", "what": matching.what, "hint": matching.hint, **longest}
