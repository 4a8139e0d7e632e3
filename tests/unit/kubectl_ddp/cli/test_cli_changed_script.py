"""A job of this machine reads its script in place: a command that starts it again names one that was edited."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ddp_trainer.common.constants import Annotation
from kubectl_ddp.cli.internal.command import Options
from kubectl_ddp.cli.internal.job_lookup import warn_of_changed_script
from tests.support.kube_objects import CREATED_EPOCH, job


@pytest.mark.parametrize(
    ("written", "spec", "warns"),
    [(-60.0, {}, False), (0.5, {}, False), (60.0, {}, True), (60.0, {"code": "."}, False), (None, {}, False)],
    ids=["before", "in the second of the submission", "edited", "a copy was kept", "gone"],
)
def test_a_script_that_was_edited_since_the_submission_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], written: float | None, spec: dict[str, str], *, warns: bool
) -> None:
    script = tmp_path / "train.py"
    if written is not None:
        script.write_text("print()\n")
        os.utime(script, (CREATED_EPOCH + written, CREATED_EPOCH + written))
    annotations = {Annotation.SPEC: json.dumps({"script": str(script), **spec})}
    warn_of_changed_script(Options(), job("Failed", metadata={"annotations": annotations}))
    assert ("train.py' has changed since job digits was submitted" in capsys.readouterr().err) is warns
