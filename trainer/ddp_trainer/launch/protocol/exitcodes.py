"""Which exit code says what, as a table; controllers read these codes and act on them.

===================================================  =====  =========================================
what happened                                        code   what a controller does
===================================================  =====  =========================================
the run is complete                                  0      nothing
wrong flag, script that does not exist, port in use  2      gives up
the script exited with 2, 93 or 94                   same   gives up; no restart is tried
the preflight failed, and was to be strict           94     gives up
the script exited with 1-127, all restarts spent     same   gives up: a retry runs the same code
a worker exited with 0 and others failed for it      1      gives up, once all restarts are spent
a worker died of a signal, all restarts spent        93     gives up
a worker hung, all restarts spent                    93     gives up
the run was given up before this pod came            93     gives up
told to stop                                         143    makes the pod anew, if it is still wanted
store unreachable, too few nodes, another run        170    makes the pod anew
run id in use by another job                         170    makes the pod anew
not fit to join a run that is going on               170    makes the pod anew
another pod of this name has taken over              172    makes the pod anew
a GPU of this node does not work                     173    makes the pod anew
===================================================  =====  =========================================

A worker whose GPU failed exits with 173 too, and is restarted as after every failure.

``--max-restarts 0`` is a budget that is spent from the beginning. A worker's own code, as 139 of one that died of
SIGSEGV, is in the error file, the termination message and the launcher's last line.
"""

from __future__ import annotations

from typing import Final

from ddp_trainer.common.constants import Exit, RestartCause

RETRYABLE: Final = 128
"""From here on a controller makes the pod anew; below, it gives up."""

CAUSE_OF_CODE: Final = {
    int(Exit.TERMINATED): RestartCause.PREEMPTION,
    int(Exit.STALE_GENERATION): RestartCause.PREEMPTION,
    int(Exit.HANG): RestartCause.HANG,
}
"""Why a group is formed anew after a worker exited so; any other code is a plain failure."""

CHARGED: Final = (RestartCause.FAILURE, RestartCause.HANG)
"""Causes that use up the restart budget; the others are nobody's fault."""

HOPELESS: Final = frozenset({int(Exit.USAGE), int(Exit.DO_NOT_RESTART), int(Exit.NOT_FIT)})
"""Codes that no restart can help: a command line that cannot be meant, a worker that says so itself, unfit nodes."""


def of_wait_status(returncode: int) -> int:
    """A child's return code (negative: signal) as a shell shows it.

    >>> of_wait_status(3), of_wait_status(-9)
    (3, 137)
    """
    return Exit.SIGNAL_BASE - returncode if returncode < 0 else returncode


def of_given_up_run(worker_code: int) -> int:
    """Return the exit code of every agent of a run that is given up because of a worker that exited with this code.

    It is one that no controller retries: a pod that is made again would get restarts beyond the budget.

    A worker that exited with 0 is one that left the others alone.

    >>> of_given_up_run(7), of_given_up_run(139), of_given_up_run(0)
    (7, 93, 1)
    """
    if worker_code == Exit.SUCCESS:
        return int(Exit.FAILURE)
    return worker_code if worker_code < RETRYABLE else int(Exit.DO_NOT_RESTART)
