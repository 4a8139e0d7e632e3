"""Import hook that starts :mod:`ddp_trainer.metrics.record.autolog` when the script imports torch.

The launcher loads this file by path into each worker before the script. It runs in the script's interpreter, so it uses
the standard library only and imports the package after torch. A script that never imports torch pays nothing. If
anything fails here, the script continues without metrics.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself would cost every worker a millisecond
    from collections.abc import Callable
    from typing import Any

OFF = ("0", "off", "false", "no")


def install(when_imported: Callable[[str, Callable[[Any], None]], None]) -> None:
    """Start the hooks when torch is imported, or now if the fork server has imported it.

    Args:
        when_imported: Registers a function to call with a module once it is imported.
    """
    if os.environ.get("DDP_METRICS_DIR") and os.environ.get("DDP_METRICS_HOOKS", "").lower() not in OFF:
        began = time.time()
        when_imported("torch", lambda torch: listen(torch, began))


def listen(torch: Any, began: float) -> None:
    """Start the hooks of the package that contains this file. It need not be installed for the script's interpreter.

    Args:
        torch: The module.
        began: Unix time at which the script began.
    """
    home = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), *[".."] * 3))  # noqa: PTH100, PTH118, PTH120
    is_known = "ddp_trainer" in sys.modules or home in sys.path
    if not is_known:
        sys.path.append(home)
    try:
        from ddp_trainer.metrics.record import autolog  # noqa: PLC0415 - see above

        autolog.listen(torch, began)
    except Exception as error:  # noqa: BLE001 - the script must run
        print(f"ddp-launch: the steps of this script cannot be counted: {error!r}", file=sys.stderr)
    finally:
        if not is_known and home in sys.path:
            sys.path.remove(home)
