"""What this program is called, by the person who called it.

kubectl starts a plugin in its own place (``exec``), so the plugin cannot tell from its arguments who called; shells,
however, put the path of what they started into ``$_``, and that survives kubectl.
"""

from __future__ import annotations

import os
import sys
from pathlib import PurePath
from typing import Final

EXECUTABLE: Final = "kubectl-ddp"


def program() -> str:
    """``kubectl ddp`` when kubectl started us, ``kubectl-ddp`` otherwise; for usage lines and advice."""
    called = PurePath(sys.argv[0]).name if sys.argv else ""
    caller = PurePath(os.environ.get("_", "")).stem
    return "kubectl ddp" if called.startswith("kubectl-") and caller == "kubectl" else EXECUTABLE
