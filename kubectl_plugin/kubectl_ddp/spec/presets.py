"""Presets: sets of values for a kind of machine, each with a reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ddp_trainer.common import lint
from ddp_trainer.common.constants import Path
from kubectl_ddp.spec.job_key import Given, Layer, Origin, OriginKind
from kubectl_ddp.values.parsers import Raw


@dataclass(frozen=True, slots=True)
class Setting:
    """One value of a preset."""

    value: Raw
    reason: str
    source: str
    """Address of its documentation; empty if there is none."""


@dataclass(frozen=True, slots=True)
class Preset:
    """A named set of values."""

    name: str
    summary: str
    settings: Mapping[str, Setting]
    """Dotted key of the job file → setting."""

    def layer(self) -> Layer:
        """Return the preset's values as a source."""
        return {
            key: Given(setting.value, Origin(OriginKind.PRESET, self.name, setting.reason))
            for key, setting in self.settings.items()
        }


_FLIGHT_RECORDER: Final = f"{Path.RUN_DIR}/nccl_trace_rank_"
_OLDER: Final = "the same under the name that older torch reads"
_KUBERNETES: Final = "https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination"
_TOOLKIT: Final = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html"

PRESETS: Final[Mapping[str, Preset]] = {
    preset.name: preset
    for preset in (
        Preset(
            "cpu-gloo",
            "Ranks on CPU cores, collectives by gloo.",
            {
                "grace": Setting(
                    "30s", "kubelet's own default; a step and a checkpoint on CPU take seconds", _KUBERNETES
                ),
                "env.NVIDIA_VISIBLE_DEVICES": Setting(
                    "void",
                    "an image built for CUDA sees every GPU of its machine, also those of other pods",
                    _TOOLKIT,
                ),
            },
        ),
        Preset(
            "gpu-nccl",
            "One rank per GPU, collectives by NCCL.",
            {
                "grace": Setting(
                    "120s", "time for a checkpoint of GPU memory and for the flight recorder's dump", _KUBERNETES
                ),
                "env.NCCL_DEBUG": Setting(
                    "WARN", "NCCL prints nothing about its failures otherwise", lint.env("NCCL_DEBUG")
                ),
                "env.TORCH_FR_BUFFER_SIZE": Setting(
                    "2000", "a hang leaves the last 2000 collectives of every rank as evidence", lint.FLIGHT_RECORDER
                ),
                "env.TORCH_NCCL_TRACE_BUFFER_SIZE": Setting("2000", _OLDER, lint.TORCH_NCCL),
                "env.TORCH_NCCL_DUMP_ON_TIMEOUT": Setting(
                    "1", "the flight recorder is written when a collective times out", lint.TORCH_NCCL
                ),
                "env.TORCH_FR_DUMP_TEMP_FILE": Setting(
                    _FLIGHT_RECORDER,
                    "the evidence outlives the container; torch's own place does not",
                    lint.FLIGHT_RECORDER,
                ),
                "env.TORCH_NCCL_DEBUG_INFO_TEMP_FILE": Setting(_FLIGHT_RECORDER, _OLDER, lint.TORCH_NCCL),
            },
        ),
        Preset("none", "Nothing beyond the defaults.", {}),
    )
}
