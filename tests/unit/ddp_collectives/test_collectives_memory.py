"""Messages that do not fit are refused before they are allocated."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ddp_collectives.device import check_free_memory, free_memory
from ddp_collectives.errors import BadRequest


def machine(folder: Path, limit: str) -> tuple[Path, Path]:
    (folder / "meminfo").write_text("MemTotal:  8000 kB\nMemAvailable:  4000 kB\n")
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text("1000000\n")
    return folder / "meminfo", folder


@pytest.mark.parametrize(
    ("limit", "free"), [("max", 4_096_000), ("3000000", 2_000_000), ("900000", 0), ("99999999", 4_096_000)]
)
def test_what_is_free_is_the_less_of_the_machines_and_the_containers(tmp_path: Path, limit: str, free: int) -> None:
    assert free_memory(*machine(tmp_path, limit)) == free


def test_without_a_limit_of_the_container_the_machine_counts(tmp_path: Path) -> None:
    meminfo, _ = machine(tmp_path, "max")
    assert free_memory(meminfo, tmp_path / "none") == 4_096_000


def test_a_message_that_is_too_large_is_refused_with_what_is_needed_and_what_is_free() -> None:
    check_free_memory(4096, torch.device("cpu"), 2)
    with pytest.raises(BadRequest, match=r"of 1024 GiB do not fit: the 2 ranks of this node need 4096 GiB, and .* are"):
        check_free_memory(2**40, torch.device("cpu"), 2)
