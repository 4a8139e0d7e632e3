"""Finds the harness of tests/local, whose processes these tests start too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "local"))
