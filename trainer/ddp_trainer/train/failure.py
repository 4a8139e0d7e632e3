"""The last words of a rank: one sentence for people, and torch's error file for the launcher."""

from __future__ import annotations

import json
import time
import traceback
from pathlib import Path


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
