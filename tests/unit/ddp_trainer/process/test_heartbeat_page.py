from __future__ import annotations

from pathlib import Path

import pytest

from ddp_trainer.common.time_classes import Phase, Section
from ddp_trainer.process import heartbeat_page
from ddp_trainer.process.recorder import SECTION_NUMBERS
from ddp_trainer.train.observability.step_timer import StepTimer


def test_marks_of_a_training_thread_are_seen_in_the_page(tmp_path: Path) -> None:
    path = str(tmp_path / "p")
    heartbeat_page.create(path)
    phases = StepTimer(lambda: 12.5, heartbeat_page.marks({heartbeat_page.VARIABLE: path}))
    cells = heartbeat_page.open_page(path)
    phases.end_phase(Phase.FORWARD)
    assert (cells[heartbeat_page.SECTION], cells[heartbeat_page.SINCE]) == (SECTION_NUMBERS[Section.BACKWARD], 12.5)
    phases.enter(Section.EVALUATION)
    assert cells[heartbeat_page.SECTION] == SECTION_NUMBERS[Section.EVALUATION]
    phases.enter(None)
    assert cells[heartbeat_page.SECTION] == 0.0


@pytest.mark.parametrize("content", [None, b"", b"\0" * heartbeat_page.BYTES])
def test_without_a_sound_page_marks_lead_nowhere(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "p"
    if content is not None:
        path.write_bytes(content)
    assert heartbeat_page.marks({heartbeat_page.VARIABLE: str(path)}) == [0.0, 0.0]
    assert heartbeat_page.marks({}) == [0.0, 0.0]


def test_a_new_page_replaces_that_of_a_dead_worker_and_leaves_it_its_own(tmp_path: Path) -> None:
    path = str(tmp_path / "p")
    heartbeat_page.create(path)
    old = heartbeat_page.open_page(path)
    heartbeat_page.create(path)
    old[heartbeat_page.BEAT] = 7.0
    assert heartbeat_page.open_page(path)[heartbeat_page.BEAT] == 0.0
    assert heartbeat_page.open_page(path)[heartbeat_page.SEQUENCE] == -1.0
