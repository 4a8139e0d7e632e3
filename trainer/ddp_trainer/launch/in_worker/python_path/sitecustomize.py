"""Python runs this file at its start, because its directory is in ``PYTHONPATH`` of pods that have the runtime image.

In a job with ``launcher: torchrun``, torchrun starts the ranks, and this file counts their steps: nothing else of this
package is in their processes. In a TrainJob, the user's command starts torchrun, and this file starts ``ddp-launch``
instead.
"""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - every Python process of the pod runs this

RUNTIME = os.path.abspath(os.path.join(HERE, *[os.pardir] * 4))  # noqa: PTH100, PTH118
TORCHRUN_MODULES = {"torch.distributed.run", "torch.distributed.launch"}
FLAGS = "bBdiOPqsSuvx"
"""Options of Python in one letter, without a value."""


def run_next() -> None:
    """Run the ``sitecustomize`` that the image has, which this file hides."""
    others = [path for path in sys.path if os.path.abspath(path) != HERE]  # noqa: PTH100
    spec = PathFinder.find_spec(__name__, others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


def torchrun_arguments(words: list[str]) -> list[str] | None:
    """Return torchrun's arguments if this process is torchrun, started by its name or as a module; otherwise None."""
    rest = iter(words[1:])
    for word in rest:
        if not word.startswith("-"):
            return [*rest] if os.path.basename(word) == "torchrun" else None  # noqa: PTH119
        flags = word[1:].lstrip(FLAGS)  # without those that take no value
        if flags.startswith("m"):
            return [*rest] if (flags[1:] or next(rest, "")) in TORCHRUN_MODULES else None
        if flags in {"X", "W"}:
            next(rest, "")
    return None


if "DDP_LAUNCH_FLAGS" in os.environ and "RANK" not in os.environ:
    arguments = torchrun_arguments(sys.orig_argv) if sys.version_info >= (3, 10) else None
    if arguments is not None:
        os.execv(sys.executable, [sys.executable, RUNTIME, "launch", *arguments])  # noqa: S606 - no shell is wanted
if "RANK" in os.environ and sys.version_info >= (3, 11):
    try:
        from ddp_trainer.launch.in_worker import import_hook
        from ddp_trainer.metrics.record import autolog_import

        autolog_import.install(import_hook.call_after_import)
    except Exception as error:  # noqa: BLE001 - the script must run
        print(f"ddp: the steps of this script cannot be counted: {error!r}", file=sys.stderr)
run_next()
