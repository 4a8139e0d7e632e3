"""Command ``kubectl ddp doctor``."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from kubectl_ddp.backends.access import check_kubeconfig
from kubectl_ddp.backends.select import cluster_of, has_kubeconfig
from kubectl_ddp.cli.internal.options import Options
from kubectl_ddp.cli.internal.shared_flags import shared_options
from kubectl_ddp.errors import DdpError, PreflightFailed

if TYPE_CHECKING:
    from kubectl_ddp.doctor.cluster import ClusterFacts
    from kubectl_ddp.doctor.model import CheckResult
    from kubectl_ddp.kube.objects import Object


@click.command()
@click.option("--strict", is_flag=True, help="Fail for warnings too.")
@shared_options("json", "yaml")
def doctor(options: Options, *, strict: bool) -> None:
    """Say whether this machine and the cluster are fit: versions, APIs, operators, rights, policies, torch.

    Creates nothing but questions about rights. Where rights are missing, the Role to ask for follows the table. With
    --local only this machine is looked at. Exit code 4 says that something fails.
    """
    from kubectl_ddp.cli.internal.job_lookup import print_output, style  # noqa: PLC0415 - not needed for help and completion
    from kubectl_ddp.cli.setup.client import inspect_client, run_checks  # noqa: PLC0415
    from kubectl_ddp.doctor.model import Verdict, checks_to_dict, table  # noqa: PLC0415

    found = list(run_checks(inspect_client(os.environ.get("KUBECTL_DDP_PYTHON") or sys.executable)))
    roles: list[Object] = []
    if not options.local:
        about, roles = _cluster(options) if options.names_a_cluster or has_kubeconfig() else ([_no_cluster()], [])
        found += about
    if options.output is not None:
        print_output(checks_to_dict(found, roles=roles), options.output)
    else:
        click.echo(table(found).render(style(options)))
        _print_roles(roles)
    bad = {Verdict.FAIL, Verdict.WARN} if strict else {Verdict.FAIL}
    failed = [look for look in found if look.verdict in bad]
    if failed:
        names = ", ".join(look.what for look in failed)
        raise PreflightFailed(f"{len(failed)} of {len(found)} are not fit: {names}.", hint="The table says what to do.")


def _no_cluster() -> CheckResult:
    from kubectl_ddp.doctor.model import CheckResult, Verdict  # noqa: PLC0415 - as above

    try:
        check_kubeconfig()
    except DdpError as error:
        return CheckResult("cluster", Verdict.FAIL, error.message, error.hint)
    fix = "Name one with --kubeconfig or KUBECONFIG; --local looks at this machine alone."
    return CheckResult("cluster", Verdict.WARN, "none is configured: there is no kubeconfig", fix)


def _cluster(options: Options) -> tuple[list[CheckResult], list[Object]]:
    """Return the results of the checks of the cluster, and the Role with the missing rights."""
    from kubectl_ddp.doctor.cluster import run_checks  # noqa: PLC0415
    from kubectl_ddp.doctor.model import CheckResult, Verdict  # noqa: PLC0415
    from kubectl_ddp.rbac.role_builder import required_roles  # noqa: PLC0415

    try:
        facts = _inspect_cluster(options)
    except DdpError as error:
        return [CheckResult("API server", Verdict.FAIL, error.message, error.hint)], []
    roles = required_roles(facts.missing or (), facts.served, namespace=facts.namespace, user=facts.user)
    return list(run_checks(facts)), roles


def _inspect_cluster(options: Options) -> ClusterFacts:
    return cluster_of(options).inspect_cluster()


def _print_roles(roles: list[Object]) -> None:
    if roles:
        from kubectl_ddp.rbac.role_builder import text  # noqa: PLC0415 - as above

        click.echo("\n# What to ask for; give this to who runs the cluster, for 'kubectl apply -f -':")
        click.echo(text(roles), nl=False)
