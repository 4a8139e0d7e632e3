"""Entry point of ``kubectl-ddp`` and of ``python -m kubectl_ddp``.

Imports nothing slow at module level, not even ``typing``: :func:`main` installs the handler of Ctrl-C first. Until then
Python's own handler is active.
"""

from __future__ import annotations

import sys

INTERRUPTED = 130
"""Exit code after Ctrl-C. Equals ``Interrupted.exit_code``, which is not imported yet."""


def main() -> int:
    """Run the command line and return its exit code."""
    try:
        from kubectl_ddp.util.process import install_interrupt_handler, restore_default_handler  # noqa: PLC0415 - in the try: Ctrl-C during imports

        install_interrupt_handler()
        from kubectl_ddp.util.process import freeze_gc, raise_gc_threshold  # noqa: PLC0415 - as above

        raise_gc_threshold()
        from kubectl_ddp.cli.run import run  # noqa: PLC0415

        code = run(sys.argv[1:])
        freeze_gc()
        restore_default_handler()
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


if __name__ == "__main__":
    sys.exit(main())
