"""Command ``kubectl ddp doctor``."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from kubectl_ddp.backends.access import check_kubeconfig
from kubectl_ddp.backends.select import cluster_of, has_kubeconfig
from kubectl_ddp.cli.internal.command import HelpfulCommand, Options, shared_options
from kubectl_ddp.cli.internal.output import fail_on_errors, print_findings
from kubectl_ddp.errors import DdpError
from kubectl_ddp.util.finding import Finding, Severity

if TYPE_CHECKING:
    from kubectl_ddp.kube.objects import Object


@click.command(cls=HelpfulCommand)
@click.option("--strict", is_flag=True, help="Fail on warnings as well.")
@shared_options("json", "yaml")
def doctor(options: Options, *, strict: bool) -> None:
    """Check this machine and the cluster: versions, APIs, operators, features, rights, policies, torch.

    Creates nothing but access reviews; features are detected by dry runs of a Job. If rights are missing, the Role to
    request follows the table. With --local, only this machine is checked. Exit code 4 means that a check failed.
    """
    from kubectl_ddp.cli.setup.client import inspect_client, run_checks  # noqa: PLC0415 - not needed for help and completion

    found = list(run_checks(inspect_client(os.environ.get("KUBECTL_DDP_PYTHON") or sys.executable)))
    roles: list[Object] = []
    if not options.local:
        about, roles = _cluster(options) if options.names_a_cluster or has_kubeconfig() else ([_no_cluster()], [])
        found += about
    print_findings(options, "Checkup", found, roles=roles)
    if roles and options.output is None:
        from kubectl_ddp.rbac.rights import text  # noqa: PLC0415 - as above

        click.echo("\n# Missing rights; ask a cluster administrator to grant them with 'kubectl apply -f -':")
        click.echo(text(roles), nl=False)
    fail_on_errors("The checkup", found, is_strict=strict)


def _no_cluster() -> Finding:
    try:
        check_kubeconfig()
    except DdpError as error:
        return Finding(Severity.ERROR, error.message, error.hint, subject="cluster")
    fix = "Name one with --kubeconfig or KUBECONFIG; --local looks at this machine alone."
    return Finding(Severity.WARNING, "none is configured: there is no kubeconfig", fix, subject="cluster")


def _cluster(options: Options) -> tuple[list[Finding], list[Object]]:
    """Return the results of the checks of the cluster, and the Role with the missing rights."""
    from kubectl_ddp.preflight.doctor import run_checks  # noqa: PLC0415
    from kubectl_ddp.rbac.rights import required_roles  # noqa: PLC0415

    try:
        facts = cluster_of(options).inspect_cluster()
    except DdpError as error:
        return [Finding(Severity.ERROR, error.message, error.hint, subject="API server")], []
    roles = required_roles(facts.missing or (), facts.served, namespace=facts.namespace, user=facts.user)
    return list(run_checks(facts)), roles
