"""Directory of the compile cache: one per kind of machine, and a run without one where it cannot be written."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from ddp_trainer.launch.host.compile_cache import INDUCTOR, TRITON, compile_cache_variables, machine_key

CPUINFO = "processor\t: 0\nmodel name\t: Some CPU @ {ghz} GHz\nflags\t\t: {flags}\n"


def proc_of(root: Path, *, flags: str = "avx2 avx512f", ghz: str = "2.0", gpus: tuple[str, ...] = ()) -> Path:
    root.mkdir()
    (root / "cpuinfo").write_text(CPUINFO.format(flags=flags, ghz=ghz))
    for number, model in enumerate(gpus):
        directory = root / "driver/nvidia/gpus" / f"0000:0{number}"
        directory.mkdir(parents=True)
        (directory / "information").write_text(f"Model: \t\t {model}\nIRQ: {number}\n")
    return root


def never(sentence: str) -> None:
    raise AssertionError(sentence)


def test_inductor_and_triton_are_pointed_into_the_directory_of_this_machine(tmp_path: Path) -> None:
    variables = compile_cache_variables({"DDP_COMPILE_CACHE": str(tmp_path)}, never)

    folder = tmp_path / machine_key()
    assert variables == {INDUCTOR: str(folder / "inductor"), TRITON: str(folder / "triton")}
    assert all(Path(value).is_dir() for value in variables.values())


def test_nothing_is_set_without_a_cache_or_without_its_directory_which_is_reported(tmp_path: Path) -> None:
    assert compile_cache_variables({}, never) == {}
    (tmp_path / "file").write_text("")
    messages: list[str] = []

    assert compile_cache_variables({"DDP_COMPILE_CACHE": str(tmp_path / "file")}, messages.append) == {}
    assert [str(tmp_path / "file") in sentence for sentence in messages] == [True]


@pytest.mark.parametrize("other", [{"flags": "avx2"}, {"gpus": ("NVIDIA A100",)}, {"gpus": ()}], ids=str)
def test_machines_with_other_code_have_another_key(tmp_path: Path, other: dict[str, Any]) -> None:
    here = proc_of(tmp_path / "here", gpus=("NVIDIA H100", "NVIDIA H100"))

    assert machine_key(here) != machine_key(proc_of(tmp_path / "there", **{"gpus": ("NVIDIA H100",), **other}))


def test_clock_rate_order_of_flags_and_number_of_gpus_do_not_matter(tmp_path: Path) -> None:
    here = proc_of(tmp_path / "here", gpus=("NVIDIA H100",))
    there = proc_of(tmp_path / "there", flags="avx512f avx2", ghz="3.1", gpus=("NVIDIA H100", "NVIDIA H100"))

    assert machine_key(here) == machine_key(there)


def test_another_torch_has_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = machine_key()
    monkeypatch.setattr(metadata, "version", lambda _name: "9.9.9")

    assert machine_key() != before
