"""Presets that a namespace shares, as tests of the job's chart see them: sound ones, and ones that cannot be read.

A cluster alone has such, and tests of charts ask none. So a copy of the chart reads them from a file, where the chart
looks the ConfigMap up; all else of the copy is the chart's.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

from tests.support.helm import CHARTS

SOUND: Final[Mapping[str, str]] = {
    "machine": """\
summary: All of a machine.
settings:
  gpus: {value: 8, reason: it has eight, source: https://wiki.example.com/machine}
  cpu: {value: 88, reason: "96 cores, less the system's"}
  memory: {value: 900Gi, reason: "1 TiB, less the system's"}
  nodeSelector.example.com/pool: {value: large, reason: so they are labelled}
  tolerations: {value: ["dedicated=training:NoSchedule"], reason: nobody else runs there}
""",
    "small": """\
settings:
  cpu: {value: 500m, reason: it is enough}
  grace: {value: 45s, reason: small state}
  maxRestarts: {value: 3, reason: it is cheap}
  env.OMP_NUM_THREADS: {value: "1", reason: half a core}
  env.A: {value: "<of the preset>", reason: so}
  secretEnv.Z: {value: "hub:token", reason: everybody reads from the hub}
  mounts: {value: ["pvc=corpus:/corpus:ro"], reason: what all of them read}
""",
    "nothing": "{summary: Nothing., settings: {}}",
}
UNREADABLE: Final[Mapping[str, str]] = {
    "list": "- cpu\n- memory\n",
    "word": "cpu",
    "broken": "settings: [",
    "bare": "settings: [cpu]",
    "misspelt": "settings: {gpu: {value: 8}}",
    "whole-map": "settings: {env: {value: a}}",
    "no-map": "settings: {cpu.a: {value: 1}}",
    "own": "settings: {name: {value: a}}",
    "short": "settings: {cpu: 4}",
    "empty": "settings: {cpu: {reason: so}}",
}
SHARED: Final[Mapping[str, str]] = {**SOUND, **UNREADABLE}
LOOKED_UP: Final = "_namespace.tpl"
"""The template in which the chart asks the cluster."""
READ: Final = """\
{{- define "ddp-job.namespacePresets" -}}
{{- .root.Files.Get "files/shared.yaml" | fromYaml | toJson -}}
{{- end -}}
"""


def chart_that_knows_them(folder: Path) -> Path:
    """A copy of the job's chart, in a namespace that shares these."""
    copy = folder / "ddp-job"
    shutil.copytree(CHARTS / "ddp-job", copy)
    (copy / "templates" / LOOKED_UP).write_text(READ)
    (copy / "files" / "shared.yaml").write_text(yaml.safe_dump(dict(SHARED)))
    return copy
