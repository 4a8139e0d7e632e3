"""Loaded by path into a worker, before its script: once the script has imported torch, its steps are listened to.

By whatever interpreter the script runs, so standard library only, and nothing of ours before there is a torch: a script
that never imports one pays nothing. Whatever fails here, the script goes on without.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself would cost every worker a millisecond
    from typing import Any

OFF = ("0", "off", "false", "no")


def install() -> None:
    """From now on, wait for torch; where the zygote has imported it, begin."""
    if not os.environ.get("DDP_METRICS_DIR") or os.environ.get("DDP_METRICS_HOOKS", "").lower() in OFF:
        return
    if "torch" in sys.modules:
        listen()
    else:
        sys.meta_path.insert(0, Finder())


class Finder:
    """Sees the import of torch, once, and leaves."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG002 - importlib's
        """See :meth:`importlib.abc.MetaPathFinder.find_spec`."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_listen(module: Any) -> None:
                run(module)
                listen()

            spec.loader.exec_module = run_and_listen  # type: ignore[method-assign]
        return spec


def listen() -> None:
    """Begin, with the package that this file belongs to; it need not be installed for the script's interpreter."""
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
    is_known = "ddp_trainer" in sys.modules or home in sys.path
    if not is_known:
        sys.path.append(home)
    try:
        from ddp_trainer.metrics import hooks  # noqa: PLC0415 - see above

        hooks.listen(sys.modules["torch"])
    except Exception as error:  # noqa: BLE001 - the script is what counts
        print(f"ddp-launch: the steps of this script cannot be counted: {error!r}", file=sys.stderr)
    finally:
        if not is_known and home in sys.path:
            sys.path.remove(home)
