"""``files/presets.yaml``: values that belong together, by the preset's name."""

from __future__ import annotations

from typing import Any

from kubectl_ddp.spec.presets import PRESETS


def preset_values() -> dict[str, Any]:
    """The file's content: key or variable → value."""
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
