"""Commands that work in the pod of a rank: ``kubectl ddp exec``, ``port-forward`` and ``profile``."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Final, NoReturn

import click

from ddp_trainer.common.constants import PortName, Profile
from kubectl_ddp.backends.access import parse_timeout
from kubectl_ddp.backends.base import Backend, Entry, ExecCommand
from kubectl_ddp.cli.internal.command import (
    GroupedHelpCommand,
    Options,
    PassthroughCommand,
    passthrough_args,
    shared_options,
)
from kubectl_ddp.cli.internal.job_lookup import target
from kubectl_ddp.cli.internal.output import print_output
from kubectl_ddp.errors import DdpError, NotFound, UsageError
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.observe.rank_locator import Place, find_pod, find_rank
from kubectl_ddp.status.job_tables import API_VERSION


def replace_process(to: ExecCommand) -> NoReturn:
    """Replace this process by another program. Raises NotFound, DdpError."""
    environ = dict(os.environ if to.environ is None else to.environ)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        if to.directory is not None:
            os.chdir(to.directory)
        os.execvpe(to.words[0], to.words, environ)  # noqa: S606 - intentionally without a shell
    except FileNotFoundError:
        raise NotFound(
            f"Program '{to.words[0]}' was not found.", hint="Name an installed program after '--'."
        ) from None
    except OSError as error:
        raise DdpError(f"'{to.words[0]}' cannot be run: {error.strerror}.") from error


SHELL: Final = ("sh", "-c", "if command -v bash >/dev/null; then exec bash; fi; exec sh")
"""Command that starts bash, or sh if the image has no bash."""


class _ExecCommand(PassthroughCommand):
    allow_extra_args = True
    """Accept words after the job here, because the error for them names ``--``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        left = super().parse_args(ctx, args)
        if left:
            raise UsageError(
                f"'{left[0]}' follows the job, and is not a flag.",
                hint=f"Write '{ctx.command_path} {ctx.params['job']} -- {' '.join(left)}'.",
            )
        return left


@click.command("exec", cls=_ExecCommand)
@click.argument("job", required=False)
@click.option("--rank", type=click.IntRange(min=0), metavar="R", help="In the pod of this rank (default 0).")
@click.option("--pod", metavar="POD", help="In this pod instead, as in 'worker-1' or the store's.")
@click.option("-i", "--stdin", is_flag=True, help="Pass stdin to the command.")
@click.option("-t", "--tty", is_flag=True, help="Allocate a terminal for the command.")
@shared_options()
def exec_in_pod(
    options: Options, job: str | None, *, rank: int | None, pod: str | None, stdin: bool, tty: bool
) -> None:
    """Run a command in the pod of a rank, with RANK, LOCAL_RANK and RANK_PID set (default: a shell).

    The exit code is the command's. On a cluster kubectl does it; on this machine the command gets the environment and
    the directory of the pod.
    """
    words = passthrough_args() or ()
    if not words:
        if not sys.stdin.isatty():
            raise UsageError("No command is given, and stdin is not a terminal for a shell.", hint="Add '-- CMD'.")
        words, stdin, tty = SHELL, True, True
    backend, name = target(options, job)
    place = where(backend, name, rank=rank, pod=pod)
    options.print_message(str(place))
    entry = Entry(words=words, variables=place.variables, stdin=stdin, terminal=tty)
    replace_process(backend.enter(place.pod, entry))


def where(backend: Backend, name: str, *, rank: int | None, pod: str | None) -> Place:
    """Return the pod for ``--rank`` or ``--pod`` (default: that of rank 0). Raises UsageError, NotFound."""
    if rank is not None and pod is not None:
        raise UsageError(f"--rank {rank} and --pod {pod} both say where.", hint="Leave one of them out.")
    return find_pod(backend.job(name), pod) if pod is not None else find_rank(backend, name, rank or 0)


_PORT: Final = re.compile(r"(?:(?P<local>\d{0,5}):)?(?P<remote>\d{1,5}|[a-z][-a-z0-9]{0,14})")


@click.command("port-forward", cls=GroupedHelpCommand)
@click.argument("job", required=False)
@click.argument("ports", nargs=-1, metavar="[[LOCAL:]PORT]...")
@click.option("--rank", type=click.IntRange(min=0), metavar="R", help="Ports of this rank's pod (default 0).")
@click.option("--pod", metavar="POD", help="Ports of this pod instead, as in 'worker-1' or the store's.")
@shared_options("json", "yaml")
def port_forward(
    options: Options, job: str | None, ports: tuple[str, ...], *, rank: int | None, pod: str | None
) -> None:
    """Forward ports of a rank's pod to this machine: the metrics port, or ports named by number or name.

    On a cluster, kubectl forwards them until Ctrl-C; with ':PORT' it chooses a free local port. The ports of a job on
    this machine need no forwarding: their addresses are printed.
    """
    if job is not None and not job[:1].isalpha():  # names start with a letter, so this is a port of the newest job
        ports, job = (job, *ports), None
    backend, name = target(options, job)
    place = where(backend, name, rank=rank, pod=pod)
    wanted = [_resolve_port(port, place.pod) for port in ports or (str(PortName.METRICS),)]
    handover = backend.forward(place.pod, wanted)
    if handover is None:
        _print_addresses(options, place, wanted)
        return
    if options.output is not None:
        raise UsageError(
            f"-o {options.output} is only for jobs on this machine; on a cluster, kubectl prints the output."
        )
    options.print_message(str(place))
    replace_process(handover)


def _resolve_port(text: str, pod: Object) -> str:
    """Replace the name of a port by its number. Raises UsageError."""
    match = _PORT.fullmatch(text)
    named = {str(port["name"]): int(port["containerPort"]) for port in _ports(pod) if "name" in port}
    if match is None or (not match["remote"].isdecimal() and match["remote"] not in named):
        names = ", ".join(named)
        raise UsageError(f"'{text}' is not a port of pod '{pod['metadata']['name']}'.", hint=f"It has {names}.")
    remote = match["remote"] if match["remote"].isdecimal() else str(named[match["remote"]])
    return remote if match["local"] is None else f"{match['local']}:{remote}"


def _ports(pod: Object) -> list[Object]:
    return [port for container in pod["spec"]["containers"] for port in container.get("ports") or ()]


def _print_addresses(options: Options, place: Place, ports: list[str]) -> None:
    host = place.pod["status"].get("podIP", "")
    addresses = [f"{host}:{port.rpartition(':')[2]}" for port in ports]
    if options.output is None:
        options.print_message(str(place))
        for address in addresses:
            click.echo(address)
        return
    document = {"apiVersion": API_VERSION, "kind": "Addresses", "pod": place.name, "rank": place.rank}
    print_output(document | {"addresses": addresses}, options.output)


LOCAL: Final = "local"
"""Value of ``Backend.where`` on this machine."""


@click.command(cls=GroupedHelpCommand)
@click.argument("job", required=False)
@click.option("--rank", type=click.IntRange(min=0), default=0, metavar="R", help="Rank to record (default 0).")
@click.option(
    "--steps",
    type=click.IntRange(1, Profile.MOST_STEPS.value),
    default=Profile.STEPS.value,
    metavar="N",
    help=f"Number of steps, {Profile.MOST_STEPS:d} at most (default {Profile.STEPS:d}).",
)
@click.option("-O", "--file", "path", metavar="FILE", help="Output file (default JOB-rankR.trace.json.gz).")
@click.option(
    "--timeout", metavar="TIME", default="2m", help="Longest time to wait for the steps, as in 90s or 5m (default 2m)."
)
@shared_options("json", "yaml")
def profile(options: Options, job: str | None, *, rank: int, steps: int, path: str | None, timeout: str) -> None:
    """Record a trace of a rank's next steps with torch.profiler, and copy it here; the job keeps running.

    It opens in https://ui.perfetto.dev and chrome://tracing. A step is one step of a torch optimizer, in any script
    under ddp-launch. It has no overhead until it is requested. During the recording, that rank is slower, and the
    others wait for it.
    """
    from kubectl_ddp.observe.rank_locator import entry, fetch_trace  # noqa: PLC0415 - not needed for help and completion
    from kubectl_ddp.render.pod import command_prefix  # noqa: PLC0415

    seconds = parse_timeout(timeout)
    if not seconds:
        raise UsageError(f"--timeout {timeout} leaves no time for a step.", hint="Set a longer time, as in 2m.")
    backend, name = target(options, job)
    place = find_rank(backend, name, rank)
    if place.local_rank is None:
        raise NotFound(
            f"The metrics of pod {place.name} do not report yet which worker is rank {rank}.",
            hint="Try again in a moment.",
        )
    options.print_message(str(place))
    file = Path(path or f"{name}-rank{rank}.trace.json.gz")
    # A local pod uses the interpreter of its submission, usually that of this process.
    here = os.environ.get("KUBECTL_DDP_PYTHON") or sys.executable
    python = here if backend.where == LOCAL else "python3"
    command = () if backend.where == LOCAL else command_prefix(backend.job(name).job, "profile")
    flags = place.local_rank, place.variables
    wanted = entry(*flags, steps=steps, seconds=seconds, python=python, command=command)
    size = fetch_trace(backend.enter(place.pod, wanted), file, seconds)
    if options.output is not None:
        document = {"apiVersion": API_VERSION, "kind": "Trace", "job": name, "rank": rank, "pod": place.name}
        print_output({**document, "steps": steps, "file": str(file), "size_bytes": size}, options.output)
        return
    click.echo(file)
    options.print_message(f"{size >> 10} KiB; open it in https://ui.perfetto.dev.")
