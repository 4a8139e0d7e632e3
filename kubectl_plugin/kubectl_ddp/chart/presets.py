"""``files/presets.yaml``: values and environment variables of each preset."""

from __future__ import annotations

from typing import Any

from kubectl_ddp.spec.presets import PRESETS


def preset_values() -> dict[str, Any]:
    """Return the content of the file: name of a preset → its values and variables."""
    return {
        name: {
            "values": {key: setting.value for key, setting in preset.settings.items() if not key.startswith("env.")},
            "env": {
                key.removeprefix("env."): setting.value
                for key, setting in preset.settings.items()
                if key.startswith("env.")
            },
        }
        for name, preset in PRESETS.items()
    }
