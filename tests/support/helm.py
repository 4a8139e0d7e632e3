"""The real Helm, as tests of charts see it: whichever of Helm 3 and 4 the machine has, and what a chart renders to.

Programs are looked for on ``PATH``, as ``helm`` and ``helm3``, and then in ``build/tools``, where ``make tools`` puts
them.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.programs import captured

ROOT: Final = Path(__file__).parents[2]
CHARTS: Final = ROOT / "charts"
PLATFORM: Final = CHARTS / "ddp-platform"
TOOLS: Final = ROOT / "build" / "tools"
HOW: Final = "Install Helm 3.17 or newer, or run 'make tools'."
OLDEST: Final = (3, 17)
KUBERNETES: Final = "1.34.0"
"""The version that charts are rendered for; what Helm takes by itself depends on how it was built."""

Object = dict[str, Any]


@dataclass(frozen=True)
class Done:
    """Result of one call of a program."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its output, parsed."""
        return json.loads(self.out)

    def ok(self) -> Done:
        """Itself, where the call succeeded."""
        assert self.code == 0, f"exit code {self.code}\n{self.out}\n{self.err}"
        return self


@dataclass(frozen=True)
class Helm:
    """One Helm."""

    path: str
    version: tuple[int, int, int]

    @property
    def major(self) -> int:
        """3 or 4."""
        return self.version[0]

    def run(self, *words: str, stdin: str = "", environ: Mapping[str, str] | None = None, seconds: float = 120) -> Done:
        """Call it with ``words``; nothing of the caller's own Helm (plugins, repositories, variables) is seen."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HELM_")}
        nowhere = {f"HELM_{kind}_HOME": str(ROOT / "build" / "helm-home") for kind in ("CACHE", "CONFIG", "DATA")}
        done = captured([self.path, *words], input=stdin, timeout=seconds, env={**clean, **nowhere, **(environ or {})})
        return Done(done.returncode, done.stdout, done.stderr)

    def render(
        self,
        chart: Path,
        values: Mapping[str, Any] | None = None,
        *,
        release: str = "ddp",
        namespace: str = "ddp-system",
        serves: Sequence[str] = (),
        kubernetes: str = KUBERNETES,
        words: Sequence[str] = (),
    ) -> Done:
        """``helm template`` for a cluster that serves ``serves`` (``group/version`` or ``group/version/Kind``)."""
        requests = [f"--api-versions={serve}" for serve in serves]
        requests.append(f"--kube-version={kubernetes}")
        given = _as_yaml(values or {})
        return self.run(
            "template", release, str(chart), "--namespace", namespace, "--values", "-", *requests, *words, stdin=given
        )

    def template(self, chart: Path, values: Mapping[str, Any] | None = None, **how: Any) -> list[Object]:
        """The objects that the chart renders to with these values; ``how`` as in :meth:`render`."""
        return objects_of(self.render(chart, values, **how).ok().out)

    def notes(self, chart: Path, values: Mapping[str, Any], *, release: str, namespace: str = "default") -> str:
        """Return the notes of an installation with these values, as one line; Helm 3 needs a cluster for that."""
        words = ("install", release, str(chart), "--namespace", namespace, "--dry-run=client", "--values", "-")
        done = self.run(*words, stdin=_as_yaml(values), environ={"KUBECONFIG": "/nowhere"}).ok()
        return " ".join(done.out.partition("NOTES:")[2].split())

    def error_response(self, chart: Path, values: Mapping[str, Any] | None = None, **how: Any) -> str:
        """Return the error with which the chart refuses these values; ``how`` as in :meth:`render`."""
        done = self.render(chart, values, **how)
        assert done.code != 0, f"was rendered, and should have been refused: {values}\n{done.out[:2000]}"
        return done.err


def _as_yaml(values: Mapping[str, Any]) -> str:
    """JSON that YAML reads as the same: it knows no pairs of surrogates, and folds or refuses some bare letters."""
    text = json.dumps(values, ensure_ascii=False)
    return re.sub(r"[\x7f-\x9f\u2028\u2029\ufeff]", lambda letter: f"\\u{ord(letter[0]):04x}", text)


class _Strict(yaml.CSafeLoader):
    """YAML in which no key stands twice; what Helm prints may hold such, and a server that applies refuses it."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]  # type: ignore[no-untyped-call]
        twice = {key for key in keys if keys.count(key) > 1}
        assert not twice, f"{node.start_mark}: {sorted(twice)} twice"
        made: dict[Any, Any] = super().construct_mapping(node, deep)
        return made


def objects_of(text: str) -> list[Object]:
    """The objects of a YAML stream; documents that hold comments alone are left out."""
    return [item for item in yaml.load_all(text, _Strict) if item is not None]


def program(name: str) -> str | None:
    """Path of a program (``helm``, ``helm3``, ``kubectl``), wherever this machine has it."""
    return shutil.which(name) or shutil.which(name, path=str(TOOLS))


@functools.cache
def helms() -> Mapping[int, Helm]:
    """The Helms of this machine by their major version."""
    found: dict[int, Helm] = {}
    candidates = [path for name in ("helm", "helm3") for path in (shutil.which(name), str(TOOLS / name))]
    for path in candidates:
        if path is not None and Path(path).exists():
            helm = Helm(path, _version(path))
            if helm.version[:2] >= OLDEST:
                found.setdefault(helm.major, helm)
    return found


def _version(path: str) -> tuple[int, int, int]:
    result = captured([path, "version", "--short"], check=True, timeout=60).stdout
    found = re.match(r"v(\d+)\.(\d+)\.(\d+)", result)
    assert found, f"{path} version --short says {result!r}"
    return int(found[1]), int(found[2]), int(found[3])
