"""Commands of the trainer image: ``ddp-launch``, and ``python -m ddp_trainer COMMAND``.

The commands are launch, secret, install, store, aggregate, train, checkpoint, profile, hang, preflight, and those that
other packages add by entry points. This module connects the packages, which do not import one another. Each package is
imported only when its command runs: a launcher must not pay for torch, nor a store for prometheus.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ddp_trainer.common.constants import Env, Exit
from ddp_trainer.common.time_classes import StartupPhase
from ddp_trainer.process import startup_times
from ddp_trainer.process.stdio import open_closed, run_for_a_reader

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from ddp_trainer.launch.host.parent_link import ParentLink

Command = Callable[[Sequence[str]], int]
"""Command line without the name of the command → exit code."""

_ADDED_COMMANDS: Final = "ddp_launch.commands"
"""Group of entry points: the subcommands of ``ddp-launch`` in other packages."""


def _launch(argv: Sequence[str]) -> int:
    if command := _find_command(argv[0], SUBCOMMANDS) if argv else None:
        return command(argv[1:])
    if argv and argv[0].startswith(("--print", "--help", "-h")):
        return run_for_a_reader(lambda: _start_launcher(argv), "ddp-launch")
    if Env.LAUNCH_FLAGS in os.environ and "RANK" not in os.environ:
        from ddp_trainer.launch.torchrun_shim import with_platform_flags  # noqa: PLC0415 - in pods of TrainJobs only

        argv = with_platform_flags(argv, os.environ)
    if os.environ.get(Env.RESTART_IN_PLACE) == "1":
        from ddp_trainer.launch import resident_parent  # noqa: PLC0415

        return resident_parent.run(lambda parent: _start_launcher(argv, parent))
    return _start_launcher(argv)


def _find_command(name: str, commands: Mapping[str, Command]) -> Command | None:
    """Return the command of this name, also of another package; None if there is none."""
    if name in commands or not name.isidentifier():
        return commands.get(name)
    added = _added_commands()
    return added[name].load() if name in added else None


def _added_commands() -> Mapping[str, EntryPoint]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow, and no script's start needs it

    return {entry_point.name: entry_point for entry_point in entry_points(group=_ADDED_COMMANDS)}


def _start_launcher(argv: Sequence[str], parent: ParentLink | None = None) -> int:
    from ddp_trainer.launch.cli import main  # noqa: PLC0415
    from ddp_trainer.metrics.attach import agent_recorder  # noqa: PLC0415

    return main(argv, recorder=agent_recorder, parent=parent)


def _aggregate(argv: Sequence[str]) -> int:
    # The runtime image has its own prometheus_client and nvidia-ml-py there. Programs of the user import those of their
    # image.
    sys.path.insert(0, str(Path(__file__).with_name("vendor")))
    from ddp_trainer.metrics.aggregator import main  # noqa: PLC0415

    return main([*argv])


def _main_of(module: str) -> Command:
    """Return the function ``main`` of a module, which is imported when the command is called."""
    return lambda argv: int(importlib.import_module(module).main(argv))


def _train(argv: Sequence[str]) -> int:
    startup_times.end_phase(StartupPhase.INTERPRETER)
    from ddp_trainer.metrics.attach import rank_recorder  # noqa: PLC0415
    from ddp_trainer.train.cli import main  # noqa: PLC0415

    return main(argv, recorder=rank_recorder)


def _checkpoint(argv: Sequence[str]) -> int:
    from ddp_trainer.train.checkpoint.checkpoint_cli import main  # noqa: PLC0415

    return run_for_a_reader(lambda: main(argv), "ddp_trainer checkpoint")


def _preflight(argv: Sequence[str]) -> int:
    main = _main_of("ddp_preflight.cli")
    return run_for_a_reader(lambda: main(argv), "ddp-launch preflight")


SUBCOMMANDS: dict[str, Command] = {
    "preflight": _preflight,
}
"""Subcommands of ``ddp-launch``. A script with such a name is started as ``./preflight``."""

COMMANDS: dict[str, Command] = {
    "launch": _launch,
    "secret": _main_of("ddp_trainer.launch.host.secret_file"),
    "install": _main_of("ddp_trainer.launch.packages"),
    "store": _main_of("ddp_trainer.launch.rendezvous.store"),
    "aggregate": _aggregate,
    "train": _train,
    "checkpoint": _checkpoint,
    "profile": _main_of("ddp_trainer.launch.in_worker.profile"),
    "hang": _main_of("ddp_trainer.launch.hang.hang_report"),
    **SUBCOMMANDS,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    open_closed()
    name, *rest = [*(sys.argv[1:] if argv is None else argv), ""]
    if command := _find_command(name, COMMANDS):
        return command(rest[:-1])
    names = ",".join([*COMMANDS, *_added_commands()])
    usage = f"python -m ddp_trainer {{{names}}} [flags]; each lists its flags with --help"
    if name in {"-h", "--help"}:
        return run_for_a_reader(lambda: print(f"usage: {usage}") or Exit.SUCCESS, "ddp_trainer")
    wrong = f"{name!r} is none of the commands" if name else "No command was given"
    print(f"ddp_trainer: {wrong}: {usage}.", file=sys.stderr)
    return Exit.USAGE


def launch() -> int:
    """Run the console script ``ddp-launch`` and return its exit code."""
    open_closed()
    return _launch(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
