"""Command ``kubectl ddp lint``."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from kubectl_ddp.cli.internal.command import Options, shared_options
from kubectl_ddp.cli.internal.job_options import JobRequest, ProgramCommand, job_options, prepare, print_notes
from kubectl_ddp.cli.internal.output import fail_on_errors, print_findings
from kubectl_ddp.errors import UsageError

if TYPE_CHECKING:
    from kubectl_ddp.client.submission.prepared_job import Prepared
    from kubectl_ddp.spec.job_file import JobFile
    from kubectl_ddp.util.finding import Finding

MANIFESTS: Final = (".yaml", ".yml", ".json")
LARGEST_BYTES: Final = 64 * 2**20
"""Maximum size of a manifest in bytes. A namespace as printed by kubectl fits."""
_WITH_RUNTIME: Final = "Put the runtime into the file, as 'kubectl get clustertrainingruntime NAME -o yaml' prints it."


@dataclass(frozen=True, slots=True)
class LintResult:
    """Findings about one input."""

    name: str
    found: Sequence[Finding]
    unseen: Sequence[str]
    """Names of variables whose value is in the cluster and unknown."""


@click.command(cls=ProgramCommand)
@click.option("--strict", is_flag=True, help="Fail on warnings as well.")
@click.option(
    "--ignore", "ignored", metavar="RULES", default="", help="Rules to skip, separated by commas, as in N03,K10."
)
@job_options
@shared_options("json")
def lint(options: Options, request: JobRequest, *, strict: bool, ignored: str) -> None:
    """Find likely mistakes in a job or in any manifest, without contacting a cluster.

    Takes what submit takes, and checks the variables for NCCL and torch and the pods that submit would create. Or takes
    any manifest (.yaml, .yml, .json, or '-'), and checks its pods: PyTorchJob, JobSet, Job, Pod and others. When a
    submitted job starts, its launcher applies the rules about variables again, and those that need the node.
    """
    from kubectl_ddp.lint.registry import unknown_ids  # noqa: PLC0415 - not needed for help and completion

    if unknown := unknown_ids(ignored):
        raise UsageError(
            f"--ignore: '{unknown[0]}' is not a rule.",
            hint="Rules are listed in docs/lint.md and lint-pods.md.",
        )
    looked = _lint_request(options, request, ignored)
    if looked.unseen:
        kept = ", ".join(dict.fromkeys(looked.unseen))
        options.print_message(f"warning: The values of {kept} are kept in the cluster, and were not looked at.")
    counts = Counter(finding.severity for finding in looked.found)
    print_findings(options, "Lint", looked.found, job=looked.name, counts={str(each): counts[each] for each in counts})
    if not looked.found:
        options.print_message("Nothing is doubtful.")
    fail_on_errors(looked.name, looked.found, is_strict=strict)


def _lint_request(options: Options, request: JobRequest, ignored: str) -> LintResult:
    """Check the script, job file or manifest. Raises UsageError for other files, NotFound for a missing file."""
    script = request.script
    names_a_file = script is not None and (script == "-" or script.endswith(MANIFESTS))
    path = request.file or (script if names_a_file else None)
    if path is None:
        if script is not None:
            _check_is_python(script)
        return _of_job(options, request, ignored)
    from kubectl_ddp.lint.manifests import is_job_file, parse_manifest  # noqa: PLC0415 - imports yaml
    from kubectl_ddp.spec.job_file import open_file  # noqa: PLC0415

    file = open_file(str(path), "file", LARGEST_BYTES)
    objects = parse_manifest(file.name, file.text)
    if not is_job_file(objects):
        _reject_flags(request, file)
        return _lint_manifest(file.name, objects, ignored)
    return _of_job(options, dataclasses.replace(request, file=file, script=script if request.file else None), ignored)


def _check_is_python(path: str) -> None:
    """Check that the launcher can start the file. ``submit`` does not check this, so a wrong file fails in the pod."""
    from kubectl_ddp.code.script import check_script  # noqa: PLC0415 - not needed for help and completion

    check_script(path)
    with Path(path).open("rb") as file:
        first = file.readline(200)
    if not path.endswith(".py") and not (first.startswith(b"#!") and b"python" in first):
        raise UsageError(
            f"'{path}' is neither a Python script nor a manifest.",
            hint=f"lint reads scripts (.py), job files and manifests ({', '.join(MANIFESTS)}).",
        )


def _reject_flags(request: JobRequest, file: JobFile) -> None:
    if (
        request.flags
        or request.assignments
        or request.shorthand
        or request.words
        or request.script not in {None, file.name, "-"}
    ):
        raise UsageError(f"{file.name} is a manifest, to which the flags of a job add nothing.", hint="Leave them out.")


def _lint_manifest(name: str, objects: Sequence[dict[str, Any]], ignored: str) -> LintResult:
    from kubectl_ddp.lint.manifests import find_workloads, unknown_kinds, without_pods  # noqa: PLC0415
    from kubectl_ddp.lint.registry import check  # noqa: PLC0415 - not needed for help and completion
    from kubectl_ddp.util.finding import warning  # noqa: PLC0415

    if unknown := unknown_kinds(objects):
        raise UsageError(
            f"{name} has a {unknown[0]}, whose pods lint does not know how to find.",
            hint="Lint a Pod with the same containers, or leave the object out.",
        )
    makers = find_workloads(objects)
    lonely = [
        warning(
            f"The pods of {each} are in its runtime, which is not in {name}, and were not looked at.", _WITH_RUNTIME
        )
        for each in without_pods(objects)
    ]
    if not makers:
        kinds = ", ".join(dict.fromkeys(str(each["kind"]) for each in objects))
        hint = _WITH_RUNTIME if lonely else "Name the manifest of the job."
        raise UsageError(f"{name} holds nothing that makes pods, only {kinds}.", hint=hint)
    unseen = [
        word for each in makers for pods in each.pods for one in pods.training_containers for word in one.unresolved_env
    ]
    return LintResult(name, [*lonely, *(placed for each in makers for placed in check(each, ignored))], unseen)


def _of_job(options: Options, request: JobRequest, ignored: str) -> LintResult:
    from ddp_trainer.common.constants import Env  # noqa: PLC0415 - not needed for help and completion
    from kubectl_ddp.client.submission.prepared_job import program_warnings  # noqa: PLC0415
    from kubectl_ddp.lint.registry import check_environment  # noqa: PLC0415
    from kubectl_ddp.render import Site  # noqa: PLC0415

    prepared = prepare(options, request, shown=True)
    spec = prepared.spec
    left_out = ",".join(filter(None, (ignored, spec.env.get(Env.LINT_IGNORE, ""))))
    found = check_environment(spec, left_out, is_one_machine=prepared.site is Site.LOCAL)
    unseen = [*spec.secret_env, *map(str, spec.env_from)]
    print_notes(prepared.resolved, options)
    doubts = program_warnings(spec)
    return LintResult(spec.name, [*doubts, *found, *of_pods(prepared, left_out)], unseen)


def of_pods(prepared: Prepared, ignored: str = "") -> list[Finding]:
    """Return the findings about the pods of a job; empty on this machine, which has no pods."""
    from kubectl_ddp.lint.manifests import find_workloads  # noqa: PLC0415
    from kubectl_ddp.lint.registry import check  # noqa: PLC0415 - not needed for help and completion
    from kubectl_ddp.render import Site  # noqa: PLC0415
    from kubectl_ddp.values.engine import Gang  # noqa: PLC0415

    if prepared.site is Site.LOCAL:
        return []
    # The cluster chooses the gang scheduler unless the job names one.
    left_out = f"{ignored},K19" if prepared.spec.gang is Gang.AUTO else ignored
    made = find_workloads(prepared.objects(prepared.placeholder))
    return [placed for each in made for placed in check(each, left_out, with_variables=False)]
