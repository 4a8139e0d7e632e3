"""Start time of help and completion: they import no large module."""

from __future__ import annotations

import json
import os
import sys

import pytest

from tests.support.programs import captured

HEAVY = ("kubernetes", "jinja2", "yaml", "prometheus_client", "torch", "urllib3", "importlib.metadata")
PROBE = """
import json, sys
sys.argv = ["kubectl-ddp", *json.loads(sys.argv[1])]
from {module} import main
try:
    code = main()
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
sys.exit(code)
"""


def imported(module: str, *arguments: str) -> set[str]:
    """Return the modules that a call imports, in a separate interpreter and without a cluster."""
    command = [sys.executable, "-c", PROBE.format(module=module), json.dumps(arguments)]
    environment = os.environ | {"KUBECONFIG": os.devnull}
    done = captured(command, check=True, env=environment)
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_the_entry_point_imports_nothing_while_ctrl_c_is_not_ours_yet() -> None:
    probe = "import sys; before = set(sys.modules); import kubectl_ddp.__main__; print(*set(sys.modules) - before)"
    done = captured([sys.executable, "-c", probe], check=True)
    assert set(done.stdout.split()) <= {"__future__", "kubectl_ddp", "kubectl_ddp.__main__"}


@pytest.mark.parametrize(
    "arguments", [["--help"], [], ["submit", "--help"], ["explain", "nnodes"], ["completion", "bash"]], ids=" ".join
)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    assert not imported("kubectl_ddp.__main__", *arguments) & set(HEAVY)


@pytest.mark.parametrize(
    "words",
    [[""], ["sub"], ["submit", "--"], ["submit", "-o", ""], ["render", "--preset", ""], ["explain", ""]],
    ids=" ".join,
)
def test_completion_imports_nothing_heavy(words: list[str]) -> None:
    assert not imported("kubectl_ddp.cli.complete", *words) & set(HEAVY)
