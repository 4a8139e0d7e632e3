"""The entry point of ``kubectl-ddp`` and of ``python -m kubectl_ddp``.

Imports nothing that takes time, ``typing`` included: Ctrl-C is ours from :func:`main` on, and Python's before.
"""

from __future__ import annotations

import sys

INTERRUPTED = 130
"""``Interrupted.exit_code``, known before anything is imported."""


def main() -> int:
    """Run the command line and return its exit code."""
    try:
        from kubectl_ddp.ctrl_c import every_one_ends, second_one_ends  # noqa: PLC0415 - Ctrl-C while these import ...

        second_one_ends()
        from kubectl_ddp.collector import never_again, seldom  # noqa: PLC0415 - ... ends as quietly as later

        seldom()
        from kubectl_ddp.cli.run import run  # noqa: PLC0415

        code = run(sys.argv[1:])
        never_again()
        every_one_ends()
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


if __name__ == "__main__":
    sys.exit(main())
