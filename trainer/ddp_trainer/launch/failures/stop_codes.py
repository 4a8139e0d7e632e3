"""Exit codes of workers that their agent stops, and of an agent whose run is over."""

from __future__ import annotations

import signal
from typing import Final

from ddp_trainer.common.constants import Exit
from ddp_trainer.launch.protocol import exit_codes
from ddp_trainer.launch.protocol.actions import Finish
from ddp_trainer.launch.protocol.messages import Over, Verdict

CODES_OF_A_REQUESTED_STOP: Final = {
    Exit.TERMINATED,
    Exit.STALE_GENERATION,
    Exit.SIGNAL_BASE + signal.SIGKILL,
    Exit.SIGNAL_BASE + signal.SIGINT,
    Exit.SIGNAL_BASE + signal.SIGHUP,
}
"""Exit codes that are no failure while the agent stops its workers.

Of a worker that exits by itself, :data:`~ddp_trainer.launch.protocol.exit_codes.CAUSE_OF_CODE` classifies the code.
"""


def finish_of(over: Over) -> Finish:
    """Return the agent's last action after the store's :class:`Over`.

    Its exit code is the store's, see :mod:`ddp_trainer.launch.protocol.exit_codes`. It has a sentence if the agent has
    not seen the reason itself.
    """
    if over.verdict is Verdict.SUCCEEDED:
        sentence = "The run was complete before this pod came." if over.late else ""
        return Finish(Exit.SUCCESS, sentence, None, over.restarts)
    why = "The run was given up before this pod came." if over.late else ""
    is_hopeless = over.failure is not None and over.failure.exit_code in exit_codes.HOPELESS
    if over.exit_code == Exit.DO_NOT_RESTART and not over.late and not is_hopeless:
        spent = sum(over.restarts.get(cause, 0) for cause in exit_codes.CHARGED)
        why = f"All {spent} restarts are spent." if spent else "The run allows no restarts."
    if over.failure is not None and not over.late and over.repeats:
        why = _why_hopeless(over.repeats)
    return Finish(over.exit_code, why, over.failure, over.restarts)


def _why_hopeless(repeats: int) -> str:
    """Return why an error before the first step ends a run that may still restart."""
    if repeats == 1:
        return "No restart can heal this, so none was tried."
    return f"It came {repeats} times in the same words before the first step, so no further restart was tried."
