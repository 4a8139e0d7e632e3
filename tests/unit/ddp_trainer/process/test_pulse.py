from __future__ import annotations

from pathlib import Path

import pytest

from ddp_trainer.common.contract import Env, Phase, Section
from ddp_trainer.process import pulse
from ddp_trainer.process.recorder import SECTION_NUMBERS
from ddp_trainer.train.observability.phases import NEXT, Phases


def test_the_contract_and_the_page_agree_on_the_variable() -> None:
    assert Env.PULSE == pulse.VARIABLE


def test_marks_of_a_training_thread_are_seen_in_the_page(tmp_path: Path) -> None:
    path = str(tmp_path / "p")
    pulse.create(path)
    phases = Phases(lambda: 12.5, pulse.marks({pulse.VARIABLE: path}))
    cells = pulse.open_cells(path)
    phases.lap(Phase.FORWARD)
    assert (cells[pulse.SECTION], cells[pulse.SINCE]) == (SECTION_NUMBERS[Section.BACKWARD], 12.5)
    phases.enter(Section.EVALUATION)
    assert cells[pulse.SECTION] == SECTION_NUMBERS[Section.EVALUATION]
    phases.enter(None)
    assert cells[pulse.SECTION] == 0.0


def test_every_phase_is_followed_by_a_section() -> None:
    assert NEXT.keys() == set(Phase)


@pytest.mark.parametrize("content", [None, b"", b"\0" * pulse.BYTES])
def test_without_a_sound_page_marks_lead_nowhere(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "p"
    if content is not None:
        path.write_bytes(content)
    assert pulse.marks({pulse.VARIABLE: str(path)}) == [0.0, 0.0]
    assert pulse.marks({}) == [0.0, 0.0]


def test_a_new_page_replaces_that_of_a_dead_worker_and_leaves_it_its_own(tmp_path: Path) -> None:
    path = str(tmp_path / "p")
    pulse.create(path)
    old = pulse.open_cells(path)
    pulse.create(path)
    old[pulse.BEAT] = 7.0
    assert pulse.open_cells(path)[pulse.BEAT] == 0.0
    assert pulse.open_cells(path)[pulse.SEQUENCE] == -1.0
