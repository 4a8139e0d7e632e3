"""Commands in blocks marked ``sh``, which no test types: they need a registry, kind, or machines with GPUs.

What can be known of them without those is looked at: that a shell reads them, that files, verbs and commands are there,
and that the values which they give to a chart are such.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from kubectl_ddp.cli.registry import COMMANDS
from tests.docs.test_documents import ROOT, blocks
from tests.render.platform_values import KUEUE, PROMETHEUS
from tests.support.helm import KUBERNETES, Helm, objects_of
from tests.support.programs import captured

OURS: Final = re.compile(r"(?:charts|manifests|locks|docs)/[\w./-]+")
BLOCKS: Final = blocks("sh", "")
SERVES: Final = (*KUEUE, *PROMETHEUS)


def commands(block: str) -> Iterator[list[str]]:
    """Each command as its words."""
    for line in block.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield words


@pytest.mark.parametrize("block", BLOCKS)
def test_a_shell_reads_it_and_what_it_names_is_there(block: str) -> None:
    done = captured(["bash", "-n"], input=block)
    assert (done.returncode, done.stderr) == (0, "")
    assert [path for path in OURS.findall(block) if not (ROOT / path).exists()] == []
    verbs = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for words in commands(block):
        if words[0] == "make":
            assert words[1] in verbs
        if words[:2] == ["kubectl", "ddp"] or words[0] == "kubectl-ddp":
            assert words[1 if words[0] == "kubectl-ddp" else 2] in COMMANDS


READERS_OWN: Final = "values.yaml"
INSTALLED: Final = [
    pytest.param(words, id=f"{block.id} {words[2]}")
    for block in BLOCKS
    for words in commands(str(block.values[0]))
    if words[:2] == ["helm", "install"]
]


@pytest.mark.parametrize("words", INSTALLED)
def test_a_chart_takes_the_values_that_an_installation_gives_it(
    each_helm: Helm, words: list[str], tmp_path: Path
) -> None:
    release, chart, *rest = words[2:]
    written = ROOT / chart / "ci" / "digits-values.yaml"  # values that a command before it has written
    (tmp_path / READERS_OWN).write_text(written.read_text() if written.exists() else "")
    flags = [_found(word, tmp_path) for word in rest if word != "--create-namespace"]
    requests = [f"--kube-version={KUBERNETES}", *(f"--api-versions={serve}" for serve in SERVES)]
    path = ROOT / Path(chart)
    assert objects_of(each_helm.run("template", release, str(path), *flags, *requests).ok().out)


def _found(word: str, reader: Path) -> str:
    """The word, and where it names a file its path from anywhere."""
    place = reader if word == READERS_OWN else ROOT
    return str(place / word) if (place / word).is_file() else word
