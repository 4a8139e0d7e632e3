"""Reporting of the error that ends a rank: a message on stderr, and torch's error file for the launcher.

:func:`report_error` reports an error and returns the exit code; :func:`exit_without_teardown` also ends the process.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import NoReturn

from ddp_trainer.common.constants import Exit
from ddp_trainer.common.gpu_faults import fault_in
from ddp_trainer.train.utils.errors import PeerLost, TrainError


def write_error_file(file: Path | None, err: BaseException) -> None:
    """Write the error for the launcher in the format of torch.distributed.elastic; OSErrors are ignored."""
    if file is None:
        return
    reason = {
        "message": f"{type(err).__name__}: {err}",
        "extraInfo": {
            "py_callstack": "".join(traceback.format_exception(err)),
            "timestamp": str(int(time.time())),
        },
    }
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"message": reason}))
    except OSError:
        return


def named_error_file() -> Path | None:
    """Return the error file of this process, from ``$TORCHELASTIC_ERROR_FILE``, or None."""
    named = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    return Path(named) if named else None


def code_of(err: BaseException) -> int:
    """Return the exit code for an uncaught exception.

    A CUDA error that is raised in the model is not translated to GpuFailed. It maps to the same exit code.
    """
    if isinstance(err, TrainError):
        return int(err.exit_code)
    return int(Exit.GPU_FAULT if isinstance(err, RuntimeError) and fault_in(str(err)) else Exit.FAILURE)


def report_error(err: Exception, error_file: Path | None) -> int:
    """Print the error, write the error file, and return the exit code.

    A :class:`TrainError` is printed as one sentence, any other exception with its traceback.
    """
    if isinstance(err, TrainError):
        print(f"error: {err}", file=sys.stderr)
    else:
        traceback.print_exception(err)
    write_error_file(error_file, err)
    return code_of(err)


def end_for_lost_peer(sentence: str, error_file: Path | None) -> NoReturn:
    """End this process with the exit code of :class:`PeerLost`, from any thread.

    Used when the process cannot leave its group in any other way. The exit code lets the launcher start another one.
    """
    exit_without_teardown(PeerLost(sentence), error_file)


def exit_without_teardown(err: Exception, error_file: Path | None) -> NoReturn:
    """Report the error and end this process with its exit code, without tearing down the process group.

    An orderly teardown is impossible here, and the launcher waits for the exit.
    """
    code = report_error(err, error_file)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
