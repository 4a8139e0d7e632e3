"""Scripts that know nothing of us, as their authors would write them: unchanged, and under a fault."""

from __future__ import annotations

import pytest

from tests.support.launch_harness import Stage, check_recovered, run_and_kill


@pytest.mark.parametrize("script", ["plain_ddp.py", pytest.param("horovod_style.py", marks=pytest.mark.long)])
def test_a_script_whose_rank_is_killed_goes_on_from_its_own_checkpoint(stage: Stage, script: str) -> None:
    check_recovered(run_and_kill(stage, script, 10), 10)
