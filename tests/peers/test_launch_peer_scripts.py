"""Scripts of other libraries, as their users write them: unchanged, and under a fault. ``make test-peers`` installs
the libraries beside our own packages.
"""

from __future__ import annotations

import importlib.util

import pytest

from tests.support.launch_harness import Stage, check_recovered, run_and_kill


@pytest.mark.parametrize(
    ("library", "script"),
    [("lightning", "lightning_trainer.py"), ("accelerate", "accelerate_loop.py"), ("transformers", "hf_trainer.py")],
)
def test_a_script_whose_rank_is_killed_goes_on_from_its_own_checkpoint(stage: Stage, library: str, script: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed here; make test-peers installs it in build/peers.")
    check_recovered(run_and_kill(stage, script, 12), 12)
