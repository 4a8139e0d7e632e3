"""Replacement of this process by another program."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from kubectl_ddp.backends.base import ExecCommand
from kubectl_ddp.errors import DdpError, NotFound


def replace_process(to: ExecCommand) -> NoReturn:
    """Replace this process by another program. Raises NotFound, DdpError."""
    environ = dict(os.environ if to.environ is None else to.environ)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        if to.directory is not None:
            os.chdir(to.directory)
        os.execvpe(to.words[0], to.words, environ)  # noqa: S606 - intentionally without a shell
    except FileNotFoundError:
        raise NotFound(
            f"Program '{to.words[0]}' was not found.", hint="Name an installed program after '--'."
        ) from None
    except OSError as error:
        raise DdpError(f"'{to.words[0]}' cannot be run: {error.strerror}.") from error
