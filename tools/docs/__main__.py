"""``python -m tools.docs``: write again everything that is generated from code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from kubectl_ddp.spec.fields import SCHEMA_FILE, schema_text
from tools import dashboards
from tools.docs import (
    alerts,
    cli,
    client_keys,
    ddpjob_crd,
    engines,
    examples,
    fabrics,
    job_chart,
    job_file,
    launchers,
    metrics,
    platform_roles,
    preset_keys,
    rbac,
    trainer_options,
    training_runtimes,
    values_table,
)
from tools.docs.tables import with_tables

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
CHARTS: Final = ROOT / "charts"
PLATFORM: Final = CHARTS / "ddp-platform"
DASHBOARDS: Final = PLATFORM / "files" / "dashboards"
CLIENT_KEYS: Final = ROOT / "kubectl_plugin" / "kubectl_ddp" / "client" / "job_keys.py"
DEFINITION: Final = PLATFORM / "files" / "ddpjob-crd.yaml"
PRESET_KEYS: Final = PLATFORM / "files" / "presets.json"
FABRICS: Final = DOCS / "fabrics"
EXAMPLES: Final = ROOT / "manifests" / "examples"

Lines = Callable[[], Iterable[str]]

PAGES: Final[Mapping[Path, Lines]] = {
    DOCS / "cli.md": cli.lines,
    DOCS / "fabrics.md": fabrics.lines,
    DOCS / "rbac.md": rbac.lines,
    DOCS / "trainer-options.md": trainer_options.lines,
    PLATFORM / "files" / "roles.yaml": platform_roles.lines,
}
"""Files that are written whole."""
TABLES: Final[Mapping[Path, Lines]] = {DOCS / "job-file.md": job_file.lines, DOCS / "metrics.md": metrics.lines}
"""Pages with tables at their end."""


def files() -> Iterator[tuple[Path, str]]:
    """Yield path and text of each generated file. A text may depend on files before it."""
    yield engines.PAGE, engines.text()
    yield from job_chart.files().items()
    yield from launchers.files().items()
    yield from alerts.files().items()
    for path, lines in PAGES.items():
        yield path, "\n".join(lines()) + "\n"
    for name, page in fabrics.render_profiles().items():
        yield FABRICS / f"{name}.md", page
    for path, lines in TABLES.items():
        yield path, with_tables(path.read_text(encoding="utf-8"), lines())
    yield DOCS / SCHEMA_FILE, schema_text()
    yield DEFINITION, ddpjob_crd.text()
    yield from training_runtimes.files(PLATFORM / "files").items()
    yield PRESET_KEYS, preset_keys.text()
    yield CLIENT_KEYS, client_keys.module_text()
    for name, text in dashboards.files().items():
        yield DASHBOARDS / name, text
    yield PLATFORM / "README.md", values_table.render_readme(PLATFORM)
    yield from examples.files(EXAMPLES)


def stale_files() -> set[Path]:
    """Return the files that are left of an earlier version, in folders that hold generated files only."""
    return {*DASHBOARDS.glob("*.json"), *EXAMPLES.glob("*/*.yaml"), *FABRICS.glob("*.md")} - {
        path for path, _ in files()
    }


def main() -> None:
    """Write the files, and remove those that are left of an earlier version."""
    for path, text in files():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for path in stale_files():
        path.unlink()


if __name__ == "__main__":
    main()
