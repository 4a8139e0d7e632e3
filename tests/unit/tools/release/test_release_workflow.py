"""The workflow for hosted CI runs what ``.ci/run`` runs anywhere else, and that calls verbs that there are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

ROOT: Final = Path(__file__).parents[4]
WORKFLOWS: Final = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))
KEYS: Final = {
    "workflow": {"name", "on", "permissions", "concurrency", "jobs"},
    "job": {"name", "runs-on", "timeout-minutes", "steps"},
    "step": {"uses", "with", "run", "env"},
}
"""What we use of GitHub's, so that a misspelt word is not passed over."""
PINNED: Final = re.compile(r"[\w./-]+@[0-9a-f]{40}")


def read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.load(path.read_text(), yaml.BaseLoader)
    return document


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_the_one_command_and_may_only_read(path: Path) -> None:
    workflow = read(path)
    assert workflow.keys() <= KEYS["workflow"]
    assert workflow["permissions"] == {"contents": "read"}
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert [step["run"] for step in steps if "run" in step] == ["bash .ci/run"]
    assert all(PINNED.fullmatch(step["uses"]) for step in steps if "uses" in step)
    for job in workflow["jobs"].values():
        assert job.keys() <= KEYS["job"]
        assert int(job["timeout-minutes"]) > 60, "the whole of CI may take an hour"
    assert [step for step in steps if not step.keys() <= KEYS["step"] or ("run" in step) == ("uses" in step)] == []


def test_what_ci_runs_are_verbs_of_the_makefile() -> None:
    verbs = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = re.sub(r"#.*", "", (ROOT / ".ci/run").read_text())
    called = re.findall(r"\bmake((?: (?:--no-print-directory|[a-z-]+)(?![\w/.]))+)", commands)
    named = {word for words in called for word in words.split() if not word.startswith("--")}
    assert {"lint", "demo", "test-unit", "test-processes", "checkov", "release-check"} <= named
    assert named - verbs == set()
