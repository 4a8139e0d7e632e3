"""Command ``kubectl ddp dashboard``, with the ``kubectl port-forward`` to a Grafana in the cluster."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import click

from ddp_trainer.common.metric_names import Dashboard, MetricLabel
from kubectl_ddp.backends.base import ExecCommand
from kubectl_ddp.backends.select import cluster_of, is_local
from kubectl_ddp.cli.internal.command import GroupedHelpCommand, Options, shared_options
from kubectl_ddp.cli.internal.job_lookup import parse_job_name
from kubectl_ddp.errors import Interrupted, NotFound, Unreachable
from kubectl_ddp.kube.grafana import PORT, VARIABLE, GrafanaService, address, parse_url

_FORWARDING: Final = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) ")


class PortForward:
    """Open tunnel of a ``kubectl port-forward`` process."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self._process = process
        self.port = port
        """Local port of the tunnel."""

    def wait(self) -> None:
        """Block until the other side closes the tunnel."""
        for _ in self._process.stdout or ():
            continue


@contextlib.contextmanager
def open_port_forward(handover: ExecCommand) -> Iterator[PortForward]:
    """Open a tunnel, and close it at the end of the block. Raises NotFound, Unreachable."""
    try:
        process = subprocess.Popen(
            handover.words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    except FileNotFoundError:
        raise NotFound(f"Program '{handover.words[0]}' was not found.") from None
    with process:
        try:
            first = process.stdout.readline() if process.stdout else ""
            opened = _FORWARDING.match(first)
            if opened is None:
                process.terminate()
                messages = (process.stderr.read() if process.stderr else "").strip().splitlines()
                raise Unreachable(f"kubectl port-forward failed: {messages[-1] if messages else first.strip()}.")
            yield PortForward(process, int(opened[1]))
        finally:
            process.terminate()


@click.command(cls=GroupedHelpCommand)
@click.argument("job", required=False)
@click.option("--grafana", metavar="URL", help=f"Address of Grafana (default ${VARIABLE}, or 'config set grafana').")
@click.option("--ranks", is_flag=True, help="Open the dashboard of the job's ranks instead of the job's.")
@click.option(
    "--print", "only_prints", is_flag=True, help="Print the address instead of opening it (default in a pipe)."
)
@shared_options()
def dashboard(options: Options, job: str | None, *, grafana: str | None, ranks: bool, only_prints: bool) -> None:
    """Open Grafana with a job selected (default: all jobs).

    Without an address, Grafana's Service is looked for in the cluster, and reached through kubectl port-forward until
    Ctrl-C. The dashboard of a deleted job works as long as Prometheus keeps its metrics.
    """
    name = parse_job_name(job) if job is not None else None
    page = DashboardLink(Dashboard.FLEET if name is None else Dashboard.RANKS if ranks else Dashboard.JOB, name)
    base = _grafana_url(grafana)
    opens = not only_prints and sys.stdout.isatty()
    if is_local(options, name):
        if base is None:
            raise NotFound("The address of Grafana is not set.", hint=f"Set it with --grafana or ${VARIABLE}.")
        _show(options, page.at(base), opens=opens)
        return
    cluster = cluster_of(options)
    if name is not None:
        page = replace(page, namespace=cluster.namespace)
    if base is not None:
        _show(options, page.at(base), opens=opens)
        return
    service = cluster.grafana()
    if opens:
        _show_through(options, cluster.forward_service(service, None), service, page)
        return
    click.echo(page.at(f"http://127.0.0.1:{PORT}"))
    words = cluster.forward_service(service, PORT).words
    options.print_message(f"Keep this running while you use it: {shlex.join(['kubectl', *words[1:]])}")


@dataclass(frozen=True, slots=True)
class DashboardLink:
    """Dashboard to open, and its variables."""

    dashboard: Dashboard
    job: str | None
    namespace: str | None = None

    def at(self, base: str) -> str:
        """Return the address of the dashboard in the Grafana at ``base``."""
        return address(base, self.dashboard, {"namespace": self.namespace, str(MetricLabel.JOB): self.job})


def _grafana_url(flag: str | None) -> str | None:
    """Return the address of Grafana from the flag, the environment or the user's defaults. Raises UsageError."""
    from kubectl_ddp.spec.external_values import GRAFANA, config_file, setting  # noqa: PLC0415 - not needed for help

    sources = ((flag, "--grafana"), (os.environ.get(VARIABLE), f"${VARIABLE}"), (setting(GRAFANA), str(config_file())))
    return next((parse_url(url, origin) for url, origin in sources if url), None)


def _show(options: Options, url: str, *, opens: bool) -> None:
    """Print the address, and open it in a browser if ``opens`` is true."""
    click.echo(url)
    if opens:
        import webbrowser  # noqa: PLC0415 - 10 ms, and not in a pipe

        if not webbrowser.open(url):
            options.print_message("No browser could be started: open the address yourself.")


def _show_through(options: Options, handover: ExecCommand, service: GrafanaService, page: DashboardLink) -> None:

    with open_port_forward(handover) as opened:
        options.print_message(f"Through {service}, until Ctrl-C.")
        _show(options, page.at(f"http://127.0.0.1:{opened.port}"), opens=True)
        try:
            opened.wait()
        except KeyboardInterrupt:
            raise Interrupted(f"The port-forward to {service} is closed.") from None
    raise Unreachable(f"The port-forward to {service} was closed by the cluster.")
