"""Reader of YAML files: those of this package, and the user's."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's loader, ten times as fast, if PyYAML was built with it."""


def read_yaml(path: Path) -> Any:
    """Return the document of a file. Raises OSError and yaml.YAMLError."""
    return yaml.load(path.read_bytes(), Loader=LOADER)  # noqa: S506 - both are safe loaders
