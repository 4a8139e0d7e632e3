"""Run one check: ``python -m bench.gpu_checks.child LETTER --device D --file F --seconds N``.

Exit code 0 where the check came to its end, whatever it found; :mod:`bench.gpu_checks.check_runner` reads the file.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from bench.gpu_checks.check_report import Bench, CheckReport, NotSupported
from bench.gpu_checks.registry import check_of

MARGIN: Final = 0.9
"""Share of its limit after which a check should end by itself."""


def main(argv: list[str] | None = None) -> int:
    """Run the check."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_checks.child")
    parser.add_argument("letter")
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args(argv)
    if given.device == "cpu":
        os.environ["OMP_NUM_THREADS"] = "1"  # torch is not imported yet; on a busy machine threads wait for each other
    findings = CheckReport(file=given.file)
    deadline = time.monotonic() + MARGIN * given.seconds
    with tempfile.TemporaryDirectory(prefix="ddp-bench-gpu-", ignore_cleanup_errors=True) as name:
        bench = Bench(
            device=given.device, is_small=given.small, directory=Path(name), deadline=deadline, findings=findings
        )
        try:
            importlib.import_module(f"bench.gpu_checks.{check_of(given.letter).module}").run(bench)
        except NotSupported as reason:
            given.file.write_text(json.dumps(findings.as_dict() | {"reason": str(reason)}), encoding="utf-8")
        else:
            findings.save()
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # torch may abort a process that has used process groups while it ends, after all was found
