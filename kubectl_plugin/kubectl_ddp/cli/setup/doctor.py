"""Commands that check a cluster: ``kubectl ddp doctor``, ``preflight`` and ``capacity``.

``doctor`` checks this machine as well: the command line, kubectl, and the requirements of local jobs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Final

import click

from ddp_trainer.common.constants import Path
from kubectl_ddp.backends.access import check_kubeconfig
from kubectl_ddp.backends.local.directory import local_jobs_directory
from kubectl_ddp.backends.select import backend_for, cluster_of, has_kubeconfig
from kubectl_ddp.cli.internal.command import GroupedHelpCommand, Options, shared_options
from kubectl_ddp.cli.internal.job_options import JobRequest, ProgramCommand, job_options, prepare, print_notes
from kubectl_ddp.cli.internal.output import fail_on_errors, print_findings, print_output, style
from kubectl_ddp.errors import DdpError, UsageError
from kubectl_ddp.util.finding import Finding, Severity, findings_text, max_severity, ok, warning
from kubectl_ddp.util.text_table import Style

if TYPE_CHECKING:
    from kubectl_ddp.kube.objects import Object


@click.command(cls=GroupedHelpCommand)
@click.option("--gpu-type", metavar="TYPE", help="Only nodes with GPUs of this type.")
@click.option("--queue", metavar="NAME", help="Only this LocalQueue.")
@shared_options("json", "yaml")
def capacity(options: Options, *, gpu_type: str | None, queue: str | None) -> None:
    """Show free capacity by node, type of GPU and queue.

    Objects that you may not read are reported and skipped. In a cluster, free is what pods do not request; on this
    machine, what programs do not use.
    """
    from kubectl_ddp.capacity import capacity_to_dict, report_capacity, tables  # noqa: PLC0415 - not needed for help

    backend = backend_for(options)
    report = report_capacity(backend.where, backend.capacity_objects(), gpu_type=gpu_type, queue=queue)
    if options.output is not None:
        print_output(capacity_to_dict(report), options.output)
        return
    form = style(options)
    click.echo("\n\n".join(table.render(form) for table in tables(report)))
    for reason in report.unread:
        options.print_message(f"warning: {reason}")


@click.command(cls=ProgramCommand)
@click.option("--strict", is_flag=True, help="Fail on warnings as well, such as a quota that is used up.")
@job_options
@shared_options("json", "yaml")
def preflight(options: Options, request: JobRequest, *, strict: bool) -> None:
    """Check whether a job can run in the cluster; changes nothing.

    Takes what submit takes. Checks the resources of the nodes, Kueue, quotas, volumes, Secrets, rights, and admission.
    Exit code 4 means that the job cannot run there, 5 that you may not submit it.
    """
    from kubectl_ddp.client.submission import (  # noqa: PLC0415 - not needed for help and completion
        finding_error,
        program_warnings,
    )
    from kubectl_ddp.preflight.chain import OF_THE_CLUSTER, OF_THE_JOB, RIGHTS, run_checks  # noqa: PLC0415
    from kubectl_ddp.render import Site  # noqa: PLC0415

    prepared = prepare(options, request)
    if prepared.site is Site.LOCAL:
        raise UsageError(
            "Preflight asks a cluster, and this job would run here.", hint="'ddp-launch preflight' looks at a machine."
        )
    backend = backend_for(prepared.where)
    prepared = prepared.resolve_engine(backend)
    spec = prepared.spec
    inputs = backend.preflight(spec, prepared.objects(prepared.placeholder), is_thorough=True)
    assert inputs is not None  # noqa: S101 - never None for a cluster
    print_notes(prepared.resolved, options)
    found = [*program_warnings(spec), *run_checks([*OF_THE_JOB, *OF_THE_CLUSTER], *inputs)]
    print_findings(
        options,
        "Preflight",
        found,
        job=spec.name,
        where=backend.where,
        namespace=inputs[0].namespace,
        verdict=str(max_severity([finding for finding in found if finding.severity is not Severity.INFO])),
    )
    failed = [finding for finding in found if finding.severity is Severity.ERROR]
    if failed and all(finding.subject == RIGHTS for finding in failed):
        raise finding_error(failed[0])
    fail_on_errors(f"Job '{spec.name}'", found, is_strict=strict)


KUBECTL_SECONDS: Final = 10.0
TORCH_SECONDS: Final = 120.0
"""Timeout of importing torch, in seconds. The first import from a slow disk takes long."""
OLDEST_TORCH: Final = (2, 10)
"""Oldest recommended version. Earlier versions have CVE-2026-24747."""
LEAST_SHM: Final = 64 << 20

_PROBE: Final = (
    "import json, torch; print(json.dumps([torch.__version__, torch.cuda.is_available(), torch.cuda.device_count()]))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFacts:
    """Properties of this machine."""

    python: str
    """Python interpreter of local jobs."""
    kubectl: str
    """Version of kubectl; empty if not installed."""
    plugin: str
    """Path at which kubectl finds the plugin; empty if it is not on PATH."""
    completion: str
    torch: str
    """Version of torch, or the last line of the error of its import."""
    is_torch: bool
    gpus: int
    shm: int | None
    """Free bytes in /dev/shm."""
    jobs: str
    is_writable: bool


def inspect_client(python: str, environ: Mapping[str, str] = os.environ) -> ClientFacts:
    """Return the properties of this machine. torch is imported in a separate process."""
    is_torch, torch, gpus = _torch(python)
    jobs = local_jobs_directory(environ)
    return ClientFacts(
        python=python,
        kubectl=_kubectl_version(),
        plugin=shutil.which("kubectl-ddp") or "",
        completion=shutil.which("kubectl_complete-ddp") or "",
        torch=torch,
        is_torch=is_torch,
        gpus=gpus,
        shm=_free(FilePath(Path.SHARED_MEMORY)),
        jobs=str(jobs),
        is_writable=_is_writable(jobs),
    )


def run_checks(facts: ClientFacts) -> Iterator[Finding]:
    """Yield the results of all checks of this machine."""
    if facts.kubectl:
        yield ok(facts.kubectl, subject="kubectl")
    else:
        yield warning("not on PATH", "'kubectl-ddp' works without; 'kubectl ddp' needs it.", subject="kubectl")
    if not facts.plugin:
        yield warning("kubectl-ddp is not on PATH", "Put the folder it is installed in on PATH.", subject="plugin")
    elif not facts.completion:
        yield warning(facts.plugin, "kubectl_complete-ddp is not on PATH, so the tab key is dumb.", subject="plugin")
    else:
        yield ok(facts.plugin, subject="plugin")
    if sys.platform != "linux":
        yield ok(f"not on {sys.platform}: they need Linux", subject="local jobs")
        return
    yield _check_torch(facts)
    yield _check_shared_memory(facts)
    yield Finding(
        Severity.OK if facts.is_writable else Severity.ERROR,
        facts.jobs,
        "" if facts.is_writable else "Make it writable, or set XDG_STATE_HOME.",
        subject="local jobs",
    )


def _check_torch(facts: ClientFacts) -> Finding:
    if not facts.is_torch:
        fix = "Local jobs need it: pip install 'kubectl-ddp[trainer]'; on a cluster the image has it."
        return warning(f"{facts.python}: {facts.torch}", fix, subject="torch")
    found = f"{facts.torch}, {facts.gpus} GPUs ({facts.python})"
    numbers = [int(part) for part in facts.torch.split("+")[0].split(".")[:2] if part.isdigit()]
    if tuple(numbers) < OLDEST_TORCH:
        return warning(found, "Versions before 2.10 have CVE-2026-24747.", subject="torch")
    return ok(found, subject="torch")


def _check_shared_memory(facts: ClientFacts) -> Finding:
    if facts.shm is None:
        return warning("not there", "Data-loader workers and NCCL need it.", subject=Path.SHARED_MEMORY)
    free = f"{facts.shm / 2**20:.0f} MiB free"
    if facts.shm < LEAST_SHM:
        return warning(free, "Data-loader workers and NCCL want more: mount it larger.", subject=Path.SHARED_MEMORY)
    return ok(free, subject=Path.SHARED_MEMORY)


def _kubectl_version() -> str:
    path = shutil.which("kubectl")
    if path is None:
        return ""
    try:
        done = subprocess.run(
            [path, "version", "--client", "-o", "json"],
            capture_output=True,
            text=True,
            timeout=KUBECTL_SECONDS,
            check=False,
        )
        return f"{json.loads(done.stdout)['clientVersion']['gitVersion']} ({path})"
    except (OSError, ValueError, KeyError, subprocess.TimeoutExpired):
        return f"{path}, version unknown"


def _torch(python: str) -> tuple[bool, str, int]:
    """Return if torch can be imported, its version or the error, and the number of visible GPUs."""
    try:
        done = subprocess.run(
            [python, "-c", _PROBE], capture_output=True, text=True, timeout=TORCH_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return False, f"its import takes more than {TORCH_SECONDS:.0f} s", 0
    except OSError as error:
        return False, str(error.strerror), 0
    try:
        version, _, gpus = json.loads(done.stdout.splitlines()[-1])
        return True, str(version), int(gpus)
    except (ValueError, IndexError):
        lines = done.stderr.strip().splitlines()
        return False, lines[-1] if lines else f"it ended with code {done.returncode} and no word", 0


def _free(path: FilePath) -> int | None:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def _is_writable(path: FilePath) -> bool:
    """Return whether jobs can be created in a directory, which may not exist yet."""
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


@click.command(cls=GroupedHelpCommand)
@click.option("--strict", is_flag=True, help="Fail on warnings as well.")
@shared_options("json", "yaml")
def doctor(options: Options, *, strict: bool) -> None:
    """Check this machine and the cluster: versions, APIs, operators, features, rights, policies, torch.

    Creates nothing but access reviews; features are detected by dry runs of a Job. If rights are missing, the Role to
    request follows the table; with -q, stdout has the Role alone. With --local, only this machine is checked. Exit code
    4 means that a check failed.
    """
    found = list(run_checks(inspect_client(os.environ.get("KUBECTL_DDP_PYTHON") or sys.executable)))
    roles: list[Object] = []
    if not options.local:
        cluster_findings, roles = (
            _cluster(options) if options.names_a_cluster or has_kubeconfig() else ([_no_cluster()], [])
        )
        found += cluster_findings
    if options.quiet and options.output is None:  # on stdout is the Role alone
        failures = [finding for finding in found if finding.severity in {Severity.ERROR, Severity.WARNING}]
        click.echo(findings_text(failures, Style()), err=True)
    else:
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
