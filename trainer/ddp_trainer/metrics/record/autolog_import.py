"""Loaded by path into a worker, before its script: once the script has imported torch, its steps are listened to.

By whatever interpreter the script runs, so standard library only, and nothing of ours before there is a torch: a script
that never imports one pays nothing. Whatever fails here, the script goes on without.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself would cost every worker a millisecond
    from collections.abc import Callable
    from typing import Any

OFF = ("0", "off", "false", "no")


def install(when_imported: Callable[[str, Callable[[Any], None]], None]) -> None:
    """From now on, wait for torch; where the zygote has imported it, begin."""
    if os.environ.get("DDP_METRICS_DIR") and os.environ.get("DDP_METRICS_HOOKS", "").lower() not in OFF:
        when_imported("torch", listen)


def listen(torch: Any) -> None:
    """Begin, with the package that this file belongs to; it need not be installed for the script's interpreter."""
    home = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), *[".."] * 3))  # noqa: PTH100, PTH118, PTH120
    is_known = "ddp_trainer" in sys.modules or home in sys.path
    if not is_known:
        sys.path.append(home)
    try:
        from ddp_trainer.metrics.record import autolog  # noqa: PLC0415 - see above

        autolog.listen(torch)
    except Exception as error:  # noqa: BLE001 - the script is what counts
        print(f"ddp-launch: the steps of this script cannot be counted: {error!r}", file=sys.stderr)
    finally:
        if not is_known and home in sys.path:
            sys.path.remove(home)
