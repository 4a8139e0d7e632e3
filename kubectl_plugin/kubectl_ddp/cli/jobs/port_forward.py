"""Command ``kubectl ddp port-forward``."""

from __future__ import annotations

import re
from typing import Final

import click

from ddp_trainer.common.constants import PortName
from kubectl_ddp.cli.internal.command import HelpfulCommand, Options, shared_options
from kubectl_ddp.cli.internal.exec_process import replace_process
from kubectl_ddp.cli.internal.job_lookup import target
from kubectl_ddp.cli.internal.output import print_output
from kubectl_ddp.cli.jobs.exec import where
from kubectl_ddp.errors import UsageError
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.observe.rank_locator import Place
from kubectl_ddp.status.json_output import API_VERSION

_PORT: Final = re.compile(r"(?:(?P<local>\d{0,5}):)?(?P<remote>\d{1,5}|[a-z][-a-z0-9]{0,14})")


@click.command("port-forward", cls=HelpfulCommand)
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
