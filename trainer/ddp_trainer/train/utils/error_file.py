"""The last words of a rank: one sentence for people, and torch's error file for the launcher."""

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
    """Leave the reason where the launcher looks, in the format of torch.distributed.elastic; never fails itself."""
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
    """Return the error file that the launcher has named for this process, or None."""
    named = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    return Path(named) if named else None


def code_of(err: BaseException) -> int:
    """Return the exit code of a process that an exception ends.

    An error of CUDA that nobody translated, since it was raised in the model, is a fault of the GPU as well.
    """
    if isinstance(err, TrainError):
        return int(err.exit_code)
    return int(Exit.GPU_FAULT if isinstance(err, RuntimeError) and fault_in(str(err)) else Exit.FAILURE)


def last_words(err: Exception, error_file: Path | None) -> int:
    """Say what went wrong, a sentence where it is one of ours, and leave it to the launcher; the code to exit with."""
    if isinstance(err, TrainError):
        print(f"error: {err}", file=sys.stderr)
    else:
        traceback.print_exception(err)
    write_error_file(error_file, err)
    return code_of(err)


def end_for_lost_peer(sentence: str, error_file: Path | None) -> NoReturn:
    """End this process from any thread, because it cannot leave its group otherwise; its successor may go on."""
    leave_group(PeerLost(sentence), error_file)


def leave_group(err: Exception, error_file: Path | None) -> NoReturn:
    """End this process with the error's code: its group cannot be torn down in good order, and the launcher waits."""
    code = last_words(err, error_file)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
