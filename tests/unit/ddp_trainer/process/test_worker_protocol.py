"""Protocol of worker and launcher: messages, the heartbeat page, parents in the process tree, and fences."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from ddp_trainer.common.time_classes import Phase, Section
from ddp_trainer.process import heartbeat_page, worker_protocol
from ddp_trainer.process.fence import is_valid_fence, precedence
from ddp_trainer.process.group_names import restart_group_names
from ddp_trainer.process.process_tree import parent_of
from ddp_trainer.process.recorder import SECTION_NUMBERS
from ddp_trainer.train.observability.step_timer import StepTimer


@pytest.mark.parametrize(
    "message",
    [
        worker_protocol.Reusable(able=False),
        worker_protocol.LayoutReport(parallel="replicate=1:2,shard=2"),
        worker_protocol.Left(generation=3, exit_code=170, why="a peer\nwent"),
        worker_protocol.Left(generation=3, exit_code=143, why="", stays=False, publishes=True),
        worker_protocol.Ended(exit_code=3),
        worker_protocol.LeaveGroup(generation=3, graceful=True),
        worker_protocol.Begin(environment={"RANK": "1"}),
    ],
)
def test_a_message_arrives_whole_however_it_is_cut(message: worker_protocol.Message) -> None:
    lines, data = worker_protocol.Lines(), worker_protocol.encode(message)
    assert [decoded for byte in data for decoded in lines.take(bytes([byte]))] == [message]


@pytest.mark.parametrize(
    "data",
    [
        *(
            b"x\n",
            b"[]\n",
            b'{"is":"left"}\n',
            b'{"is":"quit"}\n',
            b'{"is":[]}\n',
            b"x" * (worker_protocol.LINE_BYTES + 1),
        ),
        b'{"is":"reusable","able":"yes"}\n',
        b'{"is":"left","generation":"1","exit_code":0,"why":""}\n',
        b'{"is":"left","generation":1,"exit_code":0,"why":["x"]}\n',
        b'{"is":"reusable","able":true,"more":1}\n',
    ],
)
def test_a_line_that_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"message|line"):
        worker_protocol.Lines().take(data)


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
    new = heartbeat_page.open_page(path)
    assert (new[heartbeat_page.BEAT], new[heartbeat_page.SEQUENCE]) == (0.0, -1.0)


def test_a_parent_is_found_behind_a_name_with_parentheses_and_not_after_the_end(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/stat").write_text("7 (a) R 1 (b)) S 3 7 7")
    assert (parent_of(7, tmp_path), parent_of(8, tmp_path)) == (3, None)


def test_a_group_that_failed_while_it_was_made_is_not_counted() -> None:
    assert not dist.is_initialized()
    with pytest.raises(RuntimeError):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=2, timeout=timedelta(seconds=0.3))
    assert dist.distributed_c10d._world.group_count == 1
    restart_group_names()
    assert dist.distributed_c10d._world.group_count == 0


NOW = 1_800_000_000.0
FENCE = int(NOW * 1000)
DAY = 86_400_000


def test_a_fence_is_believed_up_to_a_day_ahead() -> None:
    fences = 0, FENCE + DAY, FENCE + DAY + 1, 10**4000
    assert [is_valid_fence(fence, NOW) for fence in fences] == [True, True, False, False]


def test_a_fence_that_is_believed_comes_after_each_that_is_not() -> None:
    year = FENCE + 365 * DAY
    fences = [year + 1, FENCE + 1, year, FENCE, 10**4000]
    assert sorted(fences, key=lambda fence: precedence(fence, NOW)) == [year, year + 1, 10**4000, FENCE, FENCE + 1]
