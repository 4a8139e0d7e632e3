"""Python runs this file at its start, because its directory is in ``PYTHONPATH``: it counts the steps of a rank.

A job with ``launcher: torchrun`` has the directory there if the runtime image is mounted. torchrun starts the ranks, so
nothing else of this package is in their processes.
"""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - every Python process of the pod runs this


def run_next() -> None:
    """Run the ``sitecustomize`` that the image has, which this file hides."""
    others = [path for path in sys.path if os.path.abspath(path) != HERE]  # noqa: PTH100
    spec = PathFinder.find_spec(__name__, others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


if "RANK" in os.environ and sys.version_info >= (3, 11):
    try:
        from ddp_trainer.launch.in_worker import import_hook
        from ddp_trainer.metrics.record import autolog_import

        autolog_import.install(import_hook.call_after_import)
    except Exception as error:  # noqa: BLE001 - the script must run
        print(f"ddp: the steps of this script cannot be counted: {error!r}", file=sys.stderr)
run_next()
