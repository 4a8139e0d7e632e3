"""Exit codes of a pod, which controllers act on.

===================================================  =====  ====================================
event                                                code   action of the controller
===================================================  =====  ====================================
the run is complete                                  0      nothing
wrong flag, script that does not exist, port in use  2      gives up
the script exited with 2, 93 or 94                   same   gives up; no restart is tried
a strict preflight failed                            94     gives up
the script exited with 1-127, all restarts spent     same   gives up: a retry runs the same code
a worker exited with 0, which made others fail       1      gives up, once all restarts are spent
a worker died of a signal, all restarts spent        93     gives up
a worker hung, all restarts spent                    93     gives up
a launcher crashed, all restarts spent               93     gives up
the run was given up before this pod joined          93     gives up
the pod received a signal to stop                    143    recreates the pod, if still wanted
store unreachable, too few nodes, another run        170    recreates the pod
run id in use by another job                         170    recreates the pod
not fit to join a running run                        170    recreates the pod
a launcher crashed before it had joined, 3 times     128+n  recreates the pod
another pod of this name has taken over              172    recreates the pod
a GPU of this node does not work                     173    recreates the pod
===================================================  =====  ====================================

A worker whose GPU failed also exits with 173. It is restarted, as after every failure.

``--max-restarts 0`` is a budget that is spent from the start. The worker's own code, such as 139 after SIGSEGV, is in
the error file, the termination message and the launcher's last line.

How to add an exit code: a member of ``Exit`` in ``common/constants.py``; a row of the table above; where it is
returned, a subclass of ``TrainError`` (``train/utils/errors.py``) or a ``Finish`` of the agent; its words in
``describe_exit_code`` of ``kubectl_ddp/status/termination_message.py``; its row in ``docs/exit-codes.md``.
``test_exit_codes.py`` fails without them.

What the exit code of a worker costs is in :mod:`ddp_trainer.launch.failures`.
"""

from __future__ import annotations

from typing import Final

from ddp_trainer.common.constants import Exit

RETRYABLE: Final = 128
"""Lowest code at which a controller recreates the pod. Below it, the controller gives up."""


def of_wait_status(returncode: int) -> int:
    """Return a child's return code as a shell shows it: 128 + n for signal n.

    >>> of_wait_status(3), of_wait_status(-9)
    (3, 137)
    """
    return Exit.SIGNAL_BASE - returncode if returncode < 0 else returncode


def of_given_up_run(worker_code: int) -> int:
    """Return the exit code of all agents of a run that is given up.

    No controller retries it, because a recreated pod would get restarts beyond the budget. A worker that exits with 0
    before the others counts as a failure.

    Args:
        worker_code: Exit code of the worker because of which the run is given up.

    >>> of_given_up_run(7), of_given_up_run(139), of_given_up_run(0)
    (7, 93, 1)
    """
    if worker_code == Exit.SUCCESS:
        return int(Exit.FAILURE)
    return worker_code if worker_code < RETRYABLE else int(Exit.DO_NOT_RESTART)
