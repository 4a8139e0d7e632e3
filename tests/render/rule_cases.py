"""Cases in which each alert fires, and in which it does not."""

from __future__ import annotations

from typing import Final

from tests.render.rule_cases_platform import CHECKPOINTS, DEVICES, EXPORTER
from tests.render.rule_cases_progress import PROGRESS
from tests.render.rule_cases_ranks import HANGS, STRAGGLERS
from tests.render.rule_cases_recovery import RECOVERY

CASES: Final = (*PROGRESS, *STRAGGLERS, *HANGS, *RECOVERY, *CHECKPOINTS, *DEVICES, *EXPORTER)
