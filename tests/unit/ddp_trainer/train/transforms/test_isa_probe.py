"""Reuse of Inductor's probes of the processor, with the classes of the Inductor that is installed."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch._inductor import cpu_vec_isa

from ddp_trainer.train.transforms.compilation import reuse_isa_probes


def a_process(monkeypatch: pytest.MonkeyPatch, *, passes: bool) -> list[str]:
    """Begin as a new process does, with an answer in place of compiler and subprocess; return the probes it runs."""
    probed: list[str] = []

    def check_build(self: cpu_vec_isa.VecISA, _code: str) -> bool:
        probed.append(self.build_arch_flags())
        return passes

    monkeypatch.setattr(cpu_vec_isa.VecISA, "check_build", check_build)
    return probed


def test_a_probe_that_passed_is_not_run_by_the_next_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    probed = a_process(monkeypatch, passes=True)
    reuse_isa_probes(tmp_path)
    assert cpu_vec_isa.VecAVX2().check_build("code")
    assert probed == [cpu_vec_isa.VecAVX2().build_arch_flags()]

    probed = a_process(monkeypatch, passes=True)
    reuse_isa_probes(tmp_path)
    assert cpu_vec_isa.VecAVX2().check_build("code")
    assert probed == []


def test_other_code_and_other_flags_are_probed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    probed = a_process(monkeypatch, passes=True)
    reuse_isa_probes(tmp_path)
    cpu_vec_isa.VecAVX2().check_build("code")
    cpu_vec_isa.VecAVX2().check_build("other code")
    cpu_vec_isa.VecAVX512().check_build("code")

    assert len(probed) == 3


def test_a_failed_probe_is_repeated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    probed = a_process(monkeypatch, passes=False)
    reuse_isa_probes(tmp_path)

    assert [cpu_vec_isa.VecAVX2().check_build("code") for _ in range(2)] == [False, False]
    assert len(probed) == 2
