"""Every command on a real cluster, run on a machine without what only Linux has."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from kubectl_ddp.cli.registry import COMMANDS
from tests.cluster.live_cluster import PREFLIGHT, Namespace
from tests.support.foreign_platform import outcomes

SIZE: Final = ("--cpu", "100m", "--memory", "128Mi", "--shm", "16Mi", "--nproc", "1", "--nnodes", "1:2")
LOCAL: Final = frozenset({"version", "completion", "explain", "init", "presets"})
"""Commands that take no namespace."""
CODES: Final = {"port-forward": 2, "profile": 1, "dashboard": 3}
"""What fails on any platform: an unknown port, a program without steps, and no Grafana."""


@pytest.mark.timeout(300)
def test_every_command_works_without_what_only_linux_has(space: Namespace, tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text("import time\nprint('here', flush=True)\ntime.sleep(600)\n")
    job = ("run.py", "--name", "one", "--image", space.image, *SIZE)
    lines = [
        ["version"],
        ["completion", "bash"],
        ["explain", "nnodes"],
        ["init", "run.py", "--image", "example.com/a", "--nnodes", "1", "--gpus", "0"],
        ["presets"],
        ["config"],
        ["doctor"],
        ["capacity"],
        ["preflight", *job],
        ["render", *job],
        ["submit", *job],
        ["wait", "one", "--for=running", "--timeout", "2m"],
        ["wait", "one", "--for=world-size=2", "--timeout", "2m"],
        ["list"],
        ["status", "one"],
        ["why", "one"],
        ["hang", "one"],
        ["logs", "one"],
        ["events", "one"],
        ["top", "one"],
        ["history"],
        ["report", "one", "-o", "page.html"],
        ["dashboard", "one"],
        ["bundle", "one", "-O", "bundle.tar.gz"],
        ["exec", "one", "--", "true"],
        ["port-forward", "one", ":nowhere"],
        ["profile", "one"],
        ["scale", "one", "--nnodes", "1"],
        ["clone", "one", "--name", "two", "--dry-run=client"],
        ["restart", "one", "--yes"],
        ["suspend", "one"],
        ["resume", "one"],
        ["prune", "--dry-run"],
        ["delete", "one", "--yes"],
    ]
    assert {name for name, *_ in lines} == set(COMMANDS)
    of_cluster = [[name, *(("-n", space.name) if name not in LOCAL else ()), *rest] for name, *rest in lines]
    environ = {**os.environ, **PREFLIGHT, "HOME": str(space.home)}
    done = list(zip(lines, outcomes(of_cluster, environ, tmp_path), strict=True))
    wrong = [f"{words}: {code} {out} {err}" for words, (code, out, err) in done if code != CODES.get(words[0], 0)]
    assert wrong == []
    assert [words for words, (_, _, err) in done if "Something went wrong inside" in err] == []
