"""``python -m tools.scan CHECKOV`` scans all objects with checkov, found at that path."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import yaml

from tools.scan.objects import ROOT, load_objects
from tools.scan.skips import Failure, check_skips, read_skips
from tools.scan.unwrap import unwrap_pods

FOLDER: Final = ROOT / "build" / "scan"


def main(checkov: str) -> int:
    """Scan and print the failures; return 1 if there are any."""
    count = _write()
    report = _scan(checkov)
    failures = [_failure(check) for check in report["results"]["failed_checks"]]
    wrong = check_skips(failures, read_skips())
    for line in wrong:
        print(f"error: {line}", file=sys.stderr)
    passed = report["summary"]["passed"]
    print(f"{count} objects, {passed} checks passed, {len(failures)} skipped with a reason, {len(wrong)} wrong")
    return 1 if wrong or not passed else 0


def _write() -> int:
    """The objects of each source in a file of their own; returns how many there are."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    count = 0
    for name, objects in load_objects():
        items = list(unwrap_pods(objects))
        count += len(items)
        (FOLDER / f"{name}.yaml").write_text(yaml.safe_dump_all(items))
    return count


def _scan(checkov: str) -> dict[str, Any]:
    words = (
        "--directory",
        str(FOLDER),
        "--framework",
        "kubernetes",
        "--output",
        "json",
        "--compact",
        "--skip-download",
    )
    done = subprocess.run([checkov, *words], capture_output=True, text=True, check=False)
    try:
        report: dict[str, Any] = json.loads(done.stdout)
        errors = report["results"]["parsing_errors"]
    except (ValueError, LookupError, TypeError):
        raise SystemExit(f"error: checkov ended with {done.returncode}: {done.stderr[-2000:]}") from None
    if errors:
        raise SystemExit(f"error: checkov cannot read {', '.join(errors)}")
    return report


def _failure(check: dict[str, Any]) -> Failure:
    kind, _, name = check["resource"].split(".", 2)
    return Failure(check["check_id"], check["check_name"], f"{kind}/{name}", Path(check["file_path"]).stem)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
