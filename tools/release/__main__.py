"""``python -m tools.release``: locks, checks and bills of materials, each a verb of the Makefile."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tools.release import artifacts, locks, plugin_archive, registry, sbom, shared_dashboards, versions, wheel_test
from tools.release.errors import CannotRelease
from tools.release.project import CHARTS, DIST, ROOT, version


def main(arguments: list[str]) -> int:
    """Run one verb; 1 where something stands in the way of a release."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.release", description="What is done before a version is published."
    )
    parser.add_argument("verb", choices=VERBS)
    verb = VERBS[parser.parse_args(arguments).verb]
    try:
        for line in verb():
            print(line, flush=True)
    except CannotRelease as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def lock() -> Iterator[str]:
    """Write ``locks/`` again."""
    yield from locks.write(_venv_program("uv"), os.environ.get("TORCH_INDEX"))


def check() -> Iterator[str]:
    """All that can be wrong with a release, the cheapest first; what passes is left in ``dist``."""
    found = [*versions.find_version_mismatches(), *versions.check_release_tag(), *versions.check_image_digest()]
    if found:
        raise CannotRelease("\n".join(found))
    yield f"holds: version {version()} wherever it stands"
    with tempfile.TemporaryDirectory(prefix="ddp-release-") as room:
        files = artifacts.build_release(Path(room), _helm())
        yield f"holds: built twice, the same bytes, and the wheel of the source archive too: {', '.join(files)}"
        [wheel] = [path for name, path in files.items() if name.endswith(".whl")]
        python = wheel_test.install(wheel, Path(room, "fresh"))
        wheel_test.check_commands(python)
        yield "holds: installed from locks/plugin.txt by digest, without torch, it prints its version"
        archive, manifest = plugin_archive.build_archive(python, Path(room))
        plugin_archive.check_archive(archive, Path(room, "krew"))
        yield f"holds: {archive.name}, as krew unpacks it, prints its version and a job in a dry run"
        yield from registry.push_charts([path for name, path in files.items() if name.endswith(".tgz")], _helm())
        dashboards = shared_dashboards.write(Path(room))
        files |= {path.name: path for path in (archive, manifest, *dashboards)}
        _write_dist(files)
    yield f"{DIST.name}/: {', '.join(sorted(path.name for path in DIST.iterdir()))}"


def write_charts() -> Iterator[str]:
    """Write archives of the charts as git tracks them into ``dist``; yield lines as of ``sha256sum``."""
    with tempfile.TemporaryDirectory(prefix="ddp-charts-") as room:
        source = artifacts.copy_tracked_files(Path(room, "source"), artifacts.commit_time())
        if (helm := _helm()) is None:
            raise CannotRelease("There is no chart.")
        artifacts.package_charts(source, Path(room, "dist"), helm)
        DIST.mkdir(exist_ok=True)
        made = {path.name: Path(shutil.copy2(path, DIST)) for path in Path(room, "dist").iterdir()}
    yield artifacts.checksum_lines(made).rstrip()


def write_sboms() -> Iterator[str]:
    """Bills of materials, into ``dist``."""
    DIST.mkdir(exist_ok=True)
    wheels = sorted(DIST.glob(f"*-{version()}-*.whl"))
    if not wheels:
        raise CannotRelease(f"dist/ has no wheel of {version()}; `make release-check` builds it.")
    with tempfile.TemporaryDirectory(prefix="ddp-release-") as room:
        python = wheel_test.install(wheels[-1], Path(room, "fresh"))
        made = [sbom.of_the_installed(_venv_program("cyclonedx-py"), python, DIST)]
    made += sbom.of_the_images(_venv_program("cyclonedx-py"), DIST)
    yield from (str(path.relative_to(ROOT)) for path in made)


def write_manifests() -> Iterator[str]:
    """``manifests/`` again, from the chart."""
    from tools.release import manifests  # noqa: PLC0415 - reads YAML, which the environment of the other verbs does without

    yield from manifests.write(_program("helm"))


VERBS = {"lock": lock, "manifests": write_manifests, "check": check, "charts": write_charts, "sbom": write_sboms}


def _venv_program(program: str) -> Path:
    """A program of the environment that runs this."""
    path = Path(sys.executable).with_name(program)
    if not path.exists():
        raise CannotRelease(f"{path} is not there; `make` sets it up from locks/release.txt.")
    return path


def _program(name: str) -> str:
    """A program of this machine, or of ``make tools``."""
    found = shutil.which(name) or shutil.which(name, path=str(ROOT / "build" / "tools"))
    if found is None:
        raise CannotRelease(f"{name} is not installed; install it, or run `make tools`.")
    return found


def _helm() -> str | None:
    """Helm, if there are charts to pack."""
    if not list(CHARTS.glob("*/Chart.yaml")):
        return None
    tools = str(ROOT / "build" / "tools")
    found = (shutil.which("helm"), shutil.which("helm", path=tools))
    return artifacts.find_reproducible_helm(Path(path) for path in found if path)


def _write_dist(files: dict[str, Path]) -> None:
    """Put the artefacts and their digests into ``dist``, and nothing else."""
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    for name, path in files.items():
        shutil.copy2(path, DIST / name)
    (DIST / "SHA256SUMS").write_text(artifacts.checksum_lines(files), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
