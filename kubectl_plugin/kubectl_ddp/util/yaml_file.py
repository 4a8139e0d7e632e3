"""Reader of YAML files: those of this package, and the user's."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's loader, ten times as fast, if PyYAML was built with it."""


def read_yaml(path: Path) -> Any:
    """Return the document of a file. Raises OSError and yaml.YAMLError."""
    return parse_yaml(path.read_bytes())


def parse_yaml(content: bytes) -> Any:
    """Return the document. Raises yaml.YAMLError."""
    return yaml.load(content, Loader=LOADER)  # noqa: S506 - both are safe loaders
