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
        from kubectl_ddp.cli.run import run  # noqa: PLC0415 - Ctrl-C while this imports ends as quietly as later

        return run(sys.argv[1:])
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
