"""Names and keys that presets of the chart ddp-platform may have: ``charts/ddp-platform/files/presets.json``."""

from __future__ import annotations

import json

from kubectl_ddp.fabrics.catalog import AUTO, fabrics
from kubectl_ddp.spec.external_values import KEYS
from kubectl_ddp.spec.fields import FIELDS, PRESET, PRESETS


def text() -> str:
    """Return the text of the file: names that are taken, keys, and keys whose entries are set one by one."""
    keys = [key for key in KEYS if key != PRESET]
    is_map = {key for key in keys if key in FIELDS and FIELDS[key].is_map}
    rows = {
        "taken": [*PRESETS, *(name for name in fabrics() if name != AUTO)],
        "keys": sorted(key for key in keys if key not in is_map),
        "maps": sorted(is_map),
    }
    return "{\n" + ",\n".join(f"  {json.dumps(name)}: {json.dumps(words)}" for name, words in rows.items()) + "\n}\n"
