"""The workflows pin what they use, and run scripts and verbs that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

ROOT: Final = Path(__file__).parents[4]
WORKFLOWS: Final = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))
KEYS: Final = {
    "workflow": {"name", "on", "permissions", "concurrency", "env", "jobs"},
    "job": {"name", "needs", "runs-on", "timeout-minutes", "environment", "permissions", "strategy", "steps"},
    "step": {"id", "uses", "with", "run", "env"},
}
"""Keys of GitHub's workflows that are in use; any other key is a misspelling."""
VERBS: Final = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
PINNED: Final = re.compile(r"[\w./-]+@[0-9a-f]{40}")


def read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.load(path.read_text(), yaml.BaseLoader)
    return document


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_no_misspelt_word_and_pins_actions_by_digest(path: Path) -> None:
    workflow = read(path)
    assert workflow.keys() <= KEYS["workflow"]
    assert workflow["permissions"] == {"contents": "read"}
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert all(PINNED.fullmatch(step["uses"]) for step in steps if "uses" in step)
    assert [job for job in workflow["jobs"].values() if not job.keys() <= KEYS["job"]] == []
    assert [step for step in steps if not step.keys() <= KEYS["step"] or ("run" in step) == ("uses" in step)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_scripts_and_verbs_that_exist(path: Path) -> None:
    lines = [step["run"] for job in read(path)["jobs"].values() for step in job["steps"] if "run" in step]
    scripts = [found for line in lines for found in re.findall(r"^bash (\S+)", line)]
    assert [script for script in scripts if not (ROOT / script).is_file()] == []
    verbs = {verb for line in lines if line.startswith("make ") for verb in line.split()[1:]}
    assert {verb for verb in verbs if not verb.endswith("/.ready")} <= VERBS
    assert {program for line in lines for program in re.findall(r"build/release/bin/(\S+)", line)} <= {"uv"}


RELEASE: Final = read(ROOT / ".github/workflows/release.yaml")["jobs"]


def test_every_target_of_the_dockerfile_that_is_shipped_is_published() -> None:
    described = (ROOT / "Dockerfile").read_text().partition("FROM ")[0]
    targets = RELEASE["images"]["strategy"]["matrix"]["target"]
    assert sorted(targets) == sorted(re.findall(r"docker build --target (\w+)", described))
    cases = re.findall(r"^  ([\w |]+)\) image=", (ROOT / ".ci/publish-image").read_text(), re.MULTILINE)
    assert sorted(" | ".join(cases).split(" | ")) == sorted(targets)


def test_what_ci_runs_are_verbs_of_the_makefile() -> None:
    commands = re.sub(r"#.*", "", (ROOT / ".ci/run").read_text())
    called = re.findall(r"\bmake((?: (?:--no-print-directory|[a-z-]+)(?![\w/.]))+)", commands)
    named = {word for words in called for word in words.split() if not word.startswith("--")}
    assert {"lint", "demo", "test-unit", "test-busy", "test-cluster-quiet", "checkov", "release-check"} <= named
    assert named - VERBS == set()
