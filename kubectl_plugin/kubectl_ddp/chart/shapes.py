"""``files/shapes.yaml``: what text may look like, with the sentences that say so, and the units of amounts."""

from __future__ import annotations

import re
from typing import Any, Final

from kubectl_ddp.spec import quantity, values
from kubectl_ddp.spec.fields import FIELDS, LABEL, NETWORK, VARIABLE
from kubectl_ddp.spec.values import Matching

LONGEST: Final = re.compile(r"\(\?=\.\{1,(\d+)\}\$\)")
"""How a pattern bounds its length; Go's patterns cannot look ahead, so the bound is told apart."""


def shapes() -> dict[str, Any]:
    """The file's content."""
    texts = {key: field.parse for key, field in FIELDS.items() if isinstance(field.parse, Matching)}
    texts |= {"nodeSelector": LABEL, "networks": NETWORK}
    return {
        "texts": {key: _shape(matching) for key, matching in texts.items()},
        "patterns": {
            "label": values.LABEL,
            "subdomain": values.SUBDOMAIN,
            "qualified": values.QUALIFIED,
            "labelValue": values.LABEL_VALUE,
            "variable": VARIABLE,
        },
        # As text: a chart's numbers are floating, and the larger ones would be rounded.
        "bytes": {suffix: str(unit) for suffix, unit in (quantity.BINARY | quantity.DECIMAL).items()},
        "binary": list(quantity.BINARY),
        "seconds": dict(quantity.SECONDS),
        "largestBytes": str(quantity.LARGEST_BYTES),
        "largestNodes": quantity.Nodes.LARGEST,
        "effects": [str(effect) for effect in values.Effect],
    }


def _shape(matching: Matching) -> dict[str, Any]:
    bound = LONGEST.match(matching.pattern)
    pattern = LONGEST.sub("", matching.pattern)
    longest = {"longest": int(bound[1])} if bound else {}
    return {"pattern": f"^(?:{pattern})$", "what": matching.what, "hint": matching.hint, **longest}
