"""Command ``kubectl ddp exec``."""

from __future__ import annotations

import sys
from typing import Final

import click

from kubectl_ddp.backends.base import Backend, Entry
from kubectl_ddp.cli.internal.command import Options, PassthroughCommand, passthrough_args, shared_options
from kubectl_ddp.cli.internal.exec_process import replace_process
from kubectl_ddp.cli.internal.job_lookup import target
from kubectl_ddp.errors import UsageError
from kubectl_ddp.observe.rank_locator import Place, find_pod, find_rank

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
