"""What each alert fires for, and what it stays silent for."""

from __future__ import annotations

from typing import Final

from tests.render.rule_cases_platform import CHECKPOINTS, DEVICES, EXPORTER
from tests.render.rule_cases_progress import PROGRESS
from tests.render.rule_cases_ranks import HANGS, STRAGGLERS
from tests.render.rule_cases_recovery import RECOVERY

CASES: Final = (*PROGRESS, *STRAGGLERS, *HANGS, *RECOVERY, *CHECKPOINTS, *DEVICES, *EXPORTER)
