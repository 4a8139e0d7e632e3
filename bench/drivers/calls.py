"""Timed calls of commands as from a shell: wall time, processor time and memory of one process each.

A small process starts each command. The reported peak memory includes that of the parent at the start, and a
measurement that has just created ten thousand pods has more than a command may use.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.harness import CannotMeasure

BYTE_CODE: Final = Path(tempfile.gettempdir()) / f"ddp-bench-{os.getuid()}-byte-code"
"""Directory for Python's byte code. Installed programs have one; here byte code may be switched off."""

METER: Final = """
import json, os, sys, time
out, *command = sys.argv[1:]
begun = time.perf_counter()
process = os.posix_spawnp(command[0], command, os.environ)
_, status, used = os.wait4(process, 0)
usage = {"seconds": time.perf_counter() - begun, "computed": used.ru_utime + used.ru_stime}
usage |= {"memory": used.ru_maxrss * 1024, "code": os.waitstatus_to_exitcode(status)}
os.write(int(out), json.dumps(usage).encode())
"""


@dataclass
class Call:
    """One command, and what its runs took."""

    command: Sequence[str]
    check: Callable[[bytes], bool] = lambda _: True
    """Returns whether the output is correct."""
    computed: list[float] = field(default_factory=list)
    """Seconds of processors, per run."""
    memory: list[float] = field(default_factory=list)
    """Bytes at most, per run."""

    def __call__(self) -> float:
        """Run it once; returns the seconds it took. Raises CannotMeasure when it fails, or prints no answer."""
        reader, writer = os.pipe()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, os.fdopen(reader, "rb") as meter:
            words = [sys.executable, "-I", "-S", "-c", METER, str(writer), *self.command]
            try:
                subprocess.run(
                    words,
                    stdout=out,
                    stderr=err,
                    stdin=subprocess.DEVNULL,
                    env=_child_env(),
                    pass_fds=[writer],
                    check=True,
                )
            finally:
                os.close(writer)
            measured = json.loads(meter.read())
            out.seek(0)
            err.seek(0)
            output, complained = out.read(), err.read()
        if measured["code"] != 0 or not self.check(output):
            problem = (complained or output[:500]).decode(errors="replace")
            raise CannotMeasure(f"{' '.join(self.command)} exited with {measured['code']}: {problem}")
        self.computed.append(measured["computed"])
        self.memory.append(measured["memory"])
        return float(measured["seconds"])

    def clear(self) -> None:
        """Discard the measured calls."""
        self.computed.clear()
        self.memory.clear()


def _child_env() -> dict[str, str]:
    """Ours, with byte code: to compile a program takes as long as all that it does."""
    return {**os.environ, "PYTHONPYCACHEPREFIX": str(BYTE_CODE)}
