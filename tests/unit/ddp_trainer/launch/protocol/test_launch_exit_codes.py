"""What the exit code of a worker costs a run."""

from __future__ import annotations

from ddp_trainer.launch.protocol import exit_codes


def test_every_code_below_128_is_final_and_every_other_is_not() -> None:
    assert exit_codes.of_given_up_run(127) == 127
    assert exit_codes.of_given_up_run(128) == 93
