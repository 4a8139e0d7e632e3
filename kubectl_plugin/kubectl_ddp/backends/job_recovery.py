"""Recovery of a submitted job's specification and code, to create the job again."""

from __future__ import annotations

from typing import Final

from ddp_trainer.common.constants import GROUP
from kubectl_ddp.backends.base import Backend
from kubectl_ddp.code.archive import Code, read_back
from kubectl_ddp.errors import UsageError
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.spec.serialization import spec_from_dict
from kubectl_ddp.values.program import Script

RUN: Final = f"{GROUP}/restart-run"
"""Annotation with the id of the new run, on the record of a restart. A label would make the record a part of the
run.
"""


def run_of(record: Object) -> str | None:
    """Return the run id in a restart's record; ``None`` for any other object."""
    run: str | None = (record["metadata"].get("annotations") or {}).get(RUN)
    return run


def recover_spec(job: Object) -> JobSpec:
    """Return the job's specification as submitted. Raises UsageError if the job has none."""
    document = job_kinds.submitted_spec(job)
    if not document:
        raise UsageError(
            f"Job '{job['metadata']['name']}' does not contain the specification that it was submitted with.",
            hint="Submit its script or job file.",
        )
    return spec_from_dict(document)


def code_of(backend: Backend, spec: JobSpec) -> Code | None:
    """Return the code of a job. Raises UsageError if the code is missing."""
    found = backend.code(spec.name)
    code = read_back(found)
    if code is not None and not all(code.hash in item["metadata"]["name"] for item in found):
        code = None  # a part is missing
    is_sent = isinstance(spec.program, Script) and spec.code_claim is None and backend.where != "local"
    is_needed = spec.code is not None or is_sent
    if is_needed and code is None:
        raise UsageError(f"The code of job '{spec.name}' is gone.", hint="Submit it again from where its script lies.")
    return code if is_needed else None
