"""The command line ``kubectl-ddp`` in the process of a test."""

from __future__ import annotations

from collections.abc import Container

import pytest

from kubectl_ddp.cli.run import run


class CommandLine:
    """Runs a command, and returns what was printed since the last one."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str, code: int = 0) -> pytest.CaptureResult[str]:
        """Run a command that has to end with this exit code, and return its stdout and stderr."""
        found = run([*words])
        printed = self._capsys.readouterr()
        assert found == code, printed.err
        return printed

    def refused(self, *words: str, codes: Container[int] = (2,)) -> str:
        """Run a command that is refused, and return the one line of its error."""
        found = run([*words])
        printed = self._capsys.readouterr()
        assert found in codes, printed.err
        assert printed.out == ""
        assert printed.err.startswith("error: ")
        assert printed.err.count("\n") == 1
        return printed.err
