"""Every command in the documents works: blocks marked ``console`` are typed into a shell, in order, one shell each."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.support import fork_server_defaults
from tests.support.programs import captured

ROOT = Path(__file__).resolve().parents[2]
PLACES = (".", "docs", "docs/*", "manifests", "manifests/*", "charts/*")
DOCUMENTS = sorted(path for place in PLACES for path in ROOT.glob(f"{place}/*.md"))
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def blocks(language: str, word: str) -> list[ParameterSet]:
    """Fenced blocks of a language whose info string has exactly this second word; of equal commands the first block."""
    found: dict[str, ParameterSet] = {}
    for path in DOCUMENTS:
        for match in FENCE.finditer(path.read_text()):
            if match[1] == language and match[2].strip() == word:
                line = path.read_text()[: match.start()].count(chr(10)) + 1
                same = typed(match[3]) if language == "console" else match[3]
                found.setdefault(same, pytest.param(match[3], id=f"{path.name}:{line}"))
    return list(found.values())


def typed(block: str) -> str:
    commands = [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]
    assert commands, block
    return "set -eu\n" + "\n".join(commands)


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """A directory with what the documents presume: the manifests, a train.py, the example task, the example script."""
    shutil.copytree(ROOT / "manifests", tmp_path / "manifests")
    (tmp_path / "charts").symlink_to(ROOT / "charts")  # the base has the dashboards of the chart
    shutil.copy(ROOT / "tests/docs/train.py", tmp_path)
    [task] = [match[3] for match in FENCE.finditer((ROOT / "docs/trainer.md").read_text()) if "class Xor" in match[3]]
    (tmp_path / "xor.py").write_text(task)
    scripts = FENCE.finditer((ROOT / "docs/howto/own-numbers.md").read_text())
    (tmp_path / "reporting.py").write_text(next(match[3] for match in scripts if match[1] == "python"))
    fork_server_defaults.configure(tmp_path / "config")
    return tmp_path


def bounded(command: list[str], desk: Path, more: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command at the desk for at most 240 s, without input, and with its state and configuration there."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    own = {"XDG_STATE_HOME": str(desk / "state"), "XDG_CONFIG_HOME": str(desk / "config"), "OMP_NUM_THREADS": "1"}
    env = os.environ | {"PATH": path, **own, **more}
    return captured(command, cwd=desk, env=env, input="", timeout=240)


def run(block: str, desk: Path, **more: str) -> None:
    done = bounded(["bash", "-c", typed(block)], desk, more)
    bounded(["kubectl-ddp", "delete", "--local", "--all", "--yes"], desk, {})
    assert done.returncode == 0, f"{block}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


@pytest.mark.parametrize("block", blocks("console", ""))
def test_a_command_in_a_document_works_on_this_machine(block: str, desk: Path) -> None:
    run(block, desk, KUBECONFIG=os.devnull)


@pytest.mark.parametrize("block", blocks("python", ""))
def test_python_in_a_document_runs(block: str, desk: Path) -> None:
    (desk / "block.py").write_text(block)  # a function that is sent with a job needs a file
    done = bounded([sys.executable, "block.py"], desk, {"KUBECONFIG": os.devnull})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_link_in_a_document_leads_somewhere(path: Path) -> None:
    targets = [link for link in LINK.findall(path.read_text()) if "://" not in link[0]]
    assert [link for link in targets if not leads_somewhere(path, *link)] == []


def leads_somewhere(path: Path, target: str, anchor: str) -> bool:
    file = path.parent / target if target else path
    return file.exists() and (not anchor or anchor in anchors(file))


def anchors(file: Path) -> set[str]:
    """Return the anchors of its headings, as GitHub generates them."""
    return {re.sub(r"[^\w\- ]", "", found.lower()).replace(" ", "-") for found in HEADING.findall(file.read_text())}
