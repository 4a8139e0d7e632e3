"""Command line of ``ddp-launch``: torchrun's flags, and a few more. :func:`parse` is the main entry point.

The table of torch's flags is here because importing torch's parser takes two seconds; a test compares the two. As in
torchrun, every flag can be written with dashes or underscores, as a prefix that is unique in torchrun, or set as
``PET_<NAME>`` in the environment. The other flags of ``python -m torch.distributed.launch`` are accepted too.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ddp_trainer.common.constants import Env
from ddp_trainer.launch import platform_defaults
from ddp_trainer.launch.host import numa
from ddp_trainer.launch.protocol.console import LaunchError
from ddp_trainer.net.addresses import port_argument
from ddp_trainer.net.arguments import ArgumentParser

SHELLS: Final = ("bash", "zsh", "tcsh")
"""Supported shells, as in torchrun."""

_PROGRAM: Final = "ddp-launch"

_ZSH: Final = """#compdef {program}
_ddp_launch() {{ _arguments {arguments} '*::script:_files' }}
# Found by zsh in a folder of $fpath under this name, or read in by `source`.
if [[ $funcstack[1] == _{program} ]]; then _ddp_launch; else compdef _ddp_launch {program}; fi"""


def completion_script(shell: str, flags: Mapping[str, bool]) -> str:
    """Return the completion script for a shell.

    >>> completion_script("bash", {"--tee": True, "--standalone": False})
    "complete -o default -o bashdefault -W '--tee --standalone' ddp-launch"

    Args:
        shell: One of :data:`SHELLS`.
        flags: Flag → whether it takes a value.
    """
    if shell == "zsh":
        arguments = " ".join(f"'{name}{':value:_files' if takes_value else ''}'" for name, takes_value in flags.items())
        return _ZSH.format(program=_PROGRAM, arguments=arguments)
    if shell == "tcsh":
        return f"complete {_PROGRAM} 'c/--/({' '.join(name.removeprefix('--') for name in flags)})/' 'n/*/f/'"
    return f"complete -o default -o bashdefault -W '{' '.join(flags)}' {_PROGRAM}"


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag; a switch has ``kind`` None."""

    names: str
    """Names, separated by spaces, the long one last. Its form with underscores is added."""
    default: str | int | float | None
    help: str
    kind: Callable[[str], object] | None = str
    in_environment: bool = True
    choices: tuple[str, ...] | None = None
    since: str = ""
    """First torch version with the flag; empty for flags of torch 2.10."""

    @property
    def long(self) -> str:
        """Long name, as in torch's documentation."""
        return self.names.split()[-1]

    @property
    def dest(self) -> str:
        """Attribute name of the parsed value."""
        return self.long.lstrip("-").replace("-", "_")

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return f"PET_{self.dest.upper()}"


def _parse_int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


TORCHRUN: Final = (
    Flag("--nnodes", "1:1", "number of nodes, or MIN:MAX"),
    Flag("--nproc-per-node", "1", "workers per node: a number, auto, cpu or gpu"),
    Flag("--rdzv-backend", "static", "static, or c10d (also called ddp): the store of this package"),
    Flag("--rdzv-endpoint", "", "host:port of the store"),
    Flag("--rdzv-id", "none", "name of the run; agents of another are refused"),
    Flag("--rdzv-conf", "", "KEY=VALUE,...: join_timeout, last_call_timeout, settle_timeout, heartbeat_timeout"),
    Flag("--standalone", None, "one node, no store process", None),
    Flag("--max-restarts", 0, "restarts after failures, over the whole run (default 0)", _parse_int),
    Flag("--monitor-interval", 0.1, "accepted, no effect: ends of workers are events here", float),
    Flag(
        "--start-method", "spawn", "accepted, no effect: workers are commands", choices=("spawn", "fork", "forkserver")
    ),
    Flag("--event-log-handler", "null", "accepted, no effect"),
    Flag("--role", "default", "name of the workers' role"),
    Flag("-m --module", None, "the script is a module, as for python -m", None),
    Flag("--no-python", None, "the script is an executable, not Python", None),
    Flag("--run-path", None, "accepted, no effect: scripts are always run by path", None),
    Flag("--log-dir", None, "folder of log files"),
    Flag("-r --redirects", "0", "streams that go to files: 1 stdout, 2 stderr, 3 both, or RANK:NUMBER,..."),
    Flag("-t --tee", "0", "streams that go to files and to the console"),
    Flag(
        "--log-line-prefix-template",
        "",
        "prefix of --tee lines: ${role_name} ${local_rank} ${rank} ${hostname}",
        since="2.14",
    ),
    Flag("--local-ranks-filter", "", "local ranks whose output reaches the console"),
    Flag("--duplicate-stdout-filters", "", "words; lines with one are copied to filtered_stdout.log"),
    Flag("--duplicate-stderr-filters", "", "the same for stderr"),
    Flag("--node-rank", 0, "rank of this node in a static launch", _parse_int),
    Flag("--master-addr", "127.0.0.1", "address of rank 0 in a static launch"),
    Flag("--master-port", None, "port of rank 0 in a static launch", port_argument),
    Flag("--local-addr", None, "address that peers reach this node at"),
    Flag("--logs-specs", None, "not supported", in_environment=False),
    Flag(
        "--numa-binding",
        None,
        f"keep each worker near its GPU; or ${Env.NUMA_BINDING}",
        in_environment=False,
        choices=numa.NAMES,
    ),
    Flag("--signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT", "signals that end the run, passed to workers"),
    Flag(
        "--shutdown-timeout", None, "seconds between asking workers to stop and killing them", _parse_int, since="2.13"
    ),
    Flag("--virtual-local-rank", None, "each worker sees one GPU, as device 0", None),
    Flag(
        "--print-completion",
        None,
        "print a completion script",
        in_environment=False,
        choices=SHELLS,
        since="2.14",
    ),
)
"""Union of the flags of torch 2.10 to 2.15."""

LEGACY: Final = (Flag("--use-env", None, "accepted, no effect: LOCAL_RANK is always set", None, in_environment=False),)
"""Additional flags of ``python -m torch.distributed.launch``."""

EXTENSIONS: Final = (
    Flag("--pass-local-rank", "", "also pass the local rank as an argument: local-rank or local_rank"),
    Flag(
        "--platform",
        "auto",
        "take flags that are not given from variables of Volcengine",
        choices=platform_defaults.NAMES,
    ),
    Flag(
        "--preflight",
        None,
        f"check all nodes before the first start; or ${Env.PREFLIGHT}",
        choices=("off", "warn", "strict"),
    ),
    Flag(
        "--metrics-port", None, f"port of all metrics; or ${Env.METRICS_PORT}, at ${Env.METRICS_ADDRESS}", port_argument
    ),
    Flag("--preload", "", "modules that the fork server imports besides torch"),
    Flag("--on-hang", "", f"action on a rank that hangs: off, warn or act; or ${Env.ON_HANG}"),
    Flag("--hang-floor", "", f"minimum seconds until a rank counts as hung (first steps: 1800); or ${Env.HANG_FLOOR}"),
    Flag("--no-lint", None, f"do not check the environment variables; or ${Env.LINT_IGNORE}=all", None),
    Flag("--no-fork-server", None, "start workers without the fork server, which has torch imported", None),
)

ALL: Final = TORCHRUN + LEGACY + EXTENSIONS

_BY_DEST: Final = {flag.dest: flag for flag in ALL}

_FLAGS_TO_COMPLETE: Final = {flag.long: flag.kind is not None for flag in ALL}


class UnknownFlag(LaunchError):
    """Error for a flag that neither torchrun nor this launcher has."""

    def __init__(self, flag: str, hint: str) -> None:
        super().__init__(f"Unknown flag {flag}; {hint}")
        self.flag = flag


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> argparse.Namespace:
    """Return the flags, the script and its arguments.

    The attribute ``given`` is the set of flags that were given, on the command line or as ``PET_*``.

    Raises:
        LaunchError: For an unknown flag, an invalid value, or a missing script.
        SystemExit: For ``--help`` and ``--print-completion``.
    """
    parser = parser_for(environ)
    own, script, given = _split(parser, argv)
    arguments = parser.parse_args(own)
    if arguments.print_completion:
        print(completion_script(arguments.print_completion, _FLAGS_TO_COMPLETE))
        raise SystemExit(0)
    if not script:
        raise LaunchError("No script was given; try: ddp-launch --nproc-per-node 2 train.py")
    arguments.training_script, arguments.training_script_args = script[0], script[1:]
    from_environment = {flag.dest for flag in ALL if flag.in_environment and environ.get(flag.variable, "").strip()}
    arguments.given = given | from_environment
    if plugin := arguments.logs_specs:
        raise LaunchError(f"--logs-specs {plugin!r}: only torchrun loads log plugins of torch; leave the flag out.")
    return arguments


def remaining_args(argv: Sequence[str]) -> list[str]:
    """Return the words from the first one that is not a known flag: a script and its arguments, or an unknown flag."""
    try:
        return _split(parser_for({}), argv)[1]
    except UnknownFlag as error:
        return [error.flag]


def parser_for(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    """Return a parser with the defaults of the environment's ``PET_*``.

    Raises:
        LaunchError: A variable has an invalid value.
    """
    parser = ArgumentParser(
        LaunchError,
        prog="ddp-launch",
        description="Start and restart the workers of a distributed PyTorch script; takes torchrun's flags.",
        usage="ddp-launch [flags] script [arguments of the script]",
        allow_abbrev=False,  # argparse treats two spellings of one flag as two flags
    )
    for flag in ALL:
        _add(parser, flag, environ)
    return parser


def _add(parser: argparse.ArgumentParser, flag: Flag, environ: Mapping[str, str]) -> None:
    names = list(dict.fromkeys([*flag.names.split(), f"--{flag.dest}"]))
    value = environ.get(flag.variable) if flag.in_environment else None
    if flag.kind is None:
        parser.add_argument(
            *names, dest=flag.dest, action="store_true", default=_switch(flag.dest, value), help=flag.help
        )
        return
    if value is not None and flag.choices and value not in flag.choices:  # argparse checks only what is typed
        raise LaunchError(f"{flag.variable}={value!r} is none of {', '.join(flag.choices)}.")
    # argparse converts a default that is a string, so values of the environment are checked like flags.
    default = flag.default if value is None else value
    kind: Any = flag.kind
    parser.add_argument(
        *names, dest=flag.dest, type=kind, default=default, help=flag.help, choices=flag.choices, metavar="VALUE"
    )


def _switch(dest: str, value: str | None) -> bool:
    """Return the value of a switch's variable, such as PET_STANDALONE=1.

    The Kubeflow operator sets it to an empty string, which crashes torchrun. Here, empty is false.
    """
    if value is None or value.strip() == "":
        return False
    if not value.strip().isdecimal():
        raise LaunchError(f"PET_{dest.upper()}={value!r} is neither 0 nor 1.")
    return bool(int(value))


def _split(parser: argparse.ArgumentParser, argv: Sequence[str]) -> tuple[list[str], list[str], set[str]]:
    """Return the launcher's flags, the script with its arguments, and the names of the given flags.

    Flags after the script belong to the script, even if the launcher has a flag of the same name.
    """
    own: list[str] = []
    given: set[str] = set()
    rest = list(argv)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        flag = rest.pop(0)
        if flag == "--":
            return own, rest, given
        name, action = _action(parser, flag)
        own.append(flag.replace(flag.partition("=")[0], name, 1) if flag.startswith("--") else flag)
        given.add(action.dest)
        takes_value = action.nargs != 0
        has_value = "=" in flag or (not flag.startswith("--") and len(flag) > 2)
        if takes_value and not has_value and rest:
            own.append(rest.pop(0))
    if rest[1:2] == ["--"]:
        del rest[1]  # as torchrun's parser does; a second one is an argument of the script
    return own, rest, given


def _action(parser: argparse.ArgumentParser, flag: str) -> tuple[str, argparse.Action]:
    """Return the full name of a flag, which may be given as a prefix, and its action. Raises UnknownFlag."""
    name = flag.partition("=")[0] if flag.startswith("--") else flag[:2]
    known = parser._option_string_actions  # noqa: SLF001 - argparse has no public way to ask
    if name in known:
        return name, known[name]
    meant = [option for option in known if name.startswith("--") and option.startswith(name)]
    # A prefix that is unique in torchrun stays valid beside flags of later versions and of this launcher.
    first = min((_flag_priority(known[option]) for option in meant), default=0)
    meant = [option for option in meant if _flag_priority(known[option]) == first]
    longs = list(dict.fromkeys(f"--{known[option].dest.replace('_', '-')}" for option in meant))
    if len(longs) == 1:
        return longs[0], known[longs[0]]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else "ddp-launch --help lists the flags; those of the script follow it."
    raise UnknownFlag(name, f"it is short for {' and '.join(longs)}; write one of them in full." if longs else hint)


def _flag_priority(action: argparse.Action) -> int:
    """Return 0 for flags of every torchrun, 1 for those of later versions, 2 for other flags."""
    flag = _BY_DEST.get(action.dest)
    return 0 if flag is None else 2 if flag not in TORCHRUN else 1 if flag.since else 0  # only --help is in no table
